#pragma once

#include <span>
#include <string>

namespace shardwise::tools {

/// What may stand after a path, line by line, for the script of bash_completion(): steps of a root,
/// names of tensors. The words are a command, a path and how the next word begins: "shardwise cat",
/// "run", "h.0". Throws as the commands do.
std::string names_after(std::span<char* const> words);

}  // namespace shardwise::tools
