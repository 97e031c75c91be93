#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

class Clock;

/// The steps with the smallest, or the largest, values of a metric (SaveOptions::metrics).
struct BestSteps {
  std::string metric;
  enum class Order { min, max } order = Order::min;
  std::int64_t count = 1;
};

/// Which steps stay after a commit: those that any of these rules keeps (0: no rule), the newest,
/// and pinned ones (ReadOptions::pin, CheckpointManager::pins). Without a rule all stay.
struct KeepOptions {
  std::int64_t last = 0;   ///< this number of the newest valid steps
  std::int64_t every = 0;  ///< the steps that it divides

  /// The oldest step, and each that was committed this long after the last one that this rule
  /// keeps, by the time of its manifest.json.
  std::chrono::seconds interval{0};

  /// The best steps by a metric. As long as no step has it, all stay.
  std::optional<BestSteps> best = {};
};

/// When CheckpointManager::should_save() says yes, and how long a save may take.
struct WhenOptions {
  std::int64_t every = 1;            ///< for the steps that it divides; 0: for none
  std::chrono::seconds interval{0};  ///< also if no save has begun for so long; 0: however long

  /// Also if one of these signals has come, such as SIGTERM, on any process; so does then
  /// preemption(). While the manager lives, they do nothing else.
  std::vector<int> preemption_signals = {};

  /// How long after such a signal the process lives; 0: as long as it likes. A save that would take
  /// longer, by the speed of this one so far or of the one before, ends with `cancelled`.
  std::chrono::milliseconds preemption_grace{0};

  /// Measures intervals and deadlines; null: the machine's clock.
  std::shared_ptr<Clock> clock = nullptr;
};

/// How save_async goes on if the save before is still under way.
enum class WhenBusy {
  wait,     ///< it waits for that one
  skip,     ///< it saves nothing: SaveStats::skipped
  replace,  ///< it is saved after that one, unless the next one takes its place
            ///< (SaveStats::skipped); this takes the memory of two copies
};

/// The fate of a step that is to be removed while a reader has pinned it (ReadOptions::pin).
enum class WhenRead {
  remove,  ///< it is removed all the same
  keep,    ///< it stays, as with retention
};

/// How a job goes on if the storage fails a save: no room, a broken device, a file that is gone or
/// damaged, on any process.
enum class OnSaveError {
  raise,  ///< its error is thrown
  warn,   ///< the job goes on: the save tells why it failed, and does not throw
};

/// How a manager writes its steps.
struct WriteOptions {
  WhenBusy when_busy = WhenBusy::wait;

  /// Says how the job goes on if the storage fails a save on any process. With `warn`, stats() and
  /// SaveStats::error say why, and should_save() is true the next time. Thrown all the same, on all
  /// processes: one in a row more than most_failed_saves (1 or more), caller's errors, `cancelled`.
  OnSaveError on_save_error = OnSaveError::raise;
  std::int64_t most_failed_saves = 3;

  /// The next save writes in the shard files of the checkpoint that was removed last, whose disk
  /// space stays until then or until the next clean-up: in half the time on some virtual disks.
  /// Files that others use or have changed, or that cannot be emptied, are removed at once.
  bool reuse_files = true;

  /// Chunks whose bytes are those of the newest step, by 128 bits of hash, are not written again:
  /// the new step gets a hard link to the files that hold them. So each step stays whole whatever
  /// becomes of the others, but steps share bad places on the disk. Pieces of less than 64 KiB,
  /// tensors that are cut in another way than before, and steps that are replaced are always
  /// written; so is all where there are no hard links.
  bool increments = true;

  /// Between the commit of a step and the end of its save, each process writes parity of its shard
  /// files, so many blocks a group (write_parity; 0: none). SaveStats::cleanup_error says why not.
  int parity_blocks = 0;

  /// Rank 0 writes each save's SaveStats next to its step, as stats-step-00000100.json.
  bool stats = true;
  int threads = 0;  ///< that gather, compress and hash; 0: as many as the machine has cores
};

/// How a manager's saves have ended, with OnSaveError::warn: the same on all processes.
struct ManagerStats {
  std::int64_t failed_saves = 0;                 ///< of all
  std::int64_t failed_in_a_row = 0;              ///< since the last one that was committed
  std::optional<std::int64_t> failed_step = {};  ///< of the last save that failed
  std::string error = {};                        ///< the reason, with the rank
};

/// For a job whose processes each have a root of their own, on a node-local disk or in /dev/shm.
struct LocalRoots {
  /// How many other processes get a copy of each shard file. Those of rank r are the ranks
  /// r + processes_per_host, r + 2 processes_per_host, ... modulo the number of processes.
  int copies = 0;

  /// How many neighbouring ranks are lost together. It divides the number of processes, and there
  /// are more hosts than copies.
  int processes_per_host = 1;
};

namespace jobs_detail {
/// Options by the names of other libraries; the compiler shows their names here.
struct MaxToKeep {
  MaxToKeep() = default;
  MaxToKeep(std::int64_t) = delete;  // .keep = {.last = 3}
};
struct SaveIntervalSteps {
  SaveIntervalSteps() = default;
  SaveIntervalSteps(std::int64_t) = delete;  // .when = {.every = 100}
};
struct MapAsJson {
  std::map<std::string, double> user_json;
};
}  // namespace jobs_detail

}  // namespace shardwise
