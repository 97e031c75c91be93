#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/save.h"

namespace shardwise::detail {

/// Where the files of a CheckpointAttempt go, and how they become a checkpoint. Destroyed
/// unpublished, it leaves none.
class AttemptPlace {
 public:
  virtual ~AttemptPlace() = default;

  virtual const std::string& id() const = 0;
  virtual const std::filesystem::path& directory() const = 0;

  /// Other processes have written the shard files. Completes the manifest and the statistics.
  virtual void publish(Manifest& manifest, SaveStats& stats, std::span<const std::byte> index) = 0;
};

}  // namespace shardwise::detail
