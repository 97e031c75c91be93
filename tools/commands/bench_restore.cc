#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/machine.h"
#include "bench/restore.h"
#include "commands/commands.h"
#include "interrupt.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

struct BenchRestoreOptions {
  std::string directory, step;
  std::optional<std::string> mesh, spec;
  int repeat = 5, threads = 0;
  bool cold = false, fresh_memory = false;
  bool json = false;
};

// Both rates in one line of sight: bytes of tensors per second against bytes of files per second.
double of_raw(const RestoreBench& bench, double seconds, double raw_seconds) {
  return gb_per_s(bench.logical_bytes(), seconds) / gb_per_s(bench.file_bytes(), raw_seconds);
}

void print_restore_json(const BenchRestoreOptions& options, const fs::path& directory,
                        const RestoreBench& bench, const MeasuredRestores& measured) {
  const double seconds = median(measured.restore_seconds), raw = median(measured.raw_seconds);
  nlohmann::ordered_json json = {
      {"command", "restore"},
      {"directory", directory.string()},
      {"cold", options.cold},
      {"fresh_memory", options.fresh_memory},
      {"tensors", bench.requests().size()},
      {"mesh", bench.requests().front().spec.sharding.mesh().to_string()},
      {"spec", bench.requests().front().spec.sharding.spec().to_string()},
      {"threads", bench.threads()},
      {"logical_bytes", bench.logical_bytes()},
      {"stored_bytes", measured.stats.stored_bytes},
      {"file_bytes", bench.file_bytes()},
      {"chunks", measured.stats.chunks},
      {"seconds", measured.restore_seconds},
      {"median_seconds", seconds},
      {"gb_per_s", gb_per_s(bench.logical_bytes(), seconds)},
      {"open_seconds", median(measured.open_seconds)},
      {"raw_read",
       {{"threads", bench.threads()},
        {"seconds", measured.raw_seconds},
        {"gb_per_s", gb_per_s(bench.file_bytes(), raw)}}},
      {"of_raw", of_raw(bench, seconds, raw)}};
  json["verified"] = nullptr;
  if (measured.verified) json["verified"] = *measured.verified;
  json["peak_host_bytes"] = nullptr;
  if (measured.peak_host_bytes) json["peak_host_bytes"] = *measured.peak_host_bytes;
  json["machine"] = machine_json();
  print_json(json);
}

void print_restore_text(const BenchRestoreOptions& options, const fs::path& directory,
                        const RestoreBench& bench, const MeasuredRestores& measured) {
  print_shown(fmt::format(
      "{}: {} tensors, {}; the first onto mesh {}, spec {}; {} workers; {}{}; median of {}\n\n",
      directory.string(), bench.requests().size(), human_bytes(bench.logical_bytes()),
      bench.requests().front().spec.sharding.mesh().to_string(),
      bench.requests().front().spec.sharding.spec().to_string(), bench.threads(),
      options.cold ? "cold" : "from the page cache",
      options.fresh_memory ? ", into fresh memory" : "", options.repeat));
  const double seconds = median(measured.restore_seconds), raw = median(measured.raw_seconds);
  TextTable table({"", "seconds", "GB/s", "of raw"});
  table.add({fmt::format("raw reads ({} threads)", bench.threads()), fmt::format("{:.3f}", raw),
             fmt::format("{:.2f}", gb_per_s(bench.file_bytes(), raw)), "1.00"});
  table.add({"restore", fmt::format("{:.3f}", seconds),
             fmt::format("{:.2f}", gb_per_s(bench.logical_bytes(), seconds)),
             fmt::format("{:.2f}", of_raw(bench, seconds, raw))});
  print_shown(table);
  print_shown(fmt::format(
      "\nopened in {:.1f} ms; {} in {} chunks read, each compared with its hash; {}; peak host "
      "memory beyond the tensors {}\n",
      median(measured.open_seconds) * 1e3, human_bytes(measured.stats.stored_bytes),
      measured.stats.chunks,
      measured.verified ? "every element is as saved" : "values not compared: not from bench save",
      measured.peak_host_bytes ? human_bytes(*measured.peak_host_bytes) : "not known"));
}

std::unique_ptr<RestoreBench> open_bench(const BenchRestoreOptions& options,
                                         const fs::path& directory) {
  try {
    const RestoreBenchOptions bench{options.mesh,    options.spec, options.repeat,
                                    options.threads, options.cold, options.fresh_memory};
    return std::make_unique<RestoreBench>(directory, bench);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    throw BadUsage(error.what());
  }
}

int report_difference(const BenchRestoreOptions& options, const fs::path& directory,
                      const std::string& difference) {
  if (options.json) {
    print_json({{"command", "restore"},
                {"directory", directory.string()},
                {"verified", false},
                {"difference", difference}});
  } else {
    print_shown(fmt::format("{}: {}\n", directory.string(), difference));
  }
  return 1;
}

/// Status 1 if other values came back than were saved.
int run_bench_restore(BenchRestoreOptions& options) {
  choose_step(options.directory, options.step);
  const fs::path directory = resolve_checkpoint(options.directory);
  if (!options.fresh_memory) keep_freed_memory();
  const InterruptNote interrupt;
  const auto bench = open_bench(options, directory);
  MeasuredRestores measured;
  try {
    measured = bench->run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    return report_difference(options, directory, error.what());
  }
  if (!measured.difference.empty()) {
    return report_difference(options, directory, measured.difference);
  }
  (options.json ? print_restore_json : print_restore_text)(options, directory, *bench, measured);
  return 0;
}

}  // namespace

void declare_bench_restore(CLI::App& bench, Run& run) {
  const auto [restore, options] = add_command(
      bench, run, "restore",
      "Restores, next to raw reads of the same files; exit status 1: other values",
      "shardwise bench restore runs/bench --mesh data=2,model=4 --cold", run_bench_restore);
  restore.add_option("dir", options.directory, kCheckpoint)->required();
  add_step(restore, options.step, true);
  restore.add_option("--mesh", options.mesh, "Mesh to restore onto (default: as saved)");
  restore.add_option("--spec", options.spec, "Spec of all tensors (default: as saved)");
  restore.add_flag("--cold", options.cold,
                   "Drop the files from the page cache before each measurement");
  restore.add_flag("--fresh-memory", options.fresh_memory,
                   "Restore into memory that is new to the process each time, as a job does that "
                   "starts, not into that of the round before");
  add_bench_options(restore, options.repeat, options.threads);
}

}  // namespace shardwise::tools
