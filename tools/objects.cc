#include "objects.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstddef>
#include <functional>
#include <system_error>
#include <vector>

namespace shardwise::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Whole numbers of more digits than each 64-bit number has become strings that begin with `mark`.
std::string with_marked_numbers(std::string_view text, std::string_view mark) {
  constexpr std::size_t kDigits = 18;
  std::string marked;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string && c == '\\' && at + 1 < text.size()) marked += text[at++];
    if (c == '"') in_string = !in_string;
    if (in_string || (c != '-' && std::isdigit(static_cast<unsigned char>(c)) == 0)) {
      marked += text[at];
      continue;
    }
    const std::string_view number =
        text.substr(at, text.find_first_not_of("+-.0123456789eE", at) - at);
    const bool is_long =
        number.size() > kDigits && number.find_first_of(".eE") == std::string_view::npos;
    marked += is_long ? fmt::format("\"{}{}\"", mark, number) : std::string(number);
    at += number.size() - 1;
  }
  return marked;
}

void unmark(Json& value, std::string_view mark) {
  if (value.is_structured()) {
    for (Json& inner : value) unmark(inner, mark);
  }
  if (!value.is_string()) return;
  const std::string& text = value.get_ref<const std::string&>();
  if (!text.starts_with(mark)) return;
  const std::string digits = text.substr(mark.size());
  const Json number = Json::parse(digits, nullptr, false);
  value = number.is_number_integer()
              ? number
              : Json::binary(std::vector<std::uint8_t>(digits.begin(), digits.end()));
}

using Text = std::function<std::string(const Json&)>;

std::string leaf_text(const Json& value) {
  if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string joined(const Json& values, const Text& text) {
  std::string all;
  for (const Json& value : values) all += (all.empty() ? "" : ",") + text(value);
  return all;
}

std::string members(const Json& object, const Text& text) {
  std::string all;
  for (const auto& [name, value] : object.items()) {
    all += (all.empty() ? "" : ",") + leaf_text(name) + ":" + text(value);
  }
  return "{" + all + "}";
}

bool are_pairs(const Json& value) {
  if (!value.is_array()) return false;
  for (const Json& pair : value) {
    if (!pair.is_array() || pair.size() != 2) return false;
  }
  return true;
}

std::string pairs_text(const Json& pairs) {
  return "{" +
         joined(pairs,
                [](const Json& pair) { return shown_text(pair[0]) + ":" + shown_text(pair[1]); }) +
         "}";
}

/// Without quotes.
std::string plain_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : shown_text(value);
}

/// The words for "module:Outer.Class".
std::string class_text(const Json& name) {
  const std::string text = plain_text(name);
  return text.substr(text.find(':') + 1);
}

/// The text of a container of the kind that Python's package writes.
std::string kept_text(const Json& kind, const Json& pairs) {
  if (kind.is_object()) {
    const bool is_tuple = kind.contains("namedtuple") && kind.contains("fields") &&
                          kind["fields"].is_array() && kind["fields"].size() == pairs.size();
    std::size_t place = 0;
    const auto field = [&](const Json& pair) {
      const Json& name = is_tuple ? kind["fields"][place++] : pair[0];
      return plain_text(name) + "=" + shown_text(pair[1]);
    };
    return (kind.empty() ? "" : class_text(kind.front())) + "(" + joined(pairs, field) + ")";
  }
  const Json& name = kind.is_array() && !kind.empty() ? kind[0] : kind;
  if (name != "deque") return class_text(name) + pairs_text(pairs);
  return "deque[" + joined(pairs, [](const Json& pair) { return shown_text(pair[1]); }) + "]";
}

/// The bytes in hex of a string that has lone surrogates.
std::string text_of_hex(const std::string& hex) {
  std::string text;
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(&hex[at], &hex[at] + 2, byte, 16);
    if (error != std::errc() || end != &hex[at] + 2) return hex;
    text += static_cast<char>(byte);
  }
  return '"' + text + '"';
}

/// The text of a value that JSON lacks, by its tag without the '$'.
std::string tagged_text(const std::string& tag, const Json& inner) {
  const bool is_list = inner.is_array();
  if (tag == "text" && inner.is_string()) return text_of_hex(inner.get<std::string>());
  if (tag == "items" && are_pairs(inner)) return pairs_text(inner);
  if (tag == "kept" && is_list && inner.size() == 2 && are_pairs(inner[1])) {
    return kept_text(inner[0], inner[1]);
  }
  if (tag == "enum" && is_list && inner.size() == 3 && inner[1].is_string()) {
    return class_text(inner[0]) + "." + inner[1].get<std::string>();
  }
  if (tag == "path" && is_list && inner.size() == 2) {
    return class_text(inner[0]) + "(" + shown_text(inner[1]) + ")";
  }
  if (tag == "array" && is_list && inner.size() == 3) {
    return "array(" + class_text(inner[0]) + " " + leaf_text(inner[1]) + ")";
  }
  const bool holds_any = tag == "tuple" || tag == "set" || tag == "frozenset" || tag == "slice";
  std::string all = is_list             ? joined(inner, holds_any ? shown_text : plain_text)
                    : inner.is_string() ? inner.get<std::string>()
                    : inner.is_null()   ? ""
                                        : shown_text(inner);
  if (tag == "float" || tag == "int" || tag == "torch") return all;
  if (tag == "tuple" && is_list) return "(" + all + (inner.size() == 1 ? ",)" : ")");
  if (tag == "set" && !all.empty()) return "{" + all + "}";
  return tag + "(" + all + ")";
}

}  // namespace

Json exact_json(std::string_view text) {
  std::string mark = "\\u0001";  // that no string of the text begins with
  while (text.find(mark) != std::string_view::npos) mark += mark;
  Json value = Json::parse(with_marked_numbers(text, mark));
  unmark(value, std::string(mark.size() / 6, '\x01'));
  return value;
}

std::string exact_text(const Json& value) {
  if (value.is_array()) return "[" + joined(value, exact_text) + "]";
  return value.is_object() ? members(value, exact_text) : leaf_text(value);
}

Json objects_of(const CheckpointReader& reader) {
  if (reader.objects_json().empty()) return Json::object();
  const Json document = exact_json(reader.objects_json());
  const bool has_objects = document.is_object() && document.contains("objects");
  return has_objects && document["objects"].is_object() ? document["objects"] : Json::object();
}

std::string shown_text(const Json& value) {
  if (value.is_array()) return "[" + joined(value, shown_text) + "]";
  if (!value.is_object()) return leaf_text(value);
  if (value.size() == 1 && value.begin().key().starts_with('$')) {
    return tagged_text(value.begin().key().substr(1), value.front());
  }
  return members(value, shown_text);
}

std::string short_text(const Json& value) {
  constexpr std::size_t kMostShown = 60;
  std::string text = shown_text(value);
  if (text.size() <= kMostShown) return text;
  std::size_t end = kMostShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "..";
}

}  // namespace shardwise::tools
