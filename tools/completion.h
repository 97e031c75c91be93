#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

namespace shardwise::tools {

/// Names of the commands right below this one.
std::vector<std::string> commands_of(const CLI::App& app);

/// Long names of its options, as "--mesh", also of those in groups.
std::vector<std::string> options_of(const CLI::App& app);

/// Its name and the words that follow without an option, as "export source target".
std::string arguments_of(std::string name, const CLI::App& app);

/// A script for bash that completes commands and options, and paths where neither is asked for.
std::string bash_completion(const CLI::App& root);

/// Completions after a path, line by line, for the script of bash_completion(): steps of a root,
/// names of tensors. The words are a command, a path and the next word's beginning: "shardwise
/// cat", "run", "h.0". Throws as the commands do.
std::string names_after(std::span<char* const> words);

}  // namespace shardwise::tools
