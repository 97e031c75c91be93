#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class Clock;

/// A box of a tensor, in elements.
struct TensorBox {
  std::string name;
  Box box;
};

/// The boxes that restoring these arrays gives the devices of this process, each once.
std::vector<TensorBox> addressable_boxes(const Devices& devices,
                                         std::span<const TensorRequest> requests);

/// Which boxes this process needs of a step. The reader has the step's tensors and texts; reading
/// elements throws invalid_argument.
using NeededBoxes = std::function<std::vector<TensorBox>(CheckpointReader step)>;

enum class Tier {
  fast,    ///< roots of single processes
  durable  ///< the root that all share
};

/// How many steps stay in each tier; 0: all.
struct TierKeepOptions {
  std::int64_t fast = 2;  ///< 2 or more
  std::int64_t durable = 0;
};

/// Which steps go on to the durable root, and how fast.
struct DrainOptions {
  std::int64_t every = 10;  ///< one save of this number, beginning with the first

  /// Bytes that each process writes there a second, at most; 0: no limit. Two moments t seconds
  /// apart have at most t times as many bytes between them, and one write more.
  std::int64_t bytes_per_second = 0;

  std::shared_ptr<Clock> clock = nullptr;  ///< measures the limit; null: the machine's
};

/// How the steps of both tiers are written: as WriteOptions.
struct TierWriteOptions {
  Codec fast_codec = Codec::none;  ///< the fast tier's; SaveOptions::codec is the durable one's

  /// A step that failed in the fast tier does not go on.
  OnSaveError on_save_error = OnSaveError::raise;
  std::int64_t most_failed_saves = 3;
  int threads = 0;
};

struct TierOptions {
  /// Which other processes get a copy of each shard file of the fast tier.
  LocalRoots local = {};

  TierKeepOptions keep = {};
  DrainOptions drain = {};
  TierWriteOptions write = {};

  /// As in ManagerOptions.
  ProcessGroup group = {};
  std::int64_t devices = 0;
  std::shared_ptr<FileSystem> file_system = nullptr;

  /// As in ManagerOptions, of both tiers; called on rank 0 only, on any thread.
  std::function<void(const std::string&)> warn = nullptr;
};

/// The newest step that is whole, and the transfers that made it so.
struct TierStep {
  Tier tier = Tier::fast;

  /// In the fast tier its directory has the files that were asked for, and maybe no others: a
  /// CheckpointReader of its own takes it for damaged.
  Step step = {};

  /// Files that this process had to take from others, or that another process left on its host.
  std::int64_t files_taken = 0;
  std::uint64_t bytes_taken = 0;

  /// Newer steps that cannot be had, newest first, and why.
  std::vector<std::string> passed_over = {};

  /// Manifests and copies of files that were found bad, and the problem of each: another copy was
  /// taken, its bad chunks were replaced, or an older step was taken.
  std::vector<std::string> damaged = {};

  /// Sources that replaced bad chunks of this process's files: "2 chunks of
  /// shards-00001-of-00003.h5 from rank 2's process-00002/step-00000100".
  std::vector<std::string> mended = {};

  /// Opens a reader of the boxes that were asked for.
  CheckpointReader open(const ReadOptions& options = {}) const;

  /// "step 40 of the fast tier, 2 files (3.1 MiB) from other processes"
  std::string to_string() const;
};

/// Checkpoints in two tiers: often on a fast disk (or in /dev/shm) that each host has alone, from
/// time to time on a durable one that all share.
///
/// A save writes each process's shard files to its own directory, FAST/process-00003, and gives
/// copies to other hosts; that is when it is committed. Now and then it goes on to the durable root
/// in the background. A restart takes the newest step whose shard files are all somewhere: in
/// any process's directory, as a copy with another host, or in the durable root. It may have
/// another number of processes and another mesh. (Anchor: Orbax's emergency checkpoints.)
///
/// A step of the fast tier that latest() has passed over is replaced when the job saves it again,
/// once, whatever SaveOptions::existing says.
///
/// All processes of the group call all methods, in the same order. Thread-compatible.
///
///   Devices devices(4);
///   ArraySpec spec{DType::f32, {8, 16}, Sharding(Mesh::line(4), PartitionSpec::parse("0,-"))};
///   std::vector<TensorRequest> wanted = {{"w", spec}};
///   const std::vector<std::byte> zeros(8 * 16 * 4);
///   std::vector<ShardedArray> arrays = {ShardedArray::from_host(devices, spec, zeros)};
///   TieredManager manager("fast", "durable");  // /dev/shm/job, /shared/job
///   if (auto found = manager.latest(addressable_boxes(devices, wanted))) {
///     CheckpointReader reader = found->open();
///     arrays = reader.restore(devices, wanted);
///   }
///   manager.save_async(100, {tensor_source("w", arrays[0])});
class TieredManager {
 public:
  /// Throws as CheckpointManager's constructor.
  TieredManager(const std::filesystem::path& fast, const std::filesystem::path& durable,
                TierOptions options = {});

  /// As close(), but an error goes to stderr, as a destructor cannot throw.
  ~TieredManager();
  TieredManager(const TieredManager&) = delete;
  TieredManager& operator=(const TieredManager&) = delete;

  /// Returns when the step is committed in the fast tier. If it is one that goes on to the
  /// durable root, waits for the one before to be there. Throws as CheckpointManager::save, and the
  /// error of an earlier step on its way to the durable root.
  SaveStats save(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions options = {});
  PendingSave save_async(std::int64_t step, std::vector<TensorSource> tensors,
                         SaveOptions options = {});

  /// Waits for saves that are under way, and throws their error if nobody has seen it.
  void close();

  /// The newest whole step; this process then has its files that hold these boxes. Nothing if
  /// neither tier has one. Every byte of these files was compared with its hash. Instead
  /// of a bad chunk the same bytes are taken from another copy on any host, from an older step's
  /// equal chunk on any host, or from the durable root; only if a chunk is nowhere, the step is
  /// passed over for the durable root's or an older one. The durable root's files are checked as
  /// they are read. Throws not_found if the step has
  /// no such tensor, invalid_argument, corrupt and io as CheckpointManager::latest, cancelled.
  std::optional<TierStep> latest(std::span<const TensorBox> needed);

  /// The same if the needed boxes depend on the step: `needed` is called for each step of the fast
  /// tier that is tried. An error that it throws ends the call on all processes.
  std::optional<TierStep> latest_as_needed(const NeededBoxes& needed);

  /// How saves in the fast tier have ended; durable().stats() of those that went on.
  ManagerStats stats() const;

  /// The durable root's.
  const CheckpointManager& durable() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The files of a step in fast roots.
struct FastStep {
  std::int64_t step = 0;
  bool is_set_aside = false;  ///< by a run that went back: latest() does not take it
  std::int64_t files = 0;     ///< shard files of the whole step
  std::uint64_t bytes = 0;    ///< in these

  /// FAST/process-00003/step-00000100 of each process that has part of it.
  std::vector<std::filesystem::path> directories = {};

  /// Shard files, or chunks of them, without a good copy: then the step cannot be restored from
  /// these roots.
  std::vector<std::string> nowhere = {};

  /// The problem of each copy of a file that was read and found bad.
  std::vector<std::string> damaged = {};
};

struct FastSteps {
  std::vector<FastStep> steps;       ///< the newest first
  std::vector<std::string> damaged;  ///< the problem of each manifest that was passed over
};

struct FastStepOptions {
  /// The durable root, from which chunks can be taken, too; empty: none.
  std::filesystem::path durable = {};

  std::shared_ptr<FileSystem> file_system = nullptr;  ///< null: posix_file_system()
};

/// The steps in fast roots, of one host or of several whose roots were copied or mounted. No
/// process of the job need run. Of a file only the size is looked at. Throws io, not_found.
FastSteps fast_steps(std::span<const std::filesystem::path> roots,
                     const FastStepOptions& options = {});

/// The same, but reads all that the steps use and compares all hashes, and looks for each bad chunk
/// as TieredManager::latest() does.
FastSteps verify_fast_steps(std::span<const std::filesystem::path> roots,
                            const FastStepOptions& options = {});

/// Makes the newest whole step of fast roots, or the one that is named, an ordinary checkpoint in
/// the root `target`, as TieredManager::latest() puts it together. Throws not_found if there is no
/// step, corrupt if none is whole, already_exists if the target has it, io.
TierStep gather_fast_step(std::span<const std::filesystem::path> roots,
                          const std::filesystem::path& target, std::optional<std::int64_t> step,
                          const FastStepOptions& options = {});

}  // namespace shardwise
