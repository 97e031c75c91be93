#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

/// Bytes of one version of an object. `object`: hash of its name, ETag and size.
struct BlockKey {
  Hash128 object;
  std::uint64_t begin, size;
};

/// Blocks in files of one folder, within a budget of bytes. Each file ends in a trailer that says
/// which block it is and how its bytes hash, so a file that the cache did not write is known by it,
/// and neither trusted nor removed. Files get their names when they are complete. Processes share
/// the folder; they count its bytes and take turns by locks on its file "lock". Thread-safe.
class BlockCache {
 public:
  /// Makes the folder. Throws invalid_argument if it is another user's or others may write to it;
  /// io.
  BlockCache(std::filesystem::path folder, std::uint64_t most_bytes);
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::uint64_t most_bytes() const { return most_bytes_; }

  /// Fills `out`, of key.size bytes; false if the block is not there or its hash is wrong.
  bool find(const BlockKey& key, std::span<std::byte> out) const;

  /// True if a file of that name and size is there.
  bool may_have(const BlockKey& key) const;

  /// Keeps a block, and removes others if it has to. A block that the budget or the disk has no
  /// room for is not kept.
  void put(const BlockKey& key, std::span<const std::byte> bytes);

  /// The path of a file that begins with the bytes of the key, and has been read and compared with
  /// their hash. Without such a file, `fill` writes one, in any order. Throws invalid_argument if
  /// the budget is smaller; errors of `fill` pass through.
  using WriteAt = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;
  std::filesystem::path whole_file(const BlockKey& key,
                                   const std::function<void(const WriteAt& write)>& fill);

  /// Runs `body` while no other thread or process runs one for an equal key, so that each block is
  /// fetched once. If a lock cannot be had, it runs all the same.
  void in_turn(const BlockKey& key, const std::function<void()>& body) const;

 private:
  static constexpr std::size_t kTurns = 64;
  struct Locks {
    pid_t owner;
    Mutex count;
    std::array<Mutex, kTurns> turns;
  };
  class FileLock;

  std::filesystem::path path_of(const BlockKey& key) const;
  std::string name_of_new() const;
  static bool has_whole(const BlockKey& key, const std::filesystem::path& path);
  bool fetch_whole(const BlockKey& key, const std::function<void(const WriteAt& write)>& fill);
  bool publish(const BlockKey& key, const std::string& written);
  std::uint64_t make_room(std::uint64_t bytes);
  Locks& locks() const;

  const std::filesystem::path folder_;
  const std::uint64_t most_bytes_;
  int lock_file_ = -1;
  mutable std::atomic<Locks*> locks_;
};

}  // namespace shardwise::detail
