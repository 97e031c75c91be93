#include "commands/write_step.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "launched.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

// The written part of an unfinished step stays, so that the same command can go on from it.
extern "C" void tell_of_interrupt(int signal) {
  constexpr char kText[] =
      "\nshardwise: interrupted; the same command goes on from the shard files that are whole "
      "(with --writers 1 it begins anew)\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  std::raise(signal);  // SA_RESETHAND: this ends the process, as it would have
}

/// Says at Ctrl-C what is kept. If Ctrl-C was ignored, as below nohup, it still is.
void tell_at_interrupt() {
  struct sigaction before {
  }, action{};
  if (::sigaction(SIGINT, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  action.sa_handler = &tell_of_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  ::sigaction(SIGINT, &action, nullptr);
}

StepWriting parse(const std::string& command, const ReshardOptions& options) {
  shardwise::ReshardOptions work;
  work.save.existing = options.replace ? Existing::replace : Existing::fail;
  work.save.writers = options.writers;
  work.save.processes_per_file = options.processes_per_file;
  work.save.memory_budget_bytes = options.memory_budget_bytes;
  work.threads = options.threads;
  work.edits = parse_edits(command, options.edits);
  const std::string rules = text_or_file(options.rules);
  try {
    work.save.codec = parse_codec(options.codec);
    return {parse_mesh(options.mesh, options.devices), SpecRules::parse(rules), std::move(work)};
  } catch (const Error& error) {
    throw BadUsage(command + ": " + error.what());
  }
}

void print(const ReshardOptions& options, const std::filesystem::path& source, const Mesh& mesh,
           const SaveStats& stats, int processes) {
  if (options.json) {
    print_json({{"source", source.string()},
                {"directory", stats.directory.string()},
                {"mesh", mesh.to_string()},
                {"processes", processes},
                {"logical_bytes", stats.logical_bytes},
                {"stored_bytes", stats.stored_bytes},
                {"chunks", stats.chunks},
                {"seconds", stats.total_seconds}});
    return;
  }
  print_shown(fmt::format("{} -> {}: mesh {}, {} in {} chunks ({} stored), {:.2f} s{}\n",
                          source.string(), stats.directory.string(), mesh.to_string(),
                          human_bytes(stats.logical_bytes), stats.chunks,
                          human_bytes(stats.stored_bytes), stats.total_seconds,
                          processes == 1 ? "" : fmt::format(" by {} processes", processes)));
}

}  // namespace

int write_step(const std::string& command, const ReshardOptions& options,
               const std::function<std::filesystem::path()>& find_source,
               const std::function<SaveStats(const std::filesystem::path& source,
                                             const StepWriting& writing)>& write) {
  StepWriting writing = parse(command, options);
  const ProcessGroup group = launched_group();
  writing.options.group = group;
  tell_at_interrupt();
  try {
    if (std::filesystem::exists(options.target) && !std::filesystem::is_directory(options.target)) {
      throw Error(ErrorCode::not_found,
                  fmt::format("{}: target {}: found a file, needed a directory, or the name of a "
                              "new one",
                              command, options.target));
    }
    const std::filesystem::path source = find_source();
    SaveStats stats;
    {
      ProgressLine line(command);
      if (group.rank() == 0) writing.options.save.progress = line.function();
      stats = write(source, writing);
    }
    stats.directory = as_given(options.target, stats.directory);
    if (group.rank() == 0) print(options, source, writing.mesh, stats, group.size());
    return 0;
  } catch (const Error& error) {
    group.abort(error.what());
    constexpr int kEndedByAnother = 3;  // rank 0 tells what has ended the work of all
    if (group.rank() > 0 && error.code() == ErrorCode::cancelled) return kEndedByAnother;
    // The rules and the mesh do not fit each other or the tensors.
    if (error.code() == ErrorCode::invalid_argument) throw BadUsage(error.what());
    if (error.code() != ErrorCode::already_exists || options.replace) throw;
    throw Error(error, fmt::format("{}; --replace writes a new generation of it", error.what()));
  }
}

}  // namespace shardwise::tools
