#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::tools {

/// What to write in place of a verb that other tools have, as "`shardwise inspect CHECKPOINT`
/// shows .."; empty for other words.
std::string_view advice_for_verb(std::string_view verb);

/// What to write in place of an option that a command has not: of its options `known`, the one that
/// means the same as another tool's ("--cast" for "--dtype") or is spelled nearly so; `usage` if
/// other tools give a file or folder by it.
std::string advice_for_option(std::string_view option, const std::vector<std::string>& known,
                              std::string_view usage);

}  // namespace shardwise::tools
