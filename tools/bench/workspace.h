#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

namespace shardwise::tools {

/// Where a benchmark writes: a fresh directory of its own inside the given one, which is made if it
/// is missing. The destructor removes all that was written and made; files from before are never
/// touched. Thread-compatible.
class Workspace {
 public:
  /// Whether the checkpoint stays: then the directory given becomes the root of its step.
  enum class Leave { nothing, checkpoint };

  /// Throws already_exists if a checkpoint is to stay where others are, or another run's directory
  /// has our name; io.
  Workspace(const std::filesystem::path& directory, Leave leave);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path raw_file(int round) const;

  /// Free bytes of the file system. Throws io.
  std::size_t free_bytes() const;

  /// Throws io if that is less than this.
  void check_space(std::size_t needed_bytes) const;

  /// Notes that a checkpoint has been written there, to be removed with the rest.
  void owns(const std::filesystem::path& checkpoint) { checkpoints_.push_back(checkpoint); }

  /// Notes that the last one is gone, or stays.
  void disowns_last() { checkpoints_.pop_back(); }

 private:
  void make();
  void remove_made() const;

  std::filesystem::path directory_, own_, root_;
  std::vector<std::filesystem::path> checkpoints_;
  std::filesystem::path made_;  // the topmost directory that was not there before; or empty
};

}  // namespace shardwise::tools
