#pragma once

#include <filesystem>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/detail/root/spare.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Keeps a checkpoint from being removed by retention, of any process on its root, while somebody
/// reads it: a file next to it that holds the reader's lease. If none can be made, on a read-only
/// root say, nothing is kept. It ends with the process that made it, or that process's object: a
/// forked child's copy changes nothing. Immutable.
class Pin {
 public:
  /// `directory` is the checkpoint's. Pin first, then open: what can be opened then stays.
  Pin(FileSystem& file_system, const std::filesystem::path& directory);
  ~Pin();
  bool holds() const { return !path_.empty(); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  FileSystem& file_system_;
  Maker maker_;
  std::filesystem::path path_;  // empty: no pin was made
};

/// True if a process that may be alive has pinned the checkpoint.
bool is_pinned(FileSystem& file_system, const std::filesystem::path& root, const StepName& name,
               const GarbageOptions& options = {});

/// remove_checkpoint, unless it is pinned; says whether it is gone. If a pin appears during the
/// removal, the checkpoint gets its name back, unless a collector has already taken it. Its files
/// go to `spare`, if there is one.
bool remove_unless_pinned(FileSystem& file_system, const std::filesystem::path& root,
                          const StepName& name, Spare* spare = nullptr);

}  // namespace shardwise::detail
