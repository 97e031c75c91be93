#include "completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>

#include "output.h"
#include "parse.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace {

bool is_group(const CLI::App& app) { return app.get_name().empty(); }

/// Also those in groups, but their --help.
std::vector<const CLI::Option*> all_options(const CLI::App& app) {
  std::vector<const CLI::Option*> options = app.get_options({});
  for (const CLI::App* group : app.get_subcommands({})) {
    if (!is_group(*group)) continue;
    for (const CLI::Option* option : all_options(*group)) {
      if (option != group->get_help_ptr()) options.push_back(option);
    }
  }
  return options;
}

/// Calls it for a command and all below it, outermost first, with the words that name each.
using CommandFunction = std::function<void(const CLI::App&, const std::string&)>;
void for_each_command(const CLI::App& app, const std::string& words, const CommandFunction& call) {
  call(app, words);
  for (const CLI::App* below : app.get_subcommands({})) {
    if (is_group(*below)) continue;
    for_each_command(*below, words + " " + below->get_name(), call);
  }
}

}  // namespace

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!is_group(*command)) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : all_options(app)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string arguments_of(std::string name, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) name += ' ' + option->get_name(true);
  }
  return name;
}

std::string bash_completion(const CLI::App& root) {
  std::string known, cases;
  for_each_command(root, root.get_name(), [&](const CLI::App& command, const std::string& words) {
    const std::vector<std::string> below = commands_of(command);
    known += fmt::format("{}'{}'", known.empty() ? "" : " | ", words);
    cases += fmt::format("    '{}') commands='{}' options='{}' ;;\n", words, fmt::join(below, " "),
                         fmt::join(options_of(command), " "));
  });
  return fmt::format(
      R"(# Completes the words of {0} in bash. Made by "{0} completion bash".
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command={0} commands= options= next i path= names=
  for ((i = 1; i < COMP_CWORD; ++i)); do
    next="$command ${{COMP_WORDS[i]}}"
    case $next in
      {1}) command=$next ;;
      *) [[ -z $path && ${{COMP_WORDS[i]}} != -* ]] && path=${{COMP_WORDS[i]}} ;;
    esac
  done
  case $command in
{2}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
    return
  fi
  if [[ -n $path ]]; then  # what stands after it: steps of the directory, names of tensors
    names=$({0} completion names "$command" "$path" "$word" 2> /dev/null)
  fi
  local IFS=$'\n'
  COMPREPLY=($(IFS=' '; compgen -W "$commands" -- "$word") $names)  # none: bash completes paths
}}
complete -o default -F _{0} {0}
)",
      root.get_name(), known, cases);
}

std::string names_after(std::span<char* const> words) {
  if (words.size() < 3) return {};
  const std::string command = words[0], path = words[1], begin = words[2];
  std::string text;
  const auto add = [&](const std::string& name) {
    const bool is_word = name.find_first_of(" \t\n'\"\\$`") == std::string::npos;
    const bool is_seen = one_line(name) == name;  // a shell would put it on the terminal
    if (is_word && is_seen && name.starts_with(begin)) text += name + "\n";
  };
  const auto is_one_of = [&](std::initializer_list<std::string_view> commands) {
    return std::ranges::find(commands, command.substr(command.find(' ') + 1)) != commands.end();
  };
  const bool takes_tensor = is_one_of({"inspect", "cat", "stats"});
  if (takes_tensor || is_one_of({"ls", "verify", "diff", "du", "parity", "rm", "pin", "export",
                                 "reshard", "bench restore"})) {
    for (const std::string& step : steps_of(path)) add(step);
  }
  if (takes_tensor) {
    const std::unique_ptr<BoxReader> reader = describe_tensors(chosen_path(path));
    for (const TensorInfo& tensor : reader->tensors()) add(tensor.name);
  }
  return text;
}

}  // namespace shardwise::tools
