#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

/// Appends numbers and texts, all processes of a job having the same byte order.
class Packer {
 public:
  void number(std::uint64_t value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void number(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void hash(const Hash128& hash) {
    number(hash.high);
    number(hash.low);
  }
  void text(std::string_view text) {
    number(std::uint64_t{text.size()});
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Takes them out again, in the same order. Throws invalid_argument where there is no more.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, part(sizeof value).data(), sizeof value);
    return value;
  }
  std::int64_t integer() { return static_cast<std::int64_t>(number()); }
  Hash128 hash() {
    const std::uint64_t high = number();
    return {.high = high, .low = number()};
  }
  std::string text() {
    const auto bytes = part(number());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> part(std::uint64_t size) {
    if (rest_.size() < size) {
      throw Error(
          ErrorCode::invalid_argument,
          "read a message of a save: it is cut off; all processes must run the same version "
          "of shardwise");
    }
    const auto part = rest_.first(size);
    rest_ = rest_.subspan(size);
    return part;
  }

  std::span<const std::byte> rest_;
};

/// A message with its hash after it, so that damage on the way is found.
inline Bytes sealed(Bytes message) {
  const std::uint64_t hash = hash64(message.data(), message.size());
  message.resize(message.size() + sizeof hash);
  std::memcpy(message.data() + message.size() - sizeof hash, &hash, sizeof hash);
  return message;
}

/// What sealed() was given; valid as long as `message`. Throws corrupt, naming `what`, if the hash
/// is not that of the message.
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

}  // namespace shardwise::detail
