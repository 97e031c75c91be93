#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/storage/file.h"

namespace shardwise::mend_detail {

/// Writes right bytes over bad chunks, in place: all steps that link the file have them then.
/// Thread-compatible.
class ChunkMender {
 public:
  /// Each of the checkpoint's files is in one of the directories or has a copy in several. The
  /// checkpoint and the file system must outlive it.
  ChunkMender(FileSystem& file_system, const detail::StoredCheckpoint& checkpoint,
              std::vector<std::filesystem::path> directories)
      : file_system_(file_system), checkpoint_(checkpoint), directories_(std::move(directories)) {}

  /// The bytes are on the disk then, in each copy of the chunk's file. Throws io; corrupt if no
  /// name leads to this file any more.
  void put(const detail::ChunkId& id, std::span<const std::byte> bytes);

  /// Marks the files that were written to as right again (File::seal), and closes them.
  void seal();

  /// Closes them.
  void close() { opened_.clear(); }

 private:
  std::unique_ptr<File> open(const std::filesystem::path& directory, std::size_t number);
  const std::vector<std::unique_ptr<File>>& opened(std::size_t number);

  FileSystem& file_system_;
  const detail::StoredCheckpoint& checkpoint_;
  const std::vector<std::filesystem::path> directories_;
  std::map<std::size_t, std::vector<std::unique_ptr<File>>> opened_;  // by number: each copy
};

}  // namespace shardwise::mend_detail
