#pragma once

#include <cstddef>
#include <string>

namespace shardwise::detail {

/// The standard output of a shell's command. The command's text and output stay out of
/// messages. Throws io if it fails, writes more than `most_bytes`, or runs longer than `most_ms`;
/// then it is killed, with its children.
std::string command_output(const std::string& command, std::size_t most_bytes, int most_ms);

}  // namespace shardwise::detail
