#include "shardwise/runtime/spmd/detail/html/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace shardwise::detail {
namespace {

/// Bytes of the text's first character; 0 if it is not UTF-8.
std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool is_overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool is_no_character =
      (first == 0xED && byte(1) > 0x9F) || (first == 0xF4 && byte(1) > 0x8F);
  return is_overlong || is_no_character ? 0 : bytes;
}

}  // namespace

void JsonWriter::begin_value() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  begin_value();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  text(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  begin_value();
  out_ += '"';
  while (!value.empty()) {
    const std::size_t bytes = utf8_bytes(value);
    const std::string_view character = value.substr(0, bytes == 0 ? 1 : bytes);
    value.remove_prefix(character.size());
    const auto first = static_cast<unsigned char>(character[0]);
    if (bytes == 0) {
      out_ += "\xEF\xBF\xBD";
    } else if (first < 0x20 || first == '<' || first == '>' || first == '&' || first == 0x7F) {
      out_ += fmt::format("\\u{:04x}", first);
    } else {
      if (first == '"' || first == '\\') out_ += '\\';
      out_ += character;
    }
  }
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) { return token(value ? "true" : "false"); }

JsonWriter& JsonWriter::null() { return token("null"); }

JsonWriter& JsonWriter::number(double value) {
  if (!std::isfinite(value)) return null();
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return token(text);
}

JsonWriter& JsonWriter::token(std::string_view json) {
  begin_value();
  out_ += json;
  return *this;
}

std::string html_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace shardwise::detail
