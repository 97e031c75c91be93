#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "commands/commands.h"
#include "options.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {

// How the commands and their options are declared to CLI11.

/// Options of all commands, and what is to be run.
struct Commands {
  ShardsOptions shards;
  ExplainOptions explain;
  PlanOptions plan;
  LsOptions ls;
  InspectOptions inspect;
  VerifyOptions verify;
  ParityCommandOptions parity;
  DiffOptions diff;
  CatOptions cat;
  StatsOptions stats;
  DuOptions du;
  TiersOptions tiers;
  RmOptions rm;
  PinOptions pin;
  UnpinOptions unpin;
  GcOptions gc;
  CheckedReshardOptions reshard;
  ImportOptions imported;
  ExportOptions exported;
  BatchesOptions batches;
  BenchSaveOptions bench_save;
  BenchRestoreOptions bench_restore;
  std::function<int()> run;
};

inline constexpr const char* kCheckpoint =
    "A checkpoint, or a directory of steps (newest valid); run@20 is step 20 of run";
inline constexpr const char* kTensors =
    "A checkpoint, a directory of steps (newest valid), or a file or folder that import takes; "
    "run@20 is step 20 of run";

/// Lines of at most kWidth columns; one that is longer goes on after a backslash.
std::string wrapped_example(std::string_view lines);

/// A command that ends in `run(options)`.
template <class Options>
CLI::App& add_command(CLI::App& app, const char* name, const char* description, const char* example,
                      Commands& c, Options& options, int (*run)(const Options&)) {
  CLI::App& command = *app.add_subcommand(name, description);
  command.footer(wrapped_example(std::string("Example:\n  ") + example));
  command.add_flag("--json", options.json, "Print one JSON object on stdout, for scripts");
  command.callback([&c, &options, run] {
    c.run = [&options, run] {
      choose_steps(options);
      return run(options);
    };
  });
  return command;
}

/// --step; and, where nothing else can stand there, the same as a word after the path.
void add_step(CLI::App& command, std::string& step, bool as_word);

/// Commands that look at checkpoints: ls, inspect, verify (which may repair), parity, diff, cat,
/// stats, du, tiers (which may put a step together).
void declare_looks(CLI::App& app, Commands& c);

/// Commands about which steps stay: rm, pin, unpin, gc.
void declare_removals(CLI::App& app, Commands& c);

}  // namespace shardwise::tools
