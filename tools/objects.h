#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shardwise/checkpoint/reader.h"

namespace shardwise::tools {

/// Value of a JSON text. A whole number beyond 64 bits, which JSON has and doubles have not, is a
/// binary value of its digits.
nlohmann::ordered_json exact_json(std::string_view text);

/// As JSON, in one line; the inverse of exact_json().
std::string exact_text(const nlohmann::ordered_json& value);

/// Python's objects, by name: the member "objects" of the checkpoint's `objects`. Empty without it.
nlohmann::ordered_json objects_of(const CheckpointReader& reader);

/// An object in one line, for people: values of JSON as JSON, others as in Python: (1,2), nan,
/// date(2026-11-27), Point(x=1,y=2).
std::string shown_text(const nlohmann::ordered_json& value);

/// shown_text(), cut to some 60 bytes.
std::string short_text(const nlohmann::ordered_json& value);

}  // namespace shardwise::tools
