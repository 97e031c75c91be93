#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// Writes JSON, one value after another, in UTF-8: invalid bytes become U+FFFD. Its texts never end
/// or begin a tag of HTML, so that it may be part of a page: "<", ">" and "&" are escaped.
/// Thread-compatible.
///
///   JsonWriter json;
///   json.open('{').key("bytes").number(4).key("axes").open('[').text("data").close(']').close('}');
class JsonWriter {
 public:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& key(std::string_view name);
  JsonWriter& text(std::string_view value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  JsonWriter& number(std::integral auto value) { return token(std::to_string(value)); }

  /// The shortest text that reads back as the same number, with a point; null if it is not finite.
  JsonWriter& number(double value);

  /// A whole value that is JSON already.
  JsonWriter& token(std::string_view json);

  /// Requires that all brackets are closed.
  const std::string& done() const { return out_; }

 private:
  void begin_value();

  std::string out_;
  bool needs_comma_ = false;
};

/// As a text of HTML.
std::string html_text(std::string_view text);

}  // namespace shardwise::detail
