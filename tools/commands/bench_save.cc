#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "bench/data.h"
#include "bench/machine.h"
#include "bench/peak_memory.h"
#include "bench/raw_io.h"
#include "bench/workspace.h"
#include "commands/commands.h"
#include "interrupt.h"
#include "output.h"
#include "parse.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

struct BenchSaveOptions {
  std::string directory;
  std::int64_t tensors = 64;
  std::string shape = "2048,4096", dtype = "f32", mesh = "data=4,model=2", spec = "data,model";
  std::string codec = "zstd", data = "gaussian";
  int repeat = 5, threads = 0;
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  std::int64_t keep_last = 0;  ///< 0: nothing is removed between rounds
  bool async = false, keep = false;
  bool json = false;
};

/// The meaning of the options.
struct SaveJob {
  ArraySpec spec;
  Codec codec;
  DataKind data;
  std::int64_t devices;
  std::size_t tensor_bytes, logical_bytes;
  std::size_t device_bytes;  // with all replicas
};

SaveJob parse_job(const BenchSaveOptions& options) {
  try {
    const Shape shape = parse_shape(options.shape);
    SaveJob job{{parse_dtype(options.dtype), shape,
                 Sharding(parse_mesh(options.mesh), PartitionSpec::parse(options.spec))},
                parse_codec(options.codec),
                parse_data_kind(options.data),
                0,
                0,
                0,
                0};
    const Shape largest = job.spec.sharding.shard_shape(shape);
    job.devices = devices_for(job.spec.sharding.mesh());
    job.tensor_bytes = num_bytes(shape, size_bytes(job.spec.dtype));
    job.logical_bytes =
        num_bytes({options.tensors, num_elements(shape)}, size_bytes(job.spec.dtype));
    if (job.logical_bytes == 0) {
      throw BadUsage(fmt::format("bench save: tensors of shape {} hold nothing", to_string(shape)));
    }
    job.device_bytes =
        num_bytes({options.tensors, job.spec.sharding.mesh().size(), num_elements(largest)},
                  size_bytes(job.spec.dtype));
    return job;
  } catch (const Error& error) {
    throw BadUsage(std::string("bench save: ") + error.what());
  }
}

/// Measurements of the rounds.
struct MeasuredSaves {
  Caching caching = Caching::direct;
  std::vector<double> raw_seconds, save_seconds, blocked_seconds;
  std::vector<double> retention_seconds;  // with the save that it follows; of --keep-last
  std::optional<std::size_t> peak_host_bytes;
  SaveStats last;
};

// When rounds are deleted. At the end, if possible: a file system mounted with "discard" is busy
// after a deletion, and the next round takes longer.
enum class Deletion { at_the_end, at_once };

/// Rounds before the first that counts: each file that retention leaves to later saves is written
/// once as a new one, and once more.
int warm_up_rounds(const BenchSaveOptions& options) {
  return options.keep_last == 0 ? 1 : 2 * (static_cast<int>(options.keep_last) + 1);
}

class SaveBench {
 public:
  SaveBench(const BenchSaveOptions& options, const SaveJob& job, Workspace& workspace,
            Deletion deletion)
      : options_(options),
        job_(job),
        workspace_(workspace),
        deletion_(deletion),
        devices_(job.devices, {.threads = options.threads}),
        raw_(job.logical_bytes) {
    make_tensors();
  }

  MeasuredSaves run() {
    MeasuredSaves measured;
    measured.caching = best_caching(workspace_.raw_file(0));
    CheckpointManager manager(workspace_.root(),
                              {.keep = {.last = options_.keep_last},
                               .write = {.increments = false,  // each round writes the same again
                                         .stats = false,
                                         .threads = options_.threads},
                               .collect_garbage = false});
    const int first = 1 - warm_up_rounds(options_);
    for (int round = first; round <= options_.repeat; ++round) {
      // With retention, steps count up. Without it they count down, so the one that may stay is 1.
      const std::int64_t step =
          options_.keep_last > 0 ? round - first + 1 : options_.repeat - round + 1;
      if (round > first && deletion_ == Deletion::at_once && options_.keep_last == 0) {
        manager.remove(step + 1);
        workspace_.disowns_last();
      }
      const double raw = write(measured.caching, round);
      const PeakMemory memory;
      const Stopwatch watch;
      measured.last = save(manager, step, round);
      const double with_retention = watch.seconds();
      check_retention(manager, measured.last, step);
      workspace_.owns(measured.last.directory);
      if (round == first) measured.peak_host_bytes = memory.growth_bytes();  // it is kept then
      if (round < 1) continue;
      measured.raw_seconds.push_back(raw);
      measured.save_seconds.push_back(measured.last.total_seconds);
      measured.blocked_seconds.push_back(measured.last.blocked_seconds);
      if (options_.keep_last > 0) measured.retention_seconds.push_back(with_retention);
    }
    if (options_.keep) workspace_.disowns_last();
    return measured;
  }

  int threads() const { return devices_.executor().threads(); }

 private:
  // If retention did not remove its steps, its time was not measured.
  void check_retention(const CheckpointManager& manager, const SaveStats& last,
                       std::int64_t saves) const {
    const std::int64_t left = std::ssize(manager.steps());
    if (options_.keep_last == 0 || left == std::min(options_.keep_last, saves)) return;
    throw Error(ErrorCode::io, fmt::format("bench save: {} steps are left, not {}: {}", left,
                                           options_.keep_last, last.cleanup_error));
  }

  void make_tensors() {
    ProgressLine line("make tensors");
    const ProgressFunction progress = line.function();
    const BenchData data(job_.data, job_.spec.dtype, job_.spec.shape);
    for (std::int64_t t = 0; t < options_.tensors; ++t) {
      InterruptNote::check("bench");
      auto array = ShardedArray::from_callback(devices_, job_.spec,
                                               [&](const BoxView& view) { data.fill(t, view); });
      const std::size_t begin = static_cast<std::size_t>(t) * job_.tensor_bytes;
      array.read(Box::whole(job_.spec.shape), raw_.bytes().subspan(begin, job_.tensor_bytes));
      sources_.push_back(tensor_source(bench_tensor_name(t), std::move(array)));
      if (progress) progress({begin + job_.tensor_bytes, job_.logical_bytes});
    }
  }

  std::string title(int round, const char* what) const {
    return round < 1 ? fmt::format("warm up, {}", what)
                     : fmt::format("round {} of {}, {}", round, options_.repeat, what);
  }

  double write(Caching caching, int round) const {
    ProgressLine line(title(round, "raw writes"));
    settle(workspace_.root());
    const std::filesystem::path file = workspace_.raw_file(round);
    const double seconds = write_raw(file, raw_.bytes(), caching, line.function());
    std::error_code ignored;
    if (deletion_ == Deletion::at_once) std::filesystem::remove(file, ignored);
    return seconds;
  }

  SaveStats save(CheckpointManager& manager, std::int64_t step, int round) const {
    ProgressLine line(title(round, "save"));
    settle(workspace_.root());
    SaveOptions save;
    save.codec = job_.codec;
    save.user_json = nlohmann::json{{"shardwise_bench", {{"data", name(job_.data)}}}}.dump();
    save.memory_budget_bytes = options_.memory_budget_bytes;
    save.progress = [progress = line.function()](const Progress& so_far) {
      InterruptNote::check("bench");
      if (progress) progress(so_far);
    };
    if (options_.async) return manager.save_async(step, sources_, std::move(save)).wait();
    return manager.save(step, sources_, std::move(save));
  }

  const BenchSaveOptions& options_;
  const SaveJob& job_;
  Workspace& workspace_;
  Deletion deletion_;
  Devices devices_;
  TouchedPages raw_;
  std::vector<TensorSource> sources_;
};

void print_save_json(const BenchSaveOptions& options, const SaveJob& job,
                     const MeasuredSaves& measured, int threads) {
  const SaveStats& last = measured.last;
  const double seconds = median(measured.save_seconds), raw = median(measured.raw_seconds);
  nlohmann::ordered_json json = {
      {"command", "save"},
      {"codec", name(job.codec)},
      {"data", name(job.data)},
      {"tensors", options.tensors},
      {"dtype", name(job.spec.dtype)},
      {"shape", dims_json(job.spec.shape)},
      {"mesh", job.spec.sharding.mesh().to_string()},
      {"spec", job.spec.sharding.spec().to_string()},
      {"threads", threads},
      {"logical_bytes", last.logical_bytes},
      {"stored_bytes", last.stored_bytes},
      {"file_bytes", last.file_bytes},
      {"ratio", static_cast<double>(last.logical_bytes) / static_cast<double>(last.stored_bytes)},
      {"chunks", last.chunks},
      {"seconds", measured.save_seconds},
      {"median_seconds", seconds},
      {"gb_per_s", gb_per_s(last.logical_bytes, seconds)},
      {"raw_write",
       {{"direct", measured.caching == Caching::direct},
        {"seconds", measured.raw_seconds},
        {"gb_per_s", gb_per_s(last.logical_bytes, raw)}}},
      {"of_raw", raw / seconds},
      {"async", options.async},
      {"keep_last", options.keep_last},
      {"blocked_seconds", median(measured.blocked_seconds)}};
  if (options.keep_last > 0) {
    const double both = median(measured.retention_seconds);
    json["with_retention"] = {{"seconds", measured.retention_seconds},
                              {"median_seconds", both},
                              {"gb_per_s", gb_per_s(last.logical_bytes, both)}};
  }
  json["peak_host_bytes"] = nullptr;
  if (measured.peak_host_bytes) json["peak_host_bytes"] = *measured.peak_host_bytes;
  if (options.keep) json["directory"] = last.directory.string();
  json["machine"] = machine_json();
  print_json(json);
}

void print_save_text(const BenchSaveOptions& options, const SaveJob& job,
                     const MeasuredSaves& measured, int threads) {
  const SaveStats& last = measured.last;
  print_shown(fmt::format(
      "{} tensors, {} {}, {}, {}; mesh {}, spec {}; codec {}; {} workers; median of {}\n\n",
      options.tensors, name(job.spec.dtype), to_string(job.spec.shape), name(job.data),
      human_bytes(last.logical_bytes), job.spec.sharding.mesh().to_string(),
      job.spec.sharding.spec().to_string(), name(job.codec), threads, options.repeat));
  const double raw = median(measured.raw_seconds);
  TextTable table({"", "seconds", "GB/s", "of raw"});
  const auto row = [&](const char* what, double seconds) {
    table.add({what, fmt::format("{:.3f}", seconds),
               fmt::format("{:.2f}", gb_per_s(last.logical_bytes, seconds)),
               fmt::format("{:.2f}", raw / seconds)});
  };
  row(measured.caching == Caching::direct
          ? "raw writes (O_DIRECT, 2 threads, fsync)"
          : "raw writes (buffered: O_DIRECT is refused; 2 threads, fsync)",
      raw);
  row(options.async ? "asynchronous save" : "save", median(measured.save_seconds));
  if (options.keep_last > 0) row("and retention", median(measured.retention_seconds));
  print_shown(table);
  print_shown(fmt::format(
      "\nstored / logical {:.3f} ({} in {} chunks); caller blocked {:.1f} ms; peak host memory "
      "beyond the tensors {}\n",
      static_cast<double>(last.stored_bytes) / static_cast<double>(last.logical_bytes),
      human_bytes(last.stored_bytes), last.chunks, median(measured.blocked_seconds) * 1e3,
      measured.peak_host_bytes ? human_bytes(*measured.peak_host_bytes) : "not known"));
  if (options.keep) print_shown(fmt::format("kept in {}\n", last.directory.string()));
}

int run_bench_save(BenchSaveOptions& options) {
  const SaveJob job = parse_job(options);
  keep_freed_memory();
  const InterruptNote interrupt;
  Workspace workspace(options.directory,
                      options.keep ? Workspace::Leave::checkpoint : Workspace::Leave::nothing);
  // A checkpoint may be larger than its tensors by its index and its pieces' ends.
  const auto pieces = static_cast<std::size_t>(options.tensors * job.spec.sharding.mesh().size());
  const std::size_t checkpoint_bytes =
      job.logical_bytes + job.logical_bytes / 50 + pieces * 4096 + (16 << 20);
  workspace.check_space(options.keep_last == 0
                            ? checkpoint_bytes
                            : checkpoint_bytes * (static_cast<std::size_t>(options.keep_last) + 1) +
                                  job.logical_bytes);
  // Half of the room is left to other programs.
  const auto rounds =
      static_cast<std::size_t>(options.repeat) + static_cast<std::size_t>(warm_up_rounds(options));
  const bool room = workspace.free_bytes() / 2 / rounds >= checkpoint_bytes + job.logical_bytes;
  check_memory(job.device_bytes + job.logical_bytes + options.memory_budget_bytes);
  print_note(fmt::format(
      "bench save: writes {} rounds of {} raw and as a save, {} in all, into {}, {}", rounds,
      human_bytes(job.logical_bytes), human_bytes(2 * rounds * job.logical_bytes),
      workspace.root().string(),
      options.keep ? "and leaves the last checkpoint there" : "and removes all of it at the end"));
  SaveBench bench(options, job, workspace, room ? Deletion::at_the_end : Deletion::at_once);
  const MeasuredSaves measured = bench.run();
  (options.json ? print_save_json : print_save_text)(options, job, measured, bench.threads());
  return 0;
}

}  // namespace

void declare_bench_save(CLI::App& bench, Run& run) {
  const auto [save, options] = add_command(
      bench, run, "save", "Durable saves, next to raw writes of the same bytes",
      "shardwise bench save /mnt/fast --tensors 64 --shape 2048,4096 --dtype f32 --codec zstd\n"
      "  shardwise bench save /mnt/fast --codec none --keep-last 1\n"
      "  shardwise bench save runs/bench --data index --keep\n"
      "It writes into a fresh directory inside DIR and removes it; it needs room for the tensors "
      "on\n"
      "the disk, and twice in memory.",
      run_bench_save);
  add_path(save, "dir", options.directory, "Directory on the file system; may be new");
  save.add_option("--tensors", options.tensors, "How many")
      ->check(whole(1, 100'000))
      ->capture_default_str();
  save.add_option("--shape", options.shape, "Extents of each")->capture_default_str();
  save.add_option("--dtype", options.dtype, "Element type")->capture_default_str();
  save.add_option("--mesh", options.mesh, "Mesh that they are on")->capture_default_str();
  save.add_option("--spec", options.spec, "How they are cut over it")->capture_default_str();
  save.add_option("--codec", options.codec, "auto, zstd or none")->capture_default_str();
  save.add_option("--data", options.data,
                  "gaussian; index: each element is its global row-major index modulo 2^20; zeros")
      ->capture_default_str();
  save.add_flag("--async", options.async, "Save in the background");
  CLI::Option* keep_last = save.add_option(
      "--keep-last", options.keep_last,
      "As a job that keeps that many: each save removes an older one; tells both times");
  keep_last->check(whole(1, 1000));
  save.add_flag("--keep", options.keep,
                "Leave the checkpoint: DIR becomes its root, and must hold no steps")
      ->excludes(keep_last);
  add_memory_budget(save, options.memory_budget_bytes);
  add_bench_options(save, options.repeat, options.threads);
}

}  // namespace shardwise::tools
