#include "shardwise/checkpoint/detail/codec/zstd/huffman_code.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cassert>
#include <span>

namespace shardwise::detail {
namespace {

// Weights are entropy-coded with 64 states, the most that zstd allows for them.
constexpr std::size_t kStateBits = 6;
constexpr std::size_t kStates = std::size_t{1} << kStateBits;

// A weight is 0 for a value without a code, and larger by one for each bit that a code is shorter.
constexpr std::size_t kWeights = kMaxCodeBits + 1;

// The header byte states either the size of entropy-coded weights or, from 128 on, how many plain
// ones of 4 bits follow.
constexpr std::size_t kMostCodedBytes = 127;
constexpr std::size_t kMostPlainWeights = 128;

/// Bits that follow one another from the lowest of the first byte on. Thread-compatible.
class BitWriter {
 public:
  void put(std::size_t value, std::size_t bits) {
    for (std::size_t i = 0; i < bits; ++i, ++count_) {
      if (count_ % 8 == 0) bytes_.push_back(std::byte{0});
      bytes_.back() |= static_cast<std::byte>((value >> i & 1) << count_ % 8);
    }
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t count_ = 0;
};

/// How many of the states each weight has: in proportion to its frequency, at least one if it
/// occurs.
using Shares = std::array<std::size_t, kWeights>;

Shares share_states(std::span<const std::uint8_t> weights) {
  Shares counts{}, shares{};
  for (const std::uint8_t weight : weights) ++counts[weight];
  std::size_t given = 0;
  for (std::size_t w = 0; w < kWeights; ++w) {
    if (counts[w] == 0) continue;
    shares[w] = std::max<std::size_t>(1, counts[w] * kStates / weights.size());
    given += shares[w];
  }
  // Rounding leaves some states over, or overdraws; the most frequent weight bears it best.
  *std::max_element(shares.begin(), shares.end()) += kStates - given;
  return shares;
}

/// RFC 8878, section 4.1.1: writes each share in the fewest bits that the states left allow.
void put_shares(const Shares& shares, BitWriter& out) {
  out.put(kStateBits - 5, 4);
  std::size_t left = kStates;
  for (std::size_t w = 0; left > 0; ++w) {
    // Values 0 to left + 1 are possible; the smallest `saved` ones take a bit less. The value is
    // the share plus one: 0 stands for a share of less than one.
    const std::size_t bits = std::bit_width(left + 1), half = std::size_t{1} << (bits - 1);
    const std::size_t saved = 2 * half - 2 - left, value = shares[w] + 1;
    if (value < saved) {
      out.put(value, bits - 1);
    } else {
      out.put(value < half ? value : value + saved, bits);
    }
    left -= shares[w];
    if (shares[w] > 0) continue;
    // How many more shares of none follow at once: 3 says three, and that another number follows.
    std::size_t none = 0;
    while (shares[w + 1 + none] == 0) ++none;
    w += none;
    for (; none >= 3; none -= 3) out.put(3, 2);
    out.put(none, 2);
  }
}

/// The states of an entropy decoder (RFC 8878, section 4.1.1), read backwards: a weight's state
/// that is left for a given next one, and the bits that lead there.
struct States {
  explicit States(const Shares& shares) {
    std::array<std::size_t, kStates> weight_of{};
    std::size_t place = 0;
    for (std::size_t w = 0; w < kWeights; ++w) {
      for (std::size_t i = 0; i < shares[w]; ++i) {
        weight_of[place] = w;
        place = (place + kStates / 2 + kStates / 8 + 3) % kStates;
      }
    }
    Shares rank = shares;
    for (std::size_t state = 0; state < kStates; ++state) {
      const std::size_t w = weight_of[state], x = rank[w]++;
      bits[state] = kStateBits + 1 - static_cast<std::size_t>(std::bit_width(x));
      base[state] = (x << bits[state]) - kStates;
      if (x == shares[w]) first[w] = state;
      for (std::size_t next = 0; next < std::size_t{1} << bits[state]; ++next) {
        before[w][base[state] + next] = state;
      }
    }
  }

  std::array<std::size_t, kStates> bits, base;
  std::array<std::array<std::size_t, kStates>, kWeights> before;
  std::array<std::size_t, kWeights> first{};  // takes at least one bit to leave
};

/// RFC 8878, section 4.2.1.2: two states in turn, read from the end. Empty for weights that are all
/// the same: a decoder would not know where they end.
std::vector<std::byte> code_weights(std::span<const std::uint8_t> weights) {
  const Shares shares = share_states(weights);
  if (weights.size() < 2 || *std::max_element(shares.begin(), shares.end()) == kStates) return {};
  BitWriter out;
  put_shares(shares, out);
  std::vector<std::byte> coded = out.bytes();

  const States states(shares);
  BitWriter stream;
  std::array<std::size_t, 2> at{};
  for (std::size_t i = weights.size(); i-- > 0;) {
    std::size_t& state = at[i % 2];
    if (i + 2 >= weights.size()) {
      state = states.first[weights[i]];
      continue;
    }
    const std::size_t before = states.before[weights[i]][state];
    stream.put(state - states.base[before], states.bits[before]);
    state = before;
  }
  stream.put(at[1], kStateBits);
  stream.put(at[0], kStateBits);
  stream.put(1, 1);
  coded.insert(coded.end(), stream.bytes().begin(), stream.bytes().end());
  return coded;
}

std::vector<std::byte> plain_weights(std::span<const std::uint8_t> weights) {
  std::vector<std::byte> plain((weights.size() + 1) / 2);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    plain[i / 2] |= static_cast<std::byte>(weights[i] << (i % 2 == 0 ? 4 : 0));
  }
  return plain;
}

}  // namespace

CodeLengths code_lengths(const ByteCounts& counts) {
  std::array<std::uint8_t, 256> values;
  std::size_t n = 0;
  for (std::size_t v = 0; v < counts.size(); ++v) {
    if (counts[v] > 0) values[n++] = static_cast<std::uint8_t>(v);
  }
  assert(n >= 2);
  std::sort(values.begin(), values.begin() + n, [&](std::uint8_t a, std::uint8_t b) {
    return counts[a] != counts[b] ? counts[a] < counts[b] : a < b;
  });

  // Each row holds the values and the pairs of the row before it, lightest first.
  std::array<std::uint64_t, 512> row, next;
  std::array<std::bitset<512>, kMaxCodeBits> is_value;
  std::size_t size = 0;
  for (auto& marks : is_value) {
    std::size_t v = 0, pair = 0, end = 0;
    while (v < n || pair < size / 2) {
      const std::uint64_t weight = pair < size / 2 ? row[2 * pair] + row[2 * pair + 1] : UINT64_MAX;
      marks[end] = v < n && counts[values[v]] <= weight;
      next[end] = marks[end] ? counts[values[v++]] : weight;
      if (!marks[end++]) ++pair;
    }
    size = end;
    row = next;
  }

  // The lightest 2n - 2 of the last row: each time a value is among them, or in a pair of a pair
  // that is, its code gets a bit longer.
  CodeLengths lengths{};
  std::size_t taken = 2 * n - 2;
  for (std::size_t r = kMaxCodeBits; r-- > 0;) {
    std::size_t in_row = 0;
    for (std::size_t i = 0; i < taken; ++i) in_row += is_value[r][i] ? 1 : 0;
    for (std::size_t v = 0; v < in_row; ++v) ++lengths[values[v]];
    taken = 2 * (taken - in_row);
  }
  return lengths;
}

std::array<std::uint16_t, 256> code_values(const CodeLengths& lengths) {
  std::array<std::uint32_t, kMaxCodeBits + 2> next{};
  for (const std::uint8_t length : lengths) ++next[length];
  next[0] = 0;
  std::uint32_t first = 0;
  for (std::size_t length = kMaxCodeBits; length > 0; --length) {
    const std::uint32_t end = first + next[length];
    next[length] = first;
    first = end / 2;
  }
  std::array<std::uint16_t, 256> values{};
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (lengths[v] > 0) values[v] = static_cast<std::uint16_t>(next[lengths[v]]++);
  }
  return values;
}

std::vector<std::byte> describe_code(const CodeLengths& lengths) {
  const std::uint8_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::uint8_t> weights;
  for (const std::uint8_t length : lengths) {
    weights.push_back(static_cast<std::uint8_t>(length == 0 ? 0 : longest + 1 - length));
  }
  // The last one follows from the others.
  while (weights.back() == 0) weights.pop_back();
  weights.pop_back();

  std::vector<std::byte> described = code_weights(weights);
  const std::size_t plain_bytes = (weights.size() + 1) / 2;
  std::size_t head = described.size();
  if (weights.size() <= kMostPlainWeights && (described.empty() || plain_bytes <= head)) {
    described = plain_weights(weights);
    head = 127 + weights.size();
  } else if (described.empty() || described.size() > kMostCodedBytes) {
    return {};
  }
  described.insert(described.begin(), static_cast<std::byte>(head));
  return described;
}

}  // namespace shardwise::detail
