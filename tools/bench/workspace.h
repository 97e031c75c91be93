#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

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
  std::filesystem::path raw_file(int round) const;

  /// What the file system has room for. Throws io.
  std::size_t free_bytes() const;

  /// Throws io where that is less than this.
  void check_space(std::size_t needed_bytes) const;

  /// That a checkpoint has been written there, which is to be removed with the rest.
  void owns(const std::filesystem::path& checkpoint) { checkpoints_.push_back(checkpoint); }

  /// That the last one is gone, or stays.
  void disowns_last() { checkpoints_.pop_back(); }

 private:
  void make();
  void remove_made() const;

  std::filesystem::path directory_, own_, root_;
  std::vector<std::filesystem::path> checkpoints_;
  std::filesystem::path made_;  // the topmost directory that was not there before; or empty
};

}  // namespace shardwise::tools
