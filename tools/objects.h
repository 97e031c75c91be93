#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "shardwise/checkpoint/reader.h"

namespace shardwise::tools {

/// What a checkpoint holds beside its tensors and metrics, by name: Python's objects, or the
/// members of the JSON that a job of C++ gave. What is no JSON object has the name "objects".
nlohmann::ordered_json objects_of(const CheckpointReader& reader);

/// As JSON, in one line, of which no more than some 60 bytes are shown.
std::string short_text(const nlohmann::ordered_json& value);

}  // namespace shardwise::tools
