#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace shardwise::tools {

// The declared commands and options in other forms than CLI11's help.

/// Names of the commands right below this one.
std::vector<std::string> commands_of(const CLI::App& app);

/// Long names of its options, as "--mesh", also of those in groups.
std::vector<std::string> options_of(const CLI::App& app);

/// Its name and the words that follow without an option, as "export source target".
std::string arguments_of(std::string name, const CLI::App& app);

/// A manual page in the macros of man(7), of the root or a command of it, which is called by these
/// words: "shardwise bench save".
std::string man_page(const CLI::App& root, const CLI::App& command, const std::string& words);

/// All pages.
struct ManPage {
  std::string name;  ///< "shardwise-bench-save"
  std::string text;
};
std::vector<ManPage> man_pages(const CLI::App& root);

/// A script for bash that completes commands and options, and paths where neither is asked for.
std::string bash_completion(const CLI::App& root);

}  // namespace shardwise::tools
