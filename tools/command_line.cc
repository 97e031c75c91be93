#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "completion.h"
#include "other_words.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools {
namespace {

constexpr std::string_view kHelp = "help", kCompletion = "completion";

void declare(CLI::App& app, Run& run) {
  app.set_version_flag("--version", std::string(SHARDWISE_VERSION));
  app.require_subcommand(0, 1);  // a missing one is reported after words that are no command
  for (const auto declare_command :
       {declare_shards, declare_explain, declare_plan,    declare_ls,     declare_inspect,
        declare_verify, declare_parity,  declare_diff,    declare_cat,    declare_stats,
        declare_du,     declare_tiers,   declare_rm,      declare_pin,    declare_unpin,
        declare_gc,     declare_cp,      declare_reshard, declare_import, declare_export,
        declare_batches}) {
    declare_command(app, run);
  }
  CLI::App& bench =
      *app.add_subcommand("bench", "Measure how fast checkpoints are on a file system");
  bench.require_subcommand(0, 1);
  bench.footer("Example:\n  shardwise bench save /mnt/fast --codec zstd");
  declare_bench_save(bench, run);
  declare_bench_restore(bench, run);
  // To be listed and suggested; they are recognised before the others are parsed.
  app.add_subcommand(std::string(kCompletion),
                     "Print what completes these words in bash: . <(shardwise completion bash)");
  app.add_subcommand(std::string(kHelp), "Show the options of a command: shardwise help reshard");
}

/// The commands that the words name, outermost first: bench, save.
std::vector<const CLI::App*> path_of(const CLI::App& app) {
  std::vector<const CLI::App*> path{&app};
  const auto is_named = [](const CLI::App* command) { return !command->get_name().empty(); };
  while (true) {
    const std::vector<CLI::App*> below = path.back()->get_subcommands();
    const auto next = std::find_if(below.begin(), below.end(), is_named);
    if (next == below.end()) return path;
    path.push_back(*next);
  }
}

std::string name_of(std::span<const CLI::App* const> path) {
  std::string name;
  for (const CLI::App* command : path.subspan(1)) {
    name += (name.empty() ? "" : " ") + command->get_name();
  }
  return name;
}

/// A message that begins with the command, if there is one.
[[noreturn]] void refuse(const std::string& command, const std::string& what) {
  throw BadUsage(command.empty() ? what : command + ": " + what);
}

[[noreturn]] void refuse_with_help(const std::string& command, const std::string& what) {
  refuse(command, fmt::format("{}; shardwise help{} shows more", what,
                              command.empty() ? "" : " " + command));
}

/// CLI11's message about a word that is missing or no number, in the words of other messages.
std::string in_plain_words(const std::string& message) {
  constexpr std::string_view kMissing = ": 1 required ", kNoNumber = "Could not convert: ";
  if (const std::size_t at = message.find(kMissing); at != std::string::npos) {
    return message.substr(0, at) + ": needed is a value after it";
  }
  const std::size_t at = message.find(" = ");
  if (!message.starts_with(kNoNumber) || at == std::string::npos) return message;
  return fmt::format("{}: found \"{}\", needed a number",
                     message.substr(kNoNumber.size(), at - kNoNumber.size()),
                     message.substr(at + 3));
}

[[noreturn]] void ask_for_command(std::span<const CLI::App* const> path) {
  refuse(name_of(path),
         fmt::format("a command is needed: {}", fmt::join(commands_of(*path.back()), ", ")));
}

std::string unknown_command(const CLI::App& above, const std::string& word) {
  const bool is_root = above.get_parent() == nullptr;
  const std::string_view advice = is_root ? advice_for_verb(word) : std::string_view();
  return fmt::format("unknown command \"{}\"; {}", word,
                     advice.empty() ? suggestion(word, commands_of(above)) : advice);
}

/// Throws for the first word of the command line that no command took.
void refuse_unknown(const CLI::App& app, std::span<char* const> words) {
  const std::vector<const CLI::App*> path = path_of(app);
  for (const std::string word : words) {
    const auto at = std::find_if(path.begin(), path.end(), [&word](const CLI::App* command) {
      const std::vector<std::string> left = command->remaining();
      return std::find(left.begin(), left.end(), word) != left.end();
    });
    if (at == path.end()) continue;
    const std::string command = name_of({path.begin(), at + 1});
    const std::vector<std::string> commands = commands_of(**at), options = options_of(**at);
    if (word.size() > 1 && word[0] == '-') {
      const std::string option = word.substr(0, word.find('='));
      const std::string advice =
          at == path.begin() && path.size() > 1
              ? "options stand after the command"
              : advice_for_option(option, options, arguments_of(command, **at));
      refuse(command, fmt::format("unknown option \"{}\"; {}", option, advice));
    }
    if (commands.empty())
      refuse(command, fmt::format("\"{}\" is one argument too many{}", word,
                                  command == "import" ? "; give the folder of several files" : ""));
    const bool is_option = std::ranges::find(options, "--" + word) != options.end();
    refuse(command, is_option
                        ? fmt::format("unknown command \"{0}\"; did you mean \"--{0}\"?", word)
                        : unknown_command(**at, word));
  }
}

struct NamedCommand {
  const CLI::App* app;
  std::string words;  ///< that call it: "shardwise bench save"
};

/// The command that the words name, options left out. Throws if there is no such command.
NamedCommand named_command(const CLI::App& app, std::span<char* const> words) {
  NamedCommand named{&app, app.get_name()};
  for (const std::string word : words) {
    if (word.starts_with('-')) continue;  // --json, --help
    const std::vector<std::string> known = commands_of(*named.app);
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      refuse(std::string(kHelp), unknown_command(*named.app, word));
    }
    named.app = named.app->get_subcommand(word);
    named.words += " " + word;
  }
  return named;
}

/// Help in lines of at most kWidth columns. Examples are so already.
std::string wrapped_help(std::string_view help) {
  constexpr std::size_t kDescriptions = 30;  // column where CLI11 begins them
  std::string lines;
  for (const std::string_view line : split(help, '\n')) {
    const bool is_described = line.size() > kDescriptions && line[kDescriptions - 1] == ' ';
    lines += wrapped(line, kWidth, is_described ? kDescriptions : 0) + '\n';
  }
  lines.pop_back();
  return lines;
}

/// The text of `shardwise help bench save`. Requires that nothing was parsed.
std::string help_text(const CLI::App& app, std::span<char* const> words) {
  const NamedCommand named = named_command(app, words);
  const auto is_man = [](std::string_view word) { return word == "--man"; };
  if (std::any_of(words.begin(), words.end(), is_man)) {
    std::string page = named.words;
    std::ranges::replace(page, ' ', '-');
    refuse(std::string(kHelp), fmt::format("unknown option \"--man\"; write man {}", page));
  }
  const std::size_t last = named.words.rfind(' ');
  return wrapped_help(
      named.app->help(last == std::string::npos ? "" : named.words.substr(0, last)));
}

/// The text of `shardwise completion bash`.
std::string completion_text(const CLI::App& app, std::span<char* const> words) {
  if (!words.empty() && std::string_view(words[0]) == "names") return names_after(words.subspan(1));
  for (const std::string word : words) {
    if (word == "bash") return bash_completion(app);
    if (word == "--help" || word == "-h")
      return wrapped_help(app.get_subcommand(std::string(kCompletion))->help(app.get_name()));
    if (!word.starts_with('-')) {
      refuse(std::string(kCompletion), fmt::format("found \"{}\", needed bash", word));
    }
  }
  refuse(std::string(kCompletion), "a shell is needed: bash");
}

CommandLine show(std::string text) {
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  return {"", [text = std::move(text)] {
            fmt::print("{}", text);
            return 0;
          }};
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CLI::App app{"Sharded tensors: the part of each device, and checkpoints that any mesh can read",
               "shardwise"};
  Run run;
  declare(app, run);
  app.footer("Exit status: 0 done, 1 the answer is no, 2 bad usage, 3 failure");
  const std::span<char* const> words(argv + 1, argv + std::max(argc, 1));
  if (!words.empty() && words[0] == kHelp) return show(help_text(app, words.subspan(1)));
  if (!words.empty() && words[0] == kCompletion) {
    return show(completion_text(app, words.subspan(1)));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::vector<const CLI::App*> path = path_of(app);
    const bool shows = error.get_exit_code() == 0;  // --help, --version
    if (!shows || path.size() == 1) refuse_unknown(app, words);
    if (!shows) refuse_with_help(name_of(path), in_plain_words(error.what()));
    return show(dynamic_cast<const CLI::CallForVersion*>(&error) ? error.what()
                                                                 : wrapped_help(app.help()));
  }
  const std::vector<const CLI::App*> path = path_of(app);
  if (!run) ask_for_command(path);
  return {name_of(path), run};
}

}  // namespace shardwise::tools
