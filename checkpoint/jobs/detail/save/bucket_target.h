#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

/// A step in a bucket by its path, "s3://bucket/runs/step-00000100", for a save without a manager.
struct BucketTarget {
  /// Throws unsupported if the path's last part is no step's name, as it must be in a bucket:
  /// generations of a name, which let a save follow one that was killed, are those of steps.
  explicit BucketTarget(const std::filesystem::path& target);

  /// After the commit: removes the generations that the saved one replaces. A failure goes to
  /// SaveStats::cleanup_error.
  void remove_replaced(SaveStats& stats) const;

  std::filesystem::path root;
  std::int64_t step = 0;
  std::shared_ptr<bucket_detail::BucketRoot> bucket;
  std::shared_ptr<FileSystem> files;
};

}  // namespace shardwise::jobs_detail
