#include "shardwise/loader/detail/files/source_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/detail/files/source_format.h"
#include "shardwise/loader/detail/remote/remote_file.h"
#include "shardwise/loader/detail/remote/remote_names.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

// Other libraries' names for our options.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"length", "window"},
    {"seq_len", "window"},
    {"seq_length", "window"},
    {"block_size", "window"},
    {"context", "window"},
    {"max_length", "window"},
    {"sequence_length", "window"},
    {"overlap", "stride"},
    {"step", "stride"},
    {"type", "dtype"},
    {"offset", "header_bytes"},
    {"name", "field"},
    {"size", "height, width"},
    {"transpose", "exif_transpose"}};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "%2c" is ",".
std::string unescaped(const SourceText& source, std::string_view part) {
  std::string plain;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] != '%') {
      plain += part[i];
      continue;
    }
    const int high = i + 2 < part.size() ? hex_digit(part[i + 1]) : -1;
    const int low = i + 2 < part.size() ? hex_digit(part[i + 2]) : -1;
    if (high < 0 || low < 0) {
      source.fail("\"%\" without two hex digits, needed is \"%25\" for itself");
    }
    if (high < 2) source.fail("has an escape for a control character");
    plain += static_cast<char>(static_cast<unsigned char>(high << 4 | low));
    i += 2;
  }
  return plain;
}

/// A text with the URL of a web server, up to the URL's query: that may hold a signature.
std::string_view without_secrets(std::string_view text) {
  if (text.find("http://") == text.npos && text.find("https://") == text.npos) return text;
  return text.substr(0, std::min({text.find('?'), text.find("%3f"), text.find("%3F")}));
}

}  // namespace

void SourceText::expand() {
  std::vector<std::filesystem::path> files;
  for (std::filesystem::path& path : paths) {
    if (!is_remote(path)) {
      files.push_back(std::move(path));
      continue;
    }
    for (std::filesystem::path& file : remote_files(path)) files.push_back(std::move(file));
  }
  paths = std::move(files);
}

void SourceText::fail(std::string_view found) const {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("open source \"{}\": {}", shown_text(without_secrets(text)), one_line(found)));
}

SourceText parse_source_text(std::string_view text) {
  SourceText source;
  source.text = text;
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return static_cast<unsigned char>(c) < ' '; })) {
    source.fail("has a control character");
  }
  std::size_t colon = text.substr(0, text.find('?')).find(':');
  if (colon != text.npos && text.substr(colon).starts_with("://")) colon = text.npos;  // a URL
  if (colon != text.npos) source.format = text.substr(0, colon);
  const std::string_view rest = colon == text.npos ? text : text.substr(colon + 1);
  const std::size_t question = std::min(rest.find('?'), rest.size());
  for (const std::string_view path : split(rest.substr(0, question), ',')) {
    if (path.empty()) source.fail("has an empty path");
    source.paths.emplace_back(path_of_url(unescaped(source, path)));
  }
  if (question == rest.size()) return source;
  for (const std::string_view option : split(rest.substr(question + 1), '&')) {
    const std::size_t equals = option.find('=');
    if (equals == option.npos || equals == 0) {
      source.fail("has an option that is not NAME=VALUE");
    }
    std::string name = unescaped(source, option.substr(0, equals));
    for (const auto& [other, value] : source.options) {
      if (other == name) source.fail(fmt::format("has option \"{}\" twice", name));
    }
    source.options.emplace_back(std::move(name), unescaped(source, option.substr(equals + 1)));
  }
  return source;
}

std::optional<std::string> SourceText::take(std::string_view name) {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const auto& option) { return option.first == name; });
  if (found == options.end()) return std::nullopt;
  std::string value = std::move(found->second);
  options.erase(found);
  return value;
}

std::optional<std::int64_t> SourceText::take_count(std::string_view name) {
  const std::optional<std::string> value = take(name);
  if (!value) return std::nullopt;
  const std::optional<std::int64_t> count = parse_count(*value);
  if (!count) fail(fmt::format("{} is \"{}\", needed is a number from 0 on", name, *value));
  return count;
}

const std::filesystem::path& SourceText::path() const {
  if (paths.size() != 1) fail(fmt::format("has {} paths, needed is 1", paths.size()));
  return paths[0];
}

void SourceText::find_format() {
  for (const std::filesystem::path& path : paths) {
    const std::string_view found = source_format(path);
    if (found.empty()) {
      fail(fmt::format("\"{}\" does not tell its format, needed is FORMAT:PATH", shown_url(path)));
    }
    if (format.empty()) format = found;
    if (format == found) continue;
    fail(fmt::format("\"{}\" is {} and \"{}\" is {}, needed is one format for all",
                     paths[0].string(), format, path.string(), found));
  }
}

void SourceText::finish(std::string_view known) const {
  if (options.empty()) return;
  const std::string& name = options[0].first;
  for (const auto& [other, ours] : kOtherNames) {
    if (name != other || known.find(ours) == known.npos) continue;
    fail(fmt::format("has an option \"{}\", needed is \"{}\"; the options of {} are {}", name, ours,
                     format, known));
  }
  fail(fmt::format("has an option \"{}\"; the options of {} are {}", name, format, known));
}

FieldType parse_field_type(const SourceText& source, std::string_view field,
                           std::string_view type) {
  FieldType result;
  if (type == "text") return {DType::u8, Shape{0}, true, true};
  const std::size_t bracket = std::min(type.find('['), type.size());
  if (type.substr(0, bracket) != "?") {
    try {
      result.dtype = parse_dtype(type.substr(0, bracket));
    } catch (const Error& error) {
      source.fail(fmt::format("field \"{}\": {}", field, error.what()));
    }
  }
  if (bracket == type.size()) return result;
  std::string_view dims = type.substr(bracket + 1);
  if (!dims.ends_with(']')) source.fail(fmt::format("field \"{}\" has no \"]\"", field));
  dims.remove_suffix(1);
  result.shape.emplace();
  for (const std::string_view dim : split(dims, ',')) {
    result.ragged = result.ragged || (result.shape->empty() && trim(dim).empty());
    const std::optional<std::int64_t> extent =
        result.ragged && result.shape->empty() ? 0 : parse_count(trim(dim));
    if (!extent || result.shape->size() == kMaxRank) {
      source.fail(
          fmt::format("field \"{}\" has the shape \"[{}]\", needed is up to {} extents, the "
                      "first may be left out",
                      field, dims, kMaxRank));
    }
    result.shape->push_back(*extent);
  }
  return result;
}

}  // namespace shardwise::detail
