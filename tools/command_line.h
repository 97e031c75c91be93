#pragma once

#include <functional>
#include <string>

namespace shardwise::tools {

/// The request that the words of a command line make.
struct CommandLine {
  std::string command;                          ///< "reshard", "bench save"; empty for the help
  std::function<int()> run = [] { return 0; };  ///< prints the result, returns the exit status
};

/// Throws BadUsage, naming the first word that is not understood and the nearest one that is.
CommandLine parse_command_line(int argc, char** argv);

}  // namespace shardwise::tools
