#include "shardwise/storage/object/detail/xml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostDepth = 16, kMostName = 100;
constexpr std::string_view kXmlBlanks = " \t\r\n";

void append_utf8(std::string& text, std::uint32_t code) {
  const auto byte = [&text](std::uint32_t bits) { text += static_cast<char>(bits); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | code >> 6);
    byte(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }
}

}  // namespace

void XmlReader::refuse(std::string_view found) const {
  throw Error(ErrorCode::corrupt, fmt::format("{}: found {} at byte {} of the answer, needed XML",
                                              operation_, found, at_ + 1));
}

bool XmlReader::next() {
  while (at_ < text_.size()) {
    if (text_[at_] != '<') {
      take_characters();
    } else if (!skip("<?", "?>") && !skip("<!--", "-->") && take_tag()) {
      return true;
    }
  }
  if (!lengths_.empty()) refuse("an end inside an element");
  if (!has_root_) refuse("no element");
  return false;
}

bool XmlReader::skip(std::string_view begin, std::string_view end) {
  if (!text_.substr(at_).starts_with(begin)) return false;
  const std::size_t found = text_.find(end, at_ + begin.size());
  if (found == text_.npos) refuse("a comment without an end");
  at_ = found + end.size();
  return true;
}

/// True if an element has ended.
bool XmlReader::take_tag() {
  std::size_t end = at_ + 1;
  for (char quote = '\0'; end < text_.size() && (quote != '\0' || text_[end] != '>'); ++end) {
    const char c = text_[end];
    if (quote != '\0' ? c == quote : c == '"' || c == '\'') quote = quote != '\0' ? '\0' : c;
  }
  if (end >= text_.size()) refuse("a tag without an end");
  std::string_view tag = text_.substr(at_ + 1, end - at_ - 1);
  const bool is_end = tag.starts_with('/'), is_empty = !is_end && tag.ends_with('/');
  if (is_end) tag.remove_prefix(1);
  if (is_empty) tag.remove_suffix(1);
  std::string_view name = tag.substr(0, tag.find_first_of(kXmlBlanks));
  const auto is_letter = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':' || c >= 0x80;
  };
  if (name.empty() || name.size() > kMostName || !std::ranges::all_of(name, is_letter)) {
    refuse("a tag without a name");
  }
  name.remove_prefix(name.find(':') + 1);  // npos + 1 is 0
  if (is_end) {
    at_ = end + 1;
    end_element(name);
    return true;
  }
  begin_element(name);
  at_ = end + 1;
  if (is_empty) end_element(name);
  return is_empty;
}

void XmlReader::begin_element(std::string_view name) {
  if (lengths_.empty() && has_root_) refuse("a second outermost element");
  if (lengths_.size() == kMostDepth) refuse("elements nested too deep");
  has_root_ = true;
  lengths_.push_back(open_.size());
  if (!open_.empty()) open_ += '/';
  open_ += name;
  characters_.clear();
  holds_elements_ = false;
}

void XmlReader::end_element(std::string_view name) {
  if (lengths_.empty()) refuse("an end of no element");
  const std::size_t length = lengths_.back();
  if (std::string_view(open_).substr(length == 0 ? 0 : length + 1) != name) {
    refuse("an end of another element");
  }
  if (holds_elements_) characters_.clear();  // those between the elements inside
  holds_elements_ = true;                    // the one around this one does
  path_ = open_;
  open_.resize(length);
  lengths_.pop_back();
}

void XmlReader::take_characters() {
  while (at_ < text_.size() && text_[at_] != '<') {
    if (text_[at_] == '&') {
      take_entity();
      continue;
    }
    const std::size_t end = std::min(text_.find_first_of("<&", at_), text_.size());
    const std::string_view part = text_.substr(at_, end - at_);
    if (lengths_.empty() && part.find_first_not_of(kXmlBlanks) != part.npos) {
      refuse("text outside of an element");
    }
    characters_ += part;
    at_ = end;
  }
}

void XmlReader::take_entity() {
  if (lengths_.empty()) refuse("text outside of an element");
  const std::size_t end = text_.substr(at_, 12).find(';');
  if (end == text_.npos) refuse("an entity without an end");
  std::string_view name = text_.substr(at_ + 1, end - 1);
  struct Named {
    std::string_view name;
    char c;
  };
  static constexpr Named kNamed[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  const auto* const found = std::ranges::find(kNamed, name, &Named::name);
  if (found != std::end(kNamed)) {
    characters_ += found->c;
  } else {
    const int base = name.starts_with("#x") ? 16 : 10;
    std::uint32_t code = 0;
    name.remove_prefix(std::min<std::size_t>(base == 16 ? 2 : 1, name.size()));
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), code, base);
    const bool is_whole = error == std::errc() && rest == name.data() + name.size();
    const bool is_character = code != 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    if (text_[at_ + 1] != '#' || !is_whole || !is_character) refuse("an unknown entity");
    append_utf8(characters_, code);
  }
  at_ += end + 1;
}

}  // namespace shardwise::detail
