#include "shardwise/runtime/process/detail/message.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::array kNames{"broadcast", "gather",   "all_gather",
                            "barrier",   "exchange", "agreement"};

// Ends each message, so that foreign bytes are noticed.
constexpr std::uint32_t kEnd = 0x4d475753;

template <class Number>
void append_number(Bytes& bytes, Number number) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof number);
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

template <class Number>
Number number_at(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

[[noreturn]] void refuse(const std::string& found_and_needed) {
  throw Error(ErrorCode::corrupt, "read a message: " + found_and_needed);
}

/// Takes byte strings from the front, each after its size.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> packed) : left_(packed) {}

  bool is_done() const { return left_.empty(); }

  std::span<const std::byte> take() {
    constexpr std::size_t kSize = sizeof(std::uint64_t);
    if (left_.size() < kSize) {
      refuse(fmt::format("found {} bytes, needed a size of {}", left_.size(), kSize));
    }
    const auto size = number_at<std::uint64_t>(left_.data());
    left_ = left_.subspan(kSize);
    if (size > left_.size()) {
      refuse(fmt::format("found {} bytes, needed {}", left_.size(), size));
    }
    const std::span<const std::byte> part = left_.first(size);
    left_ = left_.subspan(size);
    return part;
  }

 private:
  std::span<const std::byte> left_;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

const char* name(Operation operation) {
  const auto i = static_cast<std::size_t>(operation);
  return i < kNames.size() ? kNames[i] : "an unknown operation";
}

void seal(Bytes& message, const MessageMark& mark) {
  message.reserve(message.size() + kMarkBytes);
  append_number(message, mark.tag);
  append_number(message, static_cast<std::uint32_t>(mark.operation));
  append_number(message, kEnd);
}

MessageMark unseal(Bytes& message) {
  if (message.size() < kMarkBytes) {
    refuse(fmt::format("found {} bytes, needed at least {}", message.size(), kMarkBytes));
  }
  const std::byte* const at = message.data() + message.size() - kMarkBytes;
  const MessageMark mark{static_cast<Operation>(number_at<std::uint32_t>(at + 8)),
                         number_at<std::uint64_t>(at)};
  if (number_at<std::uint32_t>(at + 12) != kEnd) {
    refuse(fmt::format("found {} bytes without an end, needed a whole message", message.size()));
  }
  message.resize(message.size() - kMarkBytes);
  return mark;
}

Bytes pack(std::span<const Bytes> parts) {
  std::size_t size = 0;
  for (const Bytes& part : parts) size += sizeof(std::uint64_t) + part.size();
  Bytes packed;
  packed.reserve(size + kMarkBytes);
  for (const Bytes& part : parts) {
    append_number(packed, std::uint64_t{part.size()});
    packed.insert(packed.end(), part.begin(), part.end());
  }
  return packed;
}

std::vector<Bytes> unpack(std::span<const std::byte> packed, std::size_t count) {
  Unpacker unpacker(packed);
  std::vector<Bytes> parts;
  while (parts.size() < count) {
    const std::span<const std::byte> part = unpacker.take();
    parts.emplace_back(part.begin(), part.end());
  }
  if (!unpacker.is_done()) {
    refuse(fmt::format("found bytes after the last of {} parts, needed none", count));
  }
  return parts;
}

Bytes encode_facts(const std::string& subject, std::span<const ProcessGroup::Fact> facts) {
  std::vector<Bytes> parts{bytes_of(subject)};
  for (const ProcessGroup::Fact& fact : facts) {
    parts.push_back(bytes_of(fact.name));
    append_number(parts.emplace_back(), fact.value);
  }
  return pack(parts);
}

Facts decode_facts(std::span<const std::byte> message) {
  Unpacker unpacker(message);
  Facts facts{text_of(unpacker.take()), {}};
  while (!unpacker.is_done()) {
    std::string name = text_of(unpacker.take());
    const std::span<const std::byte> value = unpacker.take();
    if (value.size() != sizeof(std::uint64_t)) {
      refuse(fmt::format("found a number of {} bytes, needed {}", value.size(),
                         sizeof(std::uint64_t)));
    }
    facts.facts.emplace_back(std::move(name), number_at<std::uint64_t>(value.data()));
  }
  return facts;
}

}  // namespace shardwise::detail
