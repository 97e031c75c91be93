#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/checkpoint/save.h"

namespace shardwise::tools {

// Each command: its options as plain values, and a function that does the work, prints the result
// on stdout and returns the exit status (0 done, 1 the answer is no). Failures are thrown.

/// Exactly one of spec, placements and sharding says how the tensor is cut.
struct ShardsOptions {
  std::string mesh, devices, shape, dtype = "f32", policy = "ceil";
  std::optional<std::string> spec, placements, sharding;
  std::optional<std::string> slices, torus;
  std::optional<std::string> svg;
  bool short_spec = false;
  bool json = false;
};
int run_shards(const ShardsOptions& options);

/// Two shardings, from and to, or a mesh and a spec for it.
struct ExplainOptions {
  std::optional<std::string> from, to, mesh, spec;
  std::string shape, dtype = "f32", policy = "ceil";
  bool json = false;
};
/// Status 1 if the spec is not valid.
int run_explain(const ExplainOptions& options);

struct PlanOptions {
  std::string program;
  std::optional<std::string> mesh;
  std::int64_t devices = 0;  ///< 0: on the mesh
  std::vector<std::string> marks;
  std::optional<std::string> device;
  std::size_t memory_bytes = 0;           ///< 0: the device's
  std::size_t save_bytes_per_second = 0;  ///< 0: not told
  bool search = false;
  std::optional<std::string> why, why_not;
  std::optional<std::string> html;  ///< a file for the page
  std::string attention = "fused";
  bool json = false;
};
/// Status 1 if it does not fit, on any mesh of --devices.
int run_plan(const PlanOptions& options);

// `step` is a step's number, "latest" or a name that pins it; choose_steps() puts it, and the
// words, into the path before the command runs.

struct LsOptions {
  std::string root, step;
  bool json = false;
};
int run_ls(const LsOptions& options);

struct InspectOptions {
  std::string path, step;
  std::vector<std::string> patterns, tensors;
  std::int64_t depth = -1;  ///< negative: all levels
  std::optional<std::string> svg;
  int processes = 0, processes_per_host = 0;
  bool flat = false;
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct VerifyOptions {
  std::string path, step;
  bool repair = false;
  std::vector<std::string> from;
  bool json = false;
};
int run_verify(const VerifyOptions& options);

struct ParityCommandOptions {
  std::string path, step;
  int blocks = 2, threads = 0;
  bool remove = false;
  bool json = false;
};
int run_parity(const ParityCommandOptions& options);

struct DiffOptions {
  std::string first, second, step;
  std::vector<std::string> words;  ///< after the first
  double atol = 0, rtol = 0;
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  int threads = 0;
  bool json = false;
};
/// Status 1 if they differ.
int run_diff(const DiffOptions& options);

struct CatOptions {
  std::string path, step, tensor, box;
  std::vector<std::string> words;  ///< after the path
  std::optional<std::string> npy;
  bool all = false;
  bool json = false;
};
int run_cat(const CatOptions& options);

struct StatsOptions {
  std::string path, step;
  std::vector<std::string> patterns;
  bool nan = false;  ///< only tensors that have NaN or infinities
  std::int64_t bars = 0;
  int threads = 0;
  bool json = false;
};
/// Status 1 of `nan`: there are such tensors.
int run_stats(const StatsOptions& options);

struct DuOptions {
  std::string path, step;
  bool json = false;
};
int run_du(const DuOptions& options);

struct TiersOptions {
  std::vector<std::string> roots;
  std::string durable, to;  ///< empty: none
  std::optional<std::int64_t> step;
  bool verify = false;
  bool json = false;
};
/// Status 1 if no step is whole, or what was verified is damaged.
int run_tiers(const TiersOptions& options);

struct RmOptions {
  std::string root;
  std::vector<std::string> words;
  std::vector<std::int64_t> steps;
  bool force = false;
  bool json = false;
};
/// Status 1 if steps were left.
int run_rm(const RmOptions& options);

struct PinOptions {
  std::string root, name;
  std::vector<std::string> words;
  std::int64_t step = 0;
  bool json = false;
};
int run_pin(const PinOptions& options);

struct UnpinOptions {
  std::string root;
  std::vector<std::string> names;
  bool json = false;
};
int run_unpin(const UnpinOptions& options);

struct GcOptions {
  std::string root;
  std::vector<std::string> dead_hosts;
  bool json = false;
};
int run_gc(const GcOptions& options);

/// Which tensors are written, and how they change: texts as TensorEdits reads them.
struct EditOptions {
  std::vector<std::string> select, exclude, renames, casts, transposes, resizes, splits, joins;
  std::string strip_prefix;  ///< of names that begin so, which alone are taken; empty: none
};

struct ReshardOptions {
  std::string source, target, mesh, devices, rules, codec = "zstd";
  std::int64_t writers = 1;
  int processes_per_file = 1;
  int threads = 0;
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  EditOptions edits;
  Existing existing = Existing::fail;
  bool json = false;
};

struct CheckedReshardOptions : ReshardOptions {
  std::string step;
  std::vector<std::string> words;  ///< after the source
  bool dry_run = false, verify = false;
};
/// Status 1 of a dry run: the target's disk may have too little room.
int run_reshard(const CheckedReshardOptions& options);

struct ImportOptions : ReshardOptions {
  ImportOptions() { mesh = "1"; }

  std::int64_t step = 0;
};
int run_import(const ImportOptions& options);

struct ExportOptions {
  std::string source, step, target;
  std::string format;               ///< empty: by the target's ending
  std::vector<std::string> words;   ///< after the source
  std::string config_from;          ///< empty: none
  std::size_t max_shard_bytes = 0;  ///< 0: one file
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  int threads = 0;
  EditOptions edits;
  Existing existing = Existing::fail;
  bool json = false;
};
int run_export(const ExportOptions& options);

struct BatchesOptions {
  std::vector<std::string> sources, specs;
  std::string mesh = "1", order = "shuffled", last = "drop", bad = "fail";
  std::string filter, mix, pack_field, state, timeline;
  std::int64_t batch = 0, epochs = 1, from = 0;
  std::int64_t pack = 0;   ///< 0: not
  std::int64_t count = 0;  ///< 0: all
  std::uint64_t seed = 0;
  int threads = 1, prefetch = 2;
  bool digest = false, json = false;
};
int run_batches(const BatchesOptions& options);

/// Thrown for options that were read well but do not go together; ends the command with status 2.
class BadUsage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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
int run_bench_save(const BenchSaveOptions& options);

struct BenchRestoreOptions {
  std::string directory, step;
  std::optional<std::string> mesh, spec;
  int repeat = 5, threads = 0;
  bool cold = false, fresh_memory = false;
  bool json = false;
};
/// Status 1 if what came back is not what was saved.
int run_bench_restore(const BenchRestoreOptions& options);

}  // namespace shardwise::tools
