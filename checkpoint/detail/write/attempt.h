#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/file.h"
#include "shardwise/checkpoint/detail/step_name.h"
#include "shardwise/checkpoint/save.h"

namespace shardwise::detail {

/// Makes a file with this content that is on the disk when it returns.
void write_whole_file(FileSystem& file_system, const std::filesystem::path& path,
                      std::span<const std::byte> content);

/// A directory that becomes a checkpoint when it is published, and the lease that keeps others from
/// removing it until then. Destroyed unpublished, it is removed. Thread-compatible.
class Attempt {
 public:
  /// Keeps references. A lease that cannot be removed at the end goes to `leftovers`, a path.
  Attempt(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step,
          std::vector<std::filesystem::path>& leftovers);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  const std::string& id() const { return id_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// Makes it a checkpoint. Throws already_exists, and io; then it is none, and is removed.
  StepName publish(Existing existing);

 private:
  void take_lease();
  void give_lease_back();

  FileSystem& file_system_;
  std::filesystem::path root_;
  std::int64_t step_;
  std::vector<std::filesystem::path>& leftovers_;
  std::string id_;
  std::filesystem::path directory_, lease_;
};

}  // namespace shardwise::detail
