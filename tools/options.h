#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parse.h"
#include "shardwise/checkpoint/save.h"

// How commands are declared to CLI11, and the options that several have.
namespace shardwise::tools {

inline constexpr const char* kCheckpoint =
    "A checkpoint, or a directory of steps (newest valid); run@20 is step 20 of run";
inline constexpr const char* kTensors =
    "A checkpoint, a directory of steps (newest valid), or a file or folder that import takes; "
    "run@20 is step 20 of run";

/// Lines of at most kWidth columns; one that is longer goes on after a backslash.
std::string wrapped_example(std::string_view lines);

using Run = std::function<int()>;

template <class Options>
struct DeclaredCommand {
  CLI::App& command;
  Options& options;  ///< lives as long as the command, and the run
};

/// A command that makes `run` call work(options).
template <class Options>
DeclaredCommand<Options> add_command(CLI::App& app, Run& run, const char* name,
                                     const char* description, const char* example,
                                     int (*work)(Options&)) {
  CLI::App& command = *app.add_subcommand(name, description);
  command.footer(wrapped_example(std::string("Example:\n  ") + example));
  const auto options = std::make_shared<Options>();
  command.add_flag("--json", options->json, "Print one JSON object on stdout, for scripts");
  command.callback([&run, options, work] { run = [options, work] { return work(*options); }; });
  return {command, *options};
}

/// --step; and, where nothing else can stand there, the same as a word after the path.
void add_step(CLI::App& command, std::string& step, bool as_word);

/// The action if the target exists.
void add_existing(CLI::App& command, Existing& existing, const char* replace, const char* skip);

/// --repeat and --threads of a benchmark.
void add_bench_options(CLI::App& command, int& repeat, int& threads);

/// Whole numbers of a range. CLI11's own check prints its limits in floating point.
CLI::Validator whole(std::int64_t least,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max());

/// Paths of file systems that are mounted here: a URL would be taken for a folder of an odd name.
CLI::Validator local_path();

/// A word, or words, that must be local paths.
void add_path(CLI::App& command, const char* name, std::string& path, const char* description);
void add_path(CLI::App& command, const char* name, std::vector<std::string>& paths,
              const char* description);

/// Local paths, or s3://bucket/prefix; the command gets the path of such a URL.
void add_place(CLI::App& command, const char* name, std::string& path, const char* description);
void add_place(CLI::App& command, const char* name, std::vector<std::string>& paths,
               const char* description);

void add_threads(CLI::App& command, int& threads);

void add_size(CLI::App& command, const std::string& name, std::size_t& bytes, ByteRange allowed,
              const std::string& description);

/// A size a second: "2GB/s", or without the "/s".
void add_rate(CLI::App& command, const std::string& name, std::size_t& bytes_per_second,
              const std::string& description);

void add_memory_budget(CLI::App& command, std::size_t& bytes);

/// Each may be repeated and takes one word, so that others may follow.
void add_edits(CLI::App& command, EditOptions& edits);

}  // namespace shardwise::tools
