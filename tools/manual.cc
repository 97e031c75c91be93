#include "manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>

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

/// Text that troff prints as it is. Lines must not begin with what it takes for a request.
std::string roff(std::string_view text) {
  std::string escaped;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) escaped += "\\&";
    begins_line = c == '\n';
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", roff(text)); }
std::string italic(std::string_view text) { return fmt::format("\\fI{}\\fR", roff(text)); }

std::string page_name(std::string words) {
  std::ranges::replace(words, ' ', '-');
  return words;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// "INT" of the type "INT:0 or more", and "0 or more".
std::pair<std::string, std::string> value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t colon = type.find(':');
  if (colon == std::string::npos) return {type, ""};
  return {type.substr(0, colon), type.substr(colon + 1)};
}

/// "-h, --help", "--mesh TEXT", "root"
std::string tag(const CLI::Option& option) {
  if (option.get_positional()) return italic(option.get_name());
  std::string names;
  for (const std::string& name : option.get_snames()) {
    names += (names.empty() ? "" : ", ") + bold("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    names += (names.empty() ? "" : ", ") + bold("--" + name);
  }
  if (takes_value(option)) names += " " + italic(value_of(option).first);
  return names;
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  names.reserve(options.size());
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string entry(const CLI::Option& option) {
  std::string text = option.get_description();
  const auto add = [&text](const std::string& sentence) {
    if (!text.empty() && !text.ends_with('.')) text += '.';
    text += (text.empty() ? "" : " ") + sentence;
  };
  if (option.get_required()) add("Required.");
  if (takes_value(option)) {
    if (const std::string allowed = value_of(option).second; !allowed.empty()) {
      add(fmt::format("Allowed: {}.", allowed));
    }
    if (!option.get_default_str().empty()) {
      add(fmt::format("Default: {}.", option.get_default_str()));
    }
  }
  if (!option.get_needs().empty()) add(fmt::format("Needs {}.", names_of(option.get_needs())));
  if (!option.get_excludes().empty()) {
    add(fmt::format("Not with {}.", names_of(option.get_excludes())));
  }
  return fmt::format(".TP\n{}\n{}\n", tag(option), roff(text));
}

std::string section(std::string_view title, const std::string& text) {
  return text.empty() ? "" : fmt::format(".SH {}\n{}", title, text);
}

std::string synopsis(const CLI::App& command, const std::string& name) {
  std::string text = bold(name);
  std::string arguments;
  for (const CLI::Option* option : all_options(command)) {
    if (!option->get_positional()) {
      if (option->get_required()) text += " " + tag(*option);
      continue;
    }
    const bool many = option->get_items_expected_max() > 1;
    arguments += " " + italic(option->get_name()) + (many ? " ..." : "");
  }
  text += " [" + italic("options") + "]" + arguments;
  if (!commands_of(command).empty()) text += " " + italic("command") + " ...";
  return text + "\n";
}

/// The lines of the help's end, which are examples, without their heading and indent.
std::string examples(const CLI::App& command) {
  constexpr std::string_view kHeading = "Example:\n";
  const std::string footer = command.get_footer();
  if (!footer.starts_with(kHeading)) return {};
  std::string lines;
  std::string_view rest = std::string_view(footer).substr(kHeading.size());
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.starts_with("  ")) line.remove_prefix(2);
    lines += roff(line) + "\n";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return ".nf\n" + lines + ".fi\n";
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

std::string man_page(const CLI::App& root, const CLI::App& command, const std::string& words) {
  const std::string& program = root.get_name();
  const std::string name = page_name(words);
  std::string title = name;
  std::ranges::transform(title, title.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string arguments, options, commands, pages;
  for (const CLI::Option* option : all_options(command)) {
    (option->get_positional() ? arguments : options) += entry(*option);
  }
  for_each_command(command, words, [&](const CLI::App& below, const std::string& its_words) {
    if (&below == &command) return;
    commands += fmt::format(".TP\n{}\n{}\n", bold(its_words), roff(below.get_description()));
    pages += fmt::format("{}.BR {} (1)", pages.empty() ? "" : ",\n", roff(page_name(its_words)));
  });
  if (&command != &root) {
    pages = fmt::format(".BR {} (1){}{}", roff(program), pages.empty() ? "" : ",\n", pages);
  }
  return fmt::format(".TH \"{}\" 1 \"\" \"{} {}\"\n", roff(title), program, SHARDWISE_VERSION) +
         section("NAME", fmt::format("{} \\- {}\n", roff(name), roff(command.get_description()))) +
         section("SYNOPSIS", synopsis(command, words)) + section("ARGUMENTS", arguments) +
         section("COMMANDS", commands) + section("OPTIONS", options) +
         section("EXIT STATUS", roff(root.get_footer()) + "\n") +
         section("EXAMPLES", examples(command)) + section("SEE ALSO", pages + "\n");
}

std::vector<ManPage> man_pages(const CLI::App& root) {
  std::vector<ManPage> pages;
  for_each_command(root, root.get_name(), [&](const CLI::App& command, const std::string& words) {
    pages.push_back({page_name(words), man_page(root, command, words)});
  });
  return pages;
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

}  // namespace shardwise::tools
