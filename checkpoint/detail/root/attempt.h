#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/detail/root/spare.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Makes a file with this content that is on the disk when it returns.
void write_whole_file(FileSystem& file_system, const std::filesystem::path& path,
                      std::span<const std::byte> content);

/// A directory that becomes a checkpoint when it is published, and the lease that keeps others from
/// removing it until then. Destroyed unpublished, it is removed. If the root could not be synced,
/// the disk may hold it under its checkpoint name; then it is left for the next clean-up.
/// Thread-compatible.
class Attempt {
 public:
  /// Keeps references. A lease that cannot be removed at the end goes to `leftovers`, a path. What
  /// `spare`, which may be null, has kept becomes the directory: then files are in it.
  Attempt(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step,
          std::vector<std::filesystem::path>& leftovers, Spare* spare = nullptr);

  /// Becomes the checkpoint `target`, whose name may be any: next to it, if its parent is there.
  /// Throws invalid_argument if the path names no directory.
  Attempt(FileSystem& file_system, const std::filesystem::path& target,
          std::vector<std::filesystem::path>& leftovers);

  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  const std::string& id() const { return id_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// True if the directory was a spare.
  bool is_reused() const { return reused_; }

  /// Makes it a checkpoint, whose directory it returns. A step that is replaced stays, as an
  /// earlier generation; another target changes places with it in one step, and the old one is
  /// removed (if the file system cannot do that, neither is there for a moment, and the old one is
  /// next to it). Throws already_exists, also if the target to be replaced is no checkpoint; io;
  /// and unsupported if the step has the last generation that there can be; then it is no
  /// checkpoint, unless that cannot even be undone.
  std::filesystem::path publish(Existing existing);

 private:
  void take_lease();
  void publish_as(const std::filesystem::path& target, Existing existing);
  void exchange(const std::filesystem::path& target);
  void give_back(const std::filesystem::path& lease) noexcept;
  StepName next_name(Existing existing) const;
  void take_back(const std::filesystem::path& published, bool replaced) noexcept;

  FileSystem& file_system_;
  Maker maker_;  // a forked child's copy leaves all as it is
  std::filesystem::path root_;
  std::int64_t step_ = -1;
  std::string name_;  // of a target that is no step
  std::vector<std::filesystem::path>& leftovers_;
  std::string id_;
  std::filesystem::path directory_, lease_;
  bool reused_ = false;
  bool name_may_be_kept_ = false;  // the disk may know it by a checkpoint's name
};

}  // namespace shardwise::detail
