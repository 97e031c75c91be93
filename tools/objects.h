#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "shardwise/checkpoint/reader.h"

namespace shardwise::tools {

/// Python's objects, by name: the member "objects" of what is saved beside the tensors. Empty if
/// there is none.
nlohmann::ordered_json objects_of(const CheckpointReader& reader);

/// As JSON, in one line, of which no more than some 60 bytes are shown.
std::string short_text(const nlohmann::ordered_json& value);

}  // namespace shardwise::tools
