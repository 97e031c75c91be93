#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::detail {

/// Metadata of safetensors, in the order of the file, so that it is written as it was read. No key
/// is there twice.
using StringMap = std::vector<std::pair<std::string, std::string>>;

/// A key that is there twice; null if none is.
const std::string* repeated_key(const StringMap& map);

/// The value of a key; null if there is none.
const std::string* find_value(const StringMap& map, std::string_view key);

/// A JSON object of strings; or, if `member` is not empty, of an object that has only that member
/// the object of strings in it. Absent for any other text, also if a key is there twice.
std::optional<StringMap> parse_string_map(std::string_view json, std::string_view member = {});

/// {"key":"value"}, as the safetensors library writes it.
std::string to_json(const StringMap& map);

/// In quotes, with escapes. Throws invalid_argument for what is not UTF-8.
std::string to_json(std::string_view text);

/// ModelReader::user_json() of this metadata.
std::string user_json_of(const StringMap& metadata);

/// Inverse: the metadata that stand for a checkpoint's user_json.
StringMap metadata_of(const std::string& user_json);

}  // namespace shardwise::detail
