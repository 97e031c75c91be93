#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The stored bytes of a chunk, as the table of its file says them.
struct ChunkBytes {
  std::string file;  ///< its name in the directory of a step
  std::uint64_t address, bytes, hash;
};

/// Finds chunks in the fast roots of a host: in copies of their file, whatever else of
/// these is damaged, and in any file of any step that has a chunk with the same bytes.
/// Thread-compatible.
class HostChunks {
 public:
  /// The file system must outlive it.
  HostChunks(FileSystem& file_system, std::span<const std::filesystem::path> roots);

  struct Found {
    std::vector<std::byte> bytes;
    std::string from;  ///< "process-00003/step-00000100"; of several roots the whole path
  };

  /// Absent if the host has none with this size and hash.
  std::optional<Found> find(const ChunkBytes& chunk);

 private:
  struct Place {
    std::size_t directory;  // number in directories_
    std::filesystem::path file;
    std::uint64_t address, bytes;
  };

  void make_index();
  std::optional<Found> read(const Place& place, const ChunkBytes& chunk);

  FileSystem& file_system_;
  struct Directory {
    std::int64_t step;
    std::filesystem::path path;
    std::string name;
  };
  std::vector<Directory> directories_;  // the newest step first
  bool has_index_ = false;
  std::unordered_multimap<std::uint64_t, Place> index_;  // by hash
};

}  // namespace shardwise::detail
