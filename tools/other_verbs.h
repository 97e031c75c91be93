#pragma once

#include <string_view>

namespace shardwise::tools {

/// What to write in place of a verb that other tools have, as "`shardwise inspect CHECKPOINT`
/// shows .."; empty for other words.
std::string_view advice_for_verb(std::string_view verb);

}  // namespace shardwise::tools
