#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::detail {

/// Metadata of safetensors, in the order of the file, so that it is written as it was read. Keys
/// are unique.
using StringMap = std::vector<std::pair<std::string, std::string>>;

/// A key that occurs twice; null if all are unique.
const std::string* repeated_key(const StringMap& map);

/// The value of a key; null if it is missing.
const std::string* find_value(const StringMap& map, std::string_view key);

/// Reads a JSON object of strings. If `member` is not empty, the text is an object with only that
/// member, which is the object of strings. Absent for any other text, also if a key occurs twice.
std::optional<StringMap> parse_string_map(std::string_view json, std::string_view member = {});

/// {"key":"value"}, as the safetensors library writes it.
std::string to_json(const StringMap& map);

/// Quotes and escapes a text. Throws invalid_argument unless it is UTF-8.
std::string to_json(std::string_view text);

/// ModelReader::user_json() of this metadata.
std::string user_json_of(const StringMap& metadata);

/// Inverse: the metadata that stand for a checkpoint's user_json.
StringMap metadata_of(const std::string& user_json);

}  // namespace shardwise::detail
