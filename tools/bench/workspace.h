#pragma once

#include <cstddef>
#include <filesystem>

namespace shardwise::tools {

/// Where a benchmark writes: a fresh directory of its own inside the one given, which is made where
/// it is not there. Destroyed, it removes all that was written and made; what was there before is
/// never touched. Thread-compatible.
class Workspace {
 public:
  /// Whether the checkpoint stays: then the directory given becomes the root of its step.
  enum class Leave { nothing, checkpoint };

  /// Throws already_exists where a checkpoint is to stay beside others, or another run's directory
  /// has our name; io.
  Workspace(const std::filesystem::path& directory, Leave leave);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path raw_file() const { return own_ / "raw"; }

  /// Throws io where the file system has less room than this.
  void check_space(std::size_t needed_bytes) const;

  /// That a checkpoint has been written there, which is to be removed with the rest; an empty path
  /// says that it is gone, or stays.
  void owns(const std::filesystem::path& checkpoint) { checkpoint_ = checkpoint; }

 private:
  void make();
  void remove_made() const;

  std::filesystem::path directory_, own_, root_, checkpoint_;
  std::filesystem::path made_;  // the topmost directory that was not there before; or empty
};

}  // namespace shardwise::tools
