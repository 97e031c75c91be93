#include "shardwise/checkpoint/detail/codec/zstd/plane_coder.h"

#include <algorithm>
#include <bit>
#include <cstring>

// Highway compiles the first part of this file once per SIMD target and picks one at run time: the
// loops are plain, but shifts by a variable are one instruction from AVX2 on and three before it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shardwise/checkpoint/detail/codec/zstd/plane_coder.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway wants it.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardwise::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

std::size_t load_pair(const std::byte* at) {
  std::uint16_t pair = 0;
  std::memcpy(&pair, at, sizeof pair);
  return pair;
}

void count_pairs(const std::byte* plane, std::size_t pairs, std::uint32_t* counts) {
  std::size_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    ++counts[load_pair(plane + 2 * i)];
    ++counts[load_pair(plane + 2 * i + 2)];
    ++counts[load_pair(plane + 2 * i + 4)];
    ++counts[load_pair(plane + 2 * i + 6)];
  }
  for (; i < pairs; ++i) ++counts[load_pair(plane + 2 * i)];
}

// Rows and columns of the pairs' counts, which become zero.
void sum_pairs(std::uint32_t* counts, std::uint32_t* bytes) {
  for (std::size_t r = 0; r < 256; ++r) {
    std::uint32_t* const row = counts + 256 * r;
    std::uint32_t sum = 0;
    for (std::size_t c = 0; c < 256; ++c) {
      sum += row[c];
      bytes[c] += row[c];
      row[c] = 0;
    }
    bytes[r] += sum;
  }
}

/// Are there bytes that are not in the set? Its bit 8 * (v % 16) + v / 16 stands for value v, below
/// 128, and those of the second half for v + 128.
bool has_others(const std::byte* bytes, std::size_t size, const std::uint8_t* set) {
  bool found = false;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // its vectors are one byte: too short for tables
  const hn::ScalableTag<std::uint8_t> d;
  alignas(16) constexpr std::uint8_t kBits[] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                1, 2, 4, 8, 16, 32, 64, 128};
  const auto low_set = hn::LoadDup128(d, set), high_set = hn::LoadDup128(d, set + 16);
  const auto bits = hn::LoadDup128(d, kBits), low = hn::Set(d, 15), half = hn::Set(d, 128);
  auto others = hn::Zero(d);
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(bytes) + i);
    const auto column = hn::And(v, low);
    const auto in_set = hn::IfThenElse(hn::Lt(v, half), hn::TableLookupBytes(low_set, column),
                                       hn::TableLookupBytes(high_set, column));
    others = hn::Or(others, hn::AndNot(in_set, hn::TableLookupBytes(bits, hn::ShiftRight<4>(v))));
  }
  found = !hn::AllTrue(d, hn::Eq(others, hn::Zero(d)));
#endif
  for (; i < size; ++i) {
    const auto v = std::to_integer<std::size_t>(bytes[i]);
    found = found || (set[16 * (v / 128) + v % 16] >> v / 16 % 8 & 1) == 0;
  }
  return found;
}

/// Bits; the last ones lie highest. At most 56 between two flushes, counting up to 7 that the flush
/// before has left: so none comes near the lengths, which lie lowest.
struct BitStream {
  std::uint64_t bits = 0;
  std::uint64_t count = 0;
  std::byte* at;

  void add(std::uint64_t code) {
    bits = bits >> (code & 63) | code;
    count += code & 63;
  }

  void flush() {
    const std::uint64_t low = bits >> ((64 - count) & 63);
    std::memcpy(at, &low, sizeof low);
    at += count / 8;
    count %= 8;
  }

  /// The eight bytes before `end`, at once if their codes are not unusually long. A code's
  /// lowest byte is its length, so the lowest byte of the sum is that of all.
  void add_eight(const std::uint64_t* pairs, const std::byte* end) {
    const std::uint64_t d = pairs[load_pair(end - 2)], c = pairs[load_pair(end - 4)];
    const std::uint64_t b = pairs[load_pair(end - 6)], a = pairs[load_pair(end - 8)];
    const std::uint64_t sum = count + (a + b + c + d) % 256;
    if (sum <= 56) {
      bits = bits >> (d & 63) | d;
      bits = bits >> (c & 63) | c;
      bits = bits >> (b & 63) | b;
      bits = bits >> (a & 63) | a;
      count = sum;
    } else {
      add(d);
      add(c);
      flush();
      add(b);
      add(a);
    }
    flush();
  }
};

// A decoder begins at the end, so the last byte's code is the first. Two streams in turn, as each
// code waits for the one before it in its stream.
void code_streams(const PlaneCoder::Codes& codes, PlaneCoder::Stream* two) {
  BitStream a{.at = two[0].out}, b{.at = two[1].out};
  const std::size_t common = std::min(two[0].bytes.size(), two[1].bytes.size()) / 8 * 8;
  const auto one_by_one = [&](std::span<const std::byte> bytes, BitStream& out) {
    for (std::size_t i = bytes.size(); i-- > common;) {
      out.add(codes.one[std::to_integer<std::size_t>(bytes[i])]);
      out.flush();
    }
  };
  one_by_one(two[0].bytes, a);
  one_by_one(two[1].bytes, b);
  const std::byte* const from_a = two[0].bytes.data();
  const std::byte* const from_b = two[1].bytes.data();
  const std::uint64_t* const pairs = codes.two.data();
  for (std::size_t i = common; i > 0; i -= 8) {
    a.add_eight(pairs, from_a + i);
    b.add_eight(pairs, from_b + i);
  }
  const auto end = [](BitStream& out) {
    out.add(std::uint64_t{1} << 63 | 1);  // the mark where a decoder begins
    out.flush();
    return out.at + (out.count > 0 ? 1 : 0);
  };
  two[0].size = static_cast<std::size_t>(end(a) - two[0].out);
  two[1].size = static_cast<std::size_t>(end(b) - two[1].out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardwise::detail {
namespace {

HWY_EXPORT(count_pairs);
HWY_EXPORT(sum_pairs);
HWY_EXPORT(has_others);
HWY_EXPORT(code_streams);

static_assert(std::endian::native == std::endian::little, "bits and pairs are stored as they are");

constexpr std::size_t kPairs = std::size_t{256} * 256;

// Shorter blocks do not pay for their heads, and four streams want some bytes each.
constexpr std::size_t kLeastBlockBytes = 256;

// Every fourth run says how frequent values are, and so do those with values that occur in none of
// these. An odd number of cache lines: rows of a matrix mostly have even ones, and the sample is
// not to go along with them.
constexpr std::size_t kRunBytes = std::size_t{19} * 64;
constexpr std::size_t kRunsPerSample = 4;

// Room for the longest codes, and for the bytes that the last flush writes beyond them.
constexpr std::size_t kStreamRoom = kZstdBlockBytes / 4 * kMaxCodeBits / 8 + 16;

std::size_t pair_of(std::size_t first, std::size_t second) { return first | second << 8; }

/// RFC 8878, section 3.1.1.3.1: the literals are coded in four streams, with a code that follows or
/// with the one before; both sizes take 18 bits.
std::array<std::byte, 5> literals_header(bool has_code, std::size_t bytes, std::size_t stored) {
  const std::uint64_t value =
      (has_code ? 2 : 3) | 3 << 2 | std::uint64_t{bytes} << 4 | std::uint64_t{stored} << 22;
  std::array<std::byte, 5> header;
  std::memcpy(header.data(), &value, header.size());
  return header;
}

}  // namespace

std::size_t PlaneCoder::held_bytes() const {
  return pair_counts_.capacity() * sizeof(std::uint32_t) +
         codes_.two.capacity() * sizeof(std::uint64_t) + coded_.capacity();
}

ByteCounts PlaneCoder::count(std::span<const std::byte> plane) {
  const auto count_run = [&](std::span<const std::byte> run) {
    HWY_DYNAMIC_DISPATCH(count_pairs)(run.data(), run.size() / 2, pair_counts_.data());
  };
  const auto for_each_run = [&](const auto& use) {
    for (std::size_t at = 0, number = 0; at < plane.size(); at += kRunBytes, ++number) {
      use(plane.subspan(at, std::min(kRunBytes, plane.size() - at)), number % kRunsPerSample == 0);
    }
  };
  ByteCounts counts{};
  for_each_run([&](auto run, bool in_sample) {
    if (in_sample) count_run(run);
  });
  HWY_DYNAMIC_DISPATCH(sum_pairs)(pair_counts_.data(), counts.data());

  std::array<std::uint8_t, 32> set{};
  for (std::size_t v = 0; v < counts.size(); ++v) {
    if (counts[v] > 0) set[16 * (v / 128) + v % 16] |= static_cast<std::uint8_t>(1 << v / 16 % 8);
  }
  for_each_run([&](auto run, bool in_sample) {
    if (!in_sample && HWY_DYNAMIC_DISPATCH(has_others)(run.data(), run.size(), set.data())) {
      count_run(run);
    }
  });
  HWY_DYNAMIC_DISPATCH(sum_pairs)(pair_counts_.data(), counts.data());
  if (plane.size() % 2 != 0) ++counts[std::to_integer<std::size_t>(plane.back())];
  return counts;
}

void PlaneCoder::set_codes(const CodeLengths& lengths) {
  const auto values = code_values(lengths);
  std::vector<std::size_t> used;
  for (std::size_t v = 0; v < lengths.size(); ++v) {
    if (lengths[v] > 0) used.push_back(v);
  }
  const auto entry = [](std::uint64_t code, std::size_t bits) {
    return code << (64 - bits) | bits;
  };
  for (const std::size_t v : used) codes_.one[v] = entry(values[v], lengths[v]);
  for (const std::size_t second : used) {
    for (const std::size_t first : used) {
      codes_.two[pair_of(first, second)] =
          entry(std::uint64_t{values[first]} << lengths[second] | values[second],
                std::size_t{lengths[first]} + lengths[second]);
    }
  }
}

/// Fills the streams. Returns the bytes of all of them.
std::size_t PlaneCoder::code_block(std::span<const std::byte> block) {
  const std::size_t quarter = (block.size() + 3) / 4;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    streams_[s] = {block.subspan(s * quarter, std::min(quarter, block.size() - s * quarter)),
                   &coded_[s * kStreamRoom], 0};
  }
  HWY_DYNAMIC_DISPATCH(code_streams)(codes_, &streams_[0]);
  HWY_DYNAMIC_DISPATCH(code_streams)(codes_, &streams_[2]);
  std::size_t size = 0;
  for (const Stream& stream : streams_) size += stream.size;
  return size;
}

void PlaneCoder::add(std::span<const std::byte> plane, bool last, FrameWriter& frame) {
  pair_counts_.resize(kPairs);
  codes_.two.resize(kPairs);
  coded_.resize(streams_.size() * kStreamRoom);
  const ByteCounts counts = count(plane);
  const auto values = std::count_if(counts.begin(), counts.end(), [](auto c) { return c > 0; });
  if (values < 2) return frame.add_repeated(plane.front(), plane.size(), last);
  const CodeLengths lengths = code_lengths(counts);
  std::uint64_t bits = 0, bytes = 0;
  for (std::size_t v = 0; v < counts.size(); ++v) {
    bits += std::uint64_t{counts[v]} * lengths[v];
    bytes += counts[v];
  }
  std::vector<std::byte> code = describe_code(lengths);
  if (code.empty() || bits >= 8 * bytes) return frame.add_raw(plane, last);

  set_codes(lengths);
  while (!plane.empty()) {
    const auto block = plane.first(std::min(plane.size(), kZstdBlockBytes));
    plane = plane.subspan(block.size());
    const bool end = last && plane.empty();
    const std::size_t size = block.size() < kLeastBlockBytes ? 0 : code_block(block);
    // The sizes of the first three streams.
    std::array<std::uint16_t, 3> sizes;
    for (std::size_t s = 0; s < 3; ++s) sizes[s] = static_cast<std::uint16_t>(streams_[s].size);
    const std::size_t stored = code.size() + sizeof sizes + size;
    if (size == 0 || stored + 6 >= block.size()) {
      frame.add_raw(block, end);
      continue;
    }
    const auto stream = [&](std::size_t s) {
      return std::span<const std::byte>(streams_[s].out, streams_[s].size);
    };
    constexpr std::array<std::byte, 1> kNoMatches{};
    frame.add_compressed(
        {literals_header(!code.empty(), block.size(), stored), code,
         std::as_bytes(std::span(sizes)), stream(0), stream(1), stream(2), stream(3), kNoMatches},
        end);
    code.clear();
  }
}

}  // namespace shardwise::detail
#endif
