#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

/// Appends numbers and texts. Small numbers take few bytes: seven bits a byte, the lowest first.
class Packer {
 public:
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<std::byte>(value | 0x80));
    bytes_.push_back(static_cast<std::byte>(value));
  }
  void number(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  /// A number that always takes 8 bytes.
  void word(std::uint64_t value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void hash(const Hash128& hash) {
    word(hash.high);
    word(hash.low);
  }
  void text(std::string_view text) {
    number(std::uint64_t{text.size()});
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// Appends the box without its rank.
  void box(const Box& box) {
    for (std::size_t d = 0; d < box.rank(); ++d) {
      number(box.begin(d));
      number(box.end(d));
    }
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// A message with its hash after it, so that damage on the way is found.
inline Bytes sealed(Bytes message) {
  const std::uint64_t hash = hash64(message.data(), message.size());
  message.resize(message.size() + sizeof hash);
  std::memcpy(message.data() + message.size() - sizeof hash, &hash, sizeof hash);
  return message;
}

/// The bytes that sealed() was given; valid as long as `message`. Throws corrupt, naming `what`, if
/// the hash is not that of the message.
inline std::span<const std::byte> unsealed(std::span<const std::byte> message,
                                           std::string_view what) {
  std::uint64_t stated = 0;
  if (message.size() >= sizeof stated) {
    const auto content = message.first(message.size() - sizeof stated);
    std::memcpy(&stated, content.data() + content.size(), sizeof stated);
    if (hash64(content.data(), content.size()) == stated) return content;
  }
  throw Error(ErrorCode::corrupt,
              "read " + std::string(what) + ": found " + std::to_string(message.size()) +
                  " bytes that do not end with their hash; needed is the message as it was sent");
}

/// Takes them out again, in the same order. Throws invalid_argument, naming `what`, if there is no
/// more, or a number is outside its bounds.
class Unpacker {
 public:
  Unpacker(std::span<const std::byte> bytes, std::string_view what) : rest_(bytes), what_(what) {}

  /// Reads the bytes that sealed() was given; throws as unsealed() does.
  static Unpacker of_sealed(std::span<const std::byte> message, std::string_view what) {
    return {unsealed(message, what), what};
  }

  bool empty() const { return rest_.empty(); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = std::to_integer<std::uint64_t>(part(1).front());
      const std::uint64_t bits = byte & 0x7F;
      if (bits << shift >> shift != bits) fail("a number has more than 64 bits");
      value |= bits << shift;
      if (byte == 0 && shift > 0) fail("found a number in more bytes than it needs");
      if (byte < 0x80) return value;
    }
    fail("a number has more than 10 bytes");
  }
  std::int64_t integer(std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    const auto value = static_cast<std::int64_t>(number());
    if (value >= least && value <= most) return value;
    fail("found the number " + std::to_string(value) + ", needed " + std::to_string(least) +
         " to " + std::to_string(most));
  }
  bool flag() { return integer(0, 1) != 0; }

  /// How many entries of at least `least_bytes` follow: no more than there is room for, so memory
  /// may be taken for them.
  std::size_t count(std::size_t least_bytes = 1) {
    const std::uint64_t value = number();
    if (value > rest_.size() / least_bytes) fail("it is cut off");
    return static_cast<std::size_t>(value);
  }
  std::uint64_t word() {
    std::uint64_t value = 0;
    std::memcpy(&value, part(sizeof value).data(), sizeof value);
    return value;
  }
  Hash128 hash() {
    const std::uint64_t high = word();
    return {.high = high, .low = word()};
  }
  std::string text() {
    const auto bytes = part(number());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// Throws invalid_argument if the numbers are no box.
  Box box(std::size_t rank) {
    Index begin, end;
    for (std::size_t d = 0; d < rank; ++d) {
      begin.push_back(integer(0));
      end.push_back(integer(0));
    }
    return {begin, end};
  }

  /// A text of one line, as those of meshes and specs are: it may stand in a message to a person.
  std::string line() {
    std::string found = text();
    for (const char c : found) {
      if (static_cast<unsigned char>(c) < 0x20) fail("a line of text has a control character");
    }
    return found;
  }

  /// Takes all remaining bytes.
  std::span<const std::byte> rest() { return std::exchange(rest_, {}); }

  /// Throws if there is more.
  void end() const {
    if (!rest_.empty()) fail("found " + std::to_string(rest_.size()) + " bytes after its end");
  }

  /// Throws invalid_argument with this problem of the message.
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorCode::invalid_argument,
                "read " + std::string(what_) + ": " + problem +
                    "; needed is one version of shardwise on all processes");
  }
  void require(bool holds, const char* problem) const {
    if (!holds) fail(problem);
  }

  std::span<const std::byte> part(std::uint64_t size) {
    if (rest_.size() < size) fail("it is cut off");
    const auto part = rest_.first(size);
    rest_ = rest_.subspan(size);
    return part;
  }

 private:
  std::span<const std::byte> rest_;
  std::string_view what_;  // a literal
};

}  // namespace shardwise::detail
