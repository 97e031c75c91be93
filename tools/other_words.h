#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::tools {

/// Our command for a verb of other tools, as "`shardwise inspect CHECKPOINT` shows .."; empty for
/// other words.
std::string_view advice_for_verb(std::string_view verb);

/// Our option for one that a command lacks: the one of its options `known` that means the same as
/// another tool's ("--cast" for "--dtype") or is spelled nearly so; `usage` if other tools give a
/// file or folder by it.
std::string advice_for_option(std::string_view option, const std::vector<std::string>& known,
                              std::string_view usage);

}  // namespace shardwise::tools
