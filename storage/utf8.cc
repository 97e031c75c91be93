#include "shardwise/storage/utf8.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shardwise {
namespace {

bool is_ascii(const char* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return (word & 0x8080808080808080) == 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  std::size_t at = 0;
  const auto continues = [&](std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i) {
      if (at + i >= text.size() || (static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) {
        return false;
      }
    }
    return true;
  };
  while (at < text.size()) {
    if (text.size() - at >= 8 && is_ascii(text.data() + at)) {
      at += 8;
      continue;
    }
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const std::size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || !continues(more)) return false;
    const auto second = static_cast<unsigned char>(text[at + 1]);
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
      return false;
    }
    at += 1 + more;
  }
  return true;
}

void append_json(std::string& json, std::string_view text) {
  json += '"';
  for (const char c : text) {
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    if (const std::size_t at = kShort.find(c); at != kShort.npos) {
      json += '\\';
      json += kLetters[at];
    } else if (static_cast<unsigned char>(c) < ' ') {
      json += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      json += c;
    }
  }
  json += '"';
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 100;
  return fmt::format("{:?}{}", text.substr(0, kMost), text.size() > kMost ? ".." : "");
}

}  // namespace shardwise
