#include "shardwise/storage/utf8.h"

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

void append_utf8(unsigned code_point, std::string& out) {
  const auto put = [&](unsigned byte) {
    out += static_cast<char>(static_cast<unsigned char>(byte));
  };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3f));
  } else {
    put(0xf0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3f));
    put(0x80 | (code_point >> 6 & 0x3f));
  }
  put(0x80 | (code_point & 0x3f));
}

}  // namespace shardwise
