#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::tools {

/// Called with each line that is printed, without its end; may be null.
using LineFunction = std::function<void(std::string_view line)>;

/// The message for a package that is not there, or has broken down: given how the interpreter has
/// ended.
using PackageProblem = std::function<std::string(const std::string& end)>;

/// Runs a module of Shardwise's Python package, for work that only packages of Python can do.
/// SHARDWISE_PYTHON names the interpreter; it is python3 else. Returns the last line that it has
/// printed. Throws the package's errors; unsupported, as `problem` says; and cancelled if the
/// user interrupts `operation`: the caller then removes the child's files.
std::string run_package(std::string_view module, std::vector<std::string> arguments,
                        std::string_view operation, const PackageProblem& problem,
                        const LineFunction& line = nullptr);

}  // namespace shardwise::tools
