#include "commands/write_step.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "interrupt.h"
#include "launched.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace {

void print(const ReshardOptions& options, const std::filesystem::path& source, const Mesh& mesh,
           const SaveStats& stats, int processes, bool verified) {
  if (options.json) {
    print_json({{"source", source.string()},
                {"directory", stats.directory.string()},
                {"mesh", mesh.to_string()},
                {"processes", processes},
                {"logical_bytes", stats.logical_bytes},
                {"stored_bytes", stats.stored_bytes},
                {"chunks", stats.chunks},
                {"skipped", stats.skipped},
                {"verified", verified},
                {"seconds", stats.total_seconds}});
    return;
  }
  if (stats.skipped) {
    print_shown(
        fmt::format("{} is already there: nothing was written\n", stats.directory.string()));
    return;
  }
  print_shown(fmt::format("{} -> {}: mesh {}, {} in {} ({} stored), {:.2f} s{}{}\n",
                          source.string(), stats.directory.string(), mesh.to_string(),
                          human_bytes(stats.logical_bytes), counted(stats.chunks, "chunk"),
                          human_bytes(stats.stored_bytes), stats.total_seconds,
                          processes == 1 ? "" : fmt::format(" by {} processes", processes),
                          verified ? "; verified: every tensor is that of the source" : ""));
}

}  // namespace

void add_step_options(CLI::App& command, ReshardOptions& options) {
  command.add_option("--devices", options.devices, "Device ids in mesh order (default 0,1,2,..)");
  command.add_option("--spec", options.rules,
                     "Rules NAME-PATTERN=SPEC, separated by \";\", or @FILE with one per line; "
                     "first match counts; other tensors keep their spec");
  add_edits(command, options.edits);
  command.add_option("--codec", options.codec, "auto, zstd or none")->capture_default_str();
  command.add_option("--writers", options.writers, "Shard files of each process")
      ->check(whole(1, 99'999))
      ->capture_default_str();
  add_existing(command, options.existing,
               "Where the target holds the step: write a new generation of it",
               "Where the target holds the step: write nothing");
  add_memory_budget(command, options.memory_budget_bytes);
  add_threads(command, options.threads);
}

StepWriting parse_step_writing(const std::string& command, const ReshardOptions& options) {
  shardwise::ReshardOptions work;
  work.save.existing = options.existing;
  work.save.writers = options.writers;
  work.save.memory_budget_bytes = options.memory_budget_bytes;
  work.threads = options.threads;
  work.edits = parse_edits(command, options.edits);
  const std::string rules = text_or_file(options.rules);
  StepWriting writing = [&]() -> StepWriting {
    try {
      work.save.codec = parse_codec(options.codec);
      return {parse_mesh(options.mesh, options.devices), SpecRules::parse(rules), std::move(work)};
    } catch (const Error& error) {
      throw BadUsage(command + ": " + error.what());
    }
  }();
  writing.options.group = launched_group();
  return writing;
}

void throw_as_usage(const Error& error) {
  // The rules and the mesh do not fit each other or the tensors.
  if (error.code() == ErrorCode::invalid_argument) throw BadUsage(error.what());
  throw error;
}

void check_target(const std::string& command, const ReshardOptions& options) {
  if (in_bucket(options.target) || !std::filesystem::exists(options.target) ||
      std::filesystem::is_directory(options.target)) {
    return;
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("{}: target {}: found a file, needed a directory, or the name of a new one",
                  command, options.target));
}

int write_step(const std::string& command, const ReshardOptions& options,
               const std::function<std::filesystem::path()>& find_source,
               const std::function<SaveStats(const std::filesystem::path& source,
                                             const StepWriting& writing)>& write,
               const std::function<void(const std::filesystem::path& source,
                                        const std::filesystem::path& step)>& verify) {
  StepWriting writing = parse_step_writing(command, options);
  const ProcessGroup group = writing.options.group;
  const InterruptNote interrupt;
  std::filesystem::path step;  // when it is written
  try {
    check_target(command, options);
    const std::filesystem::path source = find_source();
    SaveStats stats;
    {
      ProgressLine line(command);
      writing.options.save.progress =
          [&command, show = group.rank() == 0 ? line.function()
                                              : ProgressFunction()](const Progress& progress) {
            InterruptNote::check(command);
            if (show) show(progress);
          };
      stats = write(source, writing);
    }
    stats.directory = as_given(options.target, stats.directory);
    if (group.rank() > 0) return 0;
    step = stats.directory;
    if (verify) verify(source, step);
    print(options, source, writing.mesh, stats, group.size(), verify != nullptr);
    return 0;
  } catch (const Error& error) {
    group.abort(error.what());
    if (error.code() == ErrorCode::cancelled && InterruptNote::has_come()) {
      if (group.rank() == 0) {
        print_note(fmt::format("shardwise: {}; {}", error.what(),
                               step.empty() ? "nothing is kept"
                                            : step.string() + " is written, and not yet compared"));
      }
      InterruptNote::end();
    }
    constexpr int kEndedByAnother = 3;  // rank 0 tells what has ended the work of all
    if (group.rank() > 0 && error.code() == ErrorCode::cancelled) return kEndedByAnother;
    throw_as_usage(error);
  }
}

}  // namespace shardwise::tools
