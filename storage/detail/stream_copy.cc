#include "shardwise/storage/detail/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Highway compiles this file once per SIMD target and picks one at run time. The targets are
// included again from here, so everything up to the second part is inside HWY_NAMESPACE.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shardwise/storage/detail/stream_copy.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway wants it.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Bytes = hn::CappedTag<std::uint8_t, 64>;

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

// A cache line that is written whole, with no other store in between, goes to memory in one piece.
void stream_line(std::uint8_t* to, const std::uint8_t* from) {
  const Bytes d;
  for (std::size_t i = 0; i < kLine; i += hn::Lanes(d)) {
    hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
}

// Copies whole lines; `to` begins on one. Four pages at a time, a line of each in turn: memory
// keeps several pages open at once, which takes an eighth less time.
void stream_lines(std::uint8_t* to, const std::uint8_t* from, std::size_t size) {
  std::size_t at = 0;
  for (; at + 4 * kPage <= size; at += 4 * kPage) {
    for (std::size_t line = at; line < at + kPage; line += kLine) {
      for (std::size_t page = 0; page < 4 * kPage; page += kPage) {
        stream_line(to + line + page, from + line + page);
      }
    }
  }
  for (; at < size; at += kLine) stream_line(to + at, from + at);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardwise {
namespace {
HWY_EXPORT(stream_lines);
}  // namespace

void stream_copy(std::byte* to, const std::byte* from, std::size_t size) {
  constexpr std::size_t kLine = 64;
  const std::size_t head =
      std::min(size, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  const std::size_t lines = (size - head) / kLine * kLine;
  if (size == 0) return;
  std::memcpy(to, from, head);
  HWY_DYNAMIC_DISPATCH(stream_lines)
  (reinterpret_cast<std::uint8_t*>(to + head), reinterpret_cast<const std::uint8_t*>(from + head),
   lines);
  std::memcpy(to + head + lines, from + head + lines, size - head - lines);
}

void stream_fence() { hwy::FlushStream(); }

}  // namespace shardwise
#endif
