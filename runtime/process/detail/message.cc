#include "shardwise/runtime/process/detail/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#define XXH_INLINE_ALL  // so that programs that use runtime alone need no libxxhash
#include <xxhash.h>

namespace shardwise::detail {
namespace {

constexpr std::array kNames{"broadcast", "gather",   "all_gather",
                            "barrier",   "exchange", "agreement"};

// Marks the end of each message, so that foreign bytes are noticed.
constexpr std::uint32_t kEnd = 0x4d475753;

constexpr auto kLastCode = ErrorCode::cancelled;

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

Bytes pack_texts(std::span<const std::string> texts) {
  std::vector<Bytes> parts;
  for (const std::string& text : texts) {
    const auto bytes = std::as_bytes(std::span(text));
    parts.emplace_back(bytes.begin(), bytes.end());
  }
  return pack(parts);
}

std::vector<std::string> unpack_texts(std::span<const std::byte> message) {
  Unpacker unpacker(message);
  std::vector<std::string> texts;
  while (!unpacker.is_done()) texts.push_back(text_of(unpacker.take()));
  return texts;
}

// Largest size of a failure's text.
constexpr std::size_t kMostText = 64 << 10;

/// The text, or its begin and "...", cut between two characters of UTF-8.
std::string bounded(const std::string& text) {
  if (text.size() <= kMostText) return text;
  const std::string end = "...";
  std::size_t size = kMostText - end.size();
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size) + end;
}

/// Reads a number from 0 to `most`, in the form of std::to_string.
int number_of(const std::string& text, int most) {
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  if (number < 0 || number > most || std::to_string(number) != text) {
    refuse(fmt::format("found \"{}\", needed a number from 0 to {}", text, most));
  }
  return number;
}

}  // namespace

const char* name(Operation operation) {
  const auto i = static_cast<std::size_t>(operation);
  return i < kNames.size() ? kNames[i] : "an unknown operation";
}

void seal(Bytes& message) {
  append_number(message, std::uint64_t{XXH3_64bits(message.data(), message.size())});
}

void unseal(Bytes& message) {
  constexpr std::size_t kHash = sizeof(std::uint64_t);
  if (message.size() < kHash) {
    refuse(fmt::format("found {} bytes, needed at least {}", message.size(), kHash));
  }
  const std::size_t size = message.size() - kHash;
  if (number_at<std::uint64_t>(message.data() + size) != XXH3_64bits(message.data(), size)) {
    refuse(fmt::format("found {} bytes with another hash, needed those that were sent", size));
  }
  message.resize(size);
}

void seal(Bytes& message, const MessageMark& mark) {
  message.reserve(message.size() + kMarkBytes);
  append_number(message, mark.tag);
  append_number(message, static_cast<std::uint32_t>(mark.operation));
  append_number(message, kEnd);
  seal(message);
}

MessageMark unseal_marked(Bytes& message) {
  unseal(message);
  constexpr std::size_t kMark = 16;
  if (message.size() < kMark) {
    refuse(fmt::format("found {} bytes, needed a mark of {}", message.size(), kMark));
  }
  const std::byte* const at = message.data() + message.size() - kMark;
  const MessageMark mark{static_cast<Operation>(number_at<std::uint32_t>(at + 8)),
                         number_at<std::uint64_t>(at)};
  if (number_at<std::uint32_t>(at + 12) != kEnd) {
    refuse(fmt::format("found {} bytes without an end, needed a whole message", message.size()));
  }
  message.resize(message.size() - kMark);
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

Bytes encode(const CommonTask& task) {
  std::vector<std::string> texts{task.name};
  for (const auto& [name, value] : task.facts) {
    texts.push_back(name);
    texts.push_back(value);
  }
  return pack_texts(texts);
}

CommonTask decode_task(std::span<const std::byte> message) {
  std::vector<std::string> texts = unpack_texts(message);
  if (texts.size() % 2 == 0) {
    refuse(fmt::format("found {} texts, needed a name, and facts of two", texts.size()));
  }
  CommonTask task{std::move(texts[0]), {}};
  for (std::size_t i = 1; i < texts.size(); i += 2) {
    task.facts.emplace_back(std::move(texts[i]), std::move(texts[i + 1]));
  }
  return task;
}

std::string difference(const CommonTask& found, int from, const CommonTask& needed, int own) {
  std::string text;
  const auto add = [&](const std::string& what, const std::string& there, const std::string& here) {
    text += fmt::format("{}found {}{} on rank {}, needed {}, as on rank {}",
                        text.empty() ? "" : "; ", what, there, from, here, own);
  };
  if (found.name != needed.name) {
    add("", fmt::format("\"{}\"", found.name), fmt::format("\"{}\"", needed.name));
  }
  const bool same_facts = std::ranges::equal(
      found.facts, needed.facts, [](const auto& a, const auto& b) { return a.first == b.first; });
  if (!same_facts && text.empty()) {
    add("", fmt::format("{} facts", found.facts.size()), std::to_string(needed.facts.size()));
  }
  for (std::size_t i = 0; same_facts && i < needed.facts.size(); ++i) {
    const auto& [name, value] = needed.facts[i];
    if (found.facts[i].second != value) add(name + " ", found.facts[i].second, value);
  }
  return text;
}

Bytes encode(const Failure& failure) {
  std::vector<std::string> texts{
      failure.code ? std::to_string(static_cast<int>(*failure.code)) : "",
      std::to_string(failure.system_error), bounded(failure.text)};
  for (const int rank : failure.ranks) texts.push_back(std::to_string(rank));
  return pack_texts(texts);
}

Failure decode_failure(std::span<const std::byte> message) {
  std::vector<std::string> texts = unpack_texts(message);
  if (texts.size() < 3) refuse(fmt::format("found {} texts, needed at least 3", texts.size()));
  if (texts[2].size() > kMostText) {
    refuse(fmt::format("found a text of {} bytes, needed at most {}", texts[2].size(), kMostText));
  }
  Failure failure;
  if (!texts[0].empty()) {
    failure.code = static_cast<ErrorCode>(number_of(texts[0], static_cast<int>(kLastCode)));
  }
  failure.system_error = number_of(texts[1], std::numeric_limits<int>::max());
  failure.text = std::move(texts[2]);
  for (std::size_t i = 3; i < texts.size(); ++i) {
    failure.ranks.push_back(number_of(texts[i], std::numeric_limits<int>::max()));
  }
  return failure;
}

std::string missing_text(const std::vector<int>& ranks, int size,
                         std::chrono::milliseconds timeout) {
  constexpr std::size_t kMostNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return fmt::format("{} of {} did not come within {}", text, size, seconds_text(timeout));
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

}  // namespace shardwise::detail
