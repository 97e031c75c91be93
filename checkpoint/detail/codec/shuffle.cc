#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "shardwise/checkpoint/detail/codec/codec.h"

// Highway compiles this file once per SIMD target and picks one at run time. The targets are
// included again from here, so everything up to the second part is inside HWY_NAMESPACE.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shardwise/checkpoint/detail/codec/shuffle.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway wants it.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardwise::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::ScalableTag<std::uint8_t>;
using Lanes16 = hn::ScalableTag<std::uint16_t>;

// Each loop does whole vectors and returns how many elements it has done; the rest is the caller's.
// Byte b of the elements goes to planes[b], or is `plane` bytes after byte b - 1.

std::size_t split2(const std::uint8_t* in, std::size_t count, std::uint8_t* const* planes) {
  const Lanes d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    hn::Vec<Lanes> a, b;
    hn::LoadInterleaved2(d, in + 2 * i, a, b);
    hn::StoreU(a, d, planes[0] + i);
    hn::StoreU(b, d, planes[1] + i);
  }
  return i;
}

std::size_t join2(const std::uint8_t* in, std::size_t plane, std::size_t count, std::uint8_t* out) {
  const Lanes d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    hn::StoreInterleaved2(hn::LoadU(d, in + i), hn::LoadU(d, in + plane + i), d, out + 2 * i);
  }
  return i;
}

std::size_t split4(const std::uint8_t* in, std::size_t count, std::uint8_t* const* planes) {
  const Lanes d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    hn::Vec<Lanes> a, b, c, e;
    hn::LoadInterleaved4(d, in + 4 * i, a, b, c, e);
    hn::StoreU(a, d, planes[0] + i);
    hn::StoreU(b, d, planes[1] + i);
    hn::StoreU(c, d, planes[2] + i);
    hn::StoreU(e, d, planes[3] + i);
  }
  return i;
}

std::size_t join4(const std::uint8_t* in, std::size_t plane, std::size_t count, std::uint8_t* out) {
  const Lanes d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    hn::StoreInterleaved4(hn::LoadU(d, in + i), hn::LoadU(d, in + plane + i),
                          hn::LoadU(d, in + 2 * plane + i), hn::LoadU(d, in + 3 * plane + i), d,
                          out + 4 * i);
  }
  return i;
}

// Highway interleaves up to four vectors. Eight bytes go in two steps through a block that stays in
// the first-level cache: as four pairs of bytes, then each pair.
constexpr std::size_t kBlock = 1024;

std::size_t split8(const std::uint8_t* in, std::size_t count, std::uint8_t* const* planes) {
  const Lanes16 d;
  const std::size_t step = hn::Lanes(d);
  alignas(64) std::uint16_t pairs[4][kBlock];
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (std::size_t j = 0; j < kBlock; j += step) {
      hn::Vec<Lanes16> a, b, c, e;
      hn::LoadInterleaved4(d, reinterpret_cast<const std::uint16_t*>(in + 8 * (i + j)), a, b, c, e);
      hn::Store(a, d, pairs[0] + j);
      hn::Store(b, d, pairs[1] + j);
      hn::Store(c, d, pairs[2] + j);
      hn::Store(e, d, pairs[3] + j);
    }
    for (std::size_t pair = 0; pair < 4; ++pair) {
      std::uint8_t* const two[] = {planes[2 * pair] + i, planes[2 * pair + 1] + i};
      split2(reinterpret_cast<const std::uint8_t*>(pairs[pair]), kBlock, two);
    }
  }
  return i;
}

std::size_t join8(const std::uint8_t* in, std::size_t plane, std::size_t count, std::uint8_t* out) {
  const Lanes16 d;
  const std::size_t step = hn::Lanes(d), whole = hn::Lanes(Lanes());
  alignas(64) std::uint16_t pairs[4][kBlock];
  std::size_t i = 0, block = 0;
  for (; i + whole <= count; i += block) {
    block = std::min(kBlock, (count - i) / whole * whole);
    for (std::size_t pair = 0; pair < 4; ++pair) {
      join2(in + 2 * pair * plane + i, plane, block, reinterpret_cast<std::uint8_t*>(pairs[pair]));
    }
    for (std::size_t j = 0; j < block; j += step) {
      hn::StoreInterleaved4(hn::Load(d, pairs[0] + j), hn::Load(d, pairs[1] + j),
                            hn::Load(d, pairs[2] + j), hn::Load(d, pairs[3] + j), d,
                            reinterpret_cast<std::uint16_t*>(out + 8 * (i + j)));
    }
  }
  return i;
}

std::size_t split(const std::uint8_t* in, std::size_t element_bytes, std::size_t count,
                  std::uint8_t* const* planes) {
  switch (element_bytes) {
    case 2:
      return split2(in, count, planes);
    case 4:
      return split4(in, count, planes);
    case 8:
      return split8(in, count, planes);
    default:
      return 0;
  }
}

std::size_t join(const std::uint8_t* in, std::size_t element_bytes, std::size_t plane,
                 std::size_t count, std::uint8_t* out) {
  switch (element_bytes) {
    case 2:
      return join2(in, plane, count, out);
    case 4:
      return join4(in, plane, count, out);
    case 8:
      return join8(in, plane, count, out);
    default:
      return 0;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardwise::detail {
namespace {

HWY_EXPORT(split);
HWY_EXPORT(join);

constexpr std::size_t kMaxElementBytes = 16;

const std::uint8_t* bytes_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

std::uint8_t* bytes_of(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}

}  // namespace

void shuffle(std::span<const std::byte> in, std::size_t element_bytes,
             std::span<std::byte* const> planes) {
  assert(element_bytes > 0 && planes.size() == element_bytes && in.size() % element_bytes == 0);
  if (in.empty()) return;
  if (element_bytes == 1) {
    std::memcpy(planes[0], in.data(), in.size());
    return;
  }
  const std::size_t count = in.size() / element_bytes;
  const std::uint8_t* const from = bytes_of(in);
  std::array<std::uint8_t*, kMaxElementBytes> to{};
  for (std::size_t b = 0; b < element_bytes; ++b) {
    to[b] = reinterpret_cast<std::uint8_t*>(planes[b]);
  }
  for (std::size_t i = HWY_DYNAMIC_DISPATCH(split)(from, element_bytes, count, to.data());
       i < count; ++i) {
    for (std::size_t b = 0; b < element_bytes; ++b) to[b][i] = from[i * element_bytes + b];
  }
}

void shuffle(std::span<const std::byte> in, std::size_t element_bytes, std::span<std::byte> out) {
  assert(in.size() == out.size());
  std::array<std::byte*, kMaxElementBytes> planes{};
  for (std::size_t b = 0; b < element_bytes; ++b) {
    planes[b] = out.data() + b * (in.size() / element_bytes);
  }
  shuffle(in, element_bytes, std::span(planes).first(element_bytes));
}

void unshuffle(std::span<const std::byte> in, std::size_t element_bytes, std::size_t first,
               std::span<std::byte> out) {
  assert(first * element_bytes + out.size() <= in.size() && out.size() % element_bytes == 0);
  if (out.empty()) return;
  if (element_bytes == 1) {
    std::memcpy(out.data(), in.data() + first, out.size());
    return;
  }
  const std::size_t plane = in.size() / element_bytes, count = out.size() / element_bytes;
  const std::uint8_t* const from = bytes_of(in) + first;
  std::uint8_t* const to = bytes_of(out);
  for (std::size_t i = HWY_DYNAMIC_DISPATCH(join)(from, element_bytes, plane, count, to); i < count;
       ++i) {
    for (std::size_t b = 0; b < element_bytes; ++b) to[i * element_bytes + b] = from[b * plane + i];
  }
}

}  // namespace shardwise::detail
#endif
