#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/detail/remote/block_cache.h"
#include "shardwise/loader/detail/store_error.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {

/// Errors of a store become StoreError; those of a caller's mistakes stay as they are.
template <class Request>
auto from_store(const Request& request) {
  try {
    return request();
  } catch (const Error& error) {
    const bool is_mistake = error.code() == ErrorCode::invalid_argument ||
                            error.code() == ErrorCode::unsupported ||
                            error.code() == ErrorCode::cancelled;
    if (is_mistake) throw;
    throw StoreError(error.code(), error.what());
  }
}

/// True for the URL of a bucket or a web server.
bool is_remote(const std::filesystem::path& path);

/// The store and key of a URL. Throws invalid_argument, unsupported.
BucketPlace remote_place(const std::filesystem::path& url);

/// The URL without what may be a secret: a web server's query.
std::string shown_url(const std::filesystem::path& url);

/// An object that is read as a file, through the cache of blocks that is set when it is opened.
/// It stays the object that it was: if another one has taken its place, reads throw StoreError.
/// Thread-safe; also in a child of fork().
class RemoteFile final : public File {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

  /// Asks the store for size and ETag, unless `known` has them from a listing. Throws not_found,
  /// and StoreError.
  explicit RemoteFile(const std::filesystem::path& url, const ObjectInfo* known = nullptr);

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override;
  std::uint64_t size() override { return info_.size; }

  /// A hash of ETag and size: another for another content.
  std::uint64_t tag() const { return tag_; }

  /// A copy of all of it in the cache, complete and compared with its hash. Throws as
  /// BlockCache::whole_file, and StoreError.
  std::filesystem::path whole_copy();

  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override {}
  void close() override {}

 private:
  using Block = std::shared_ptr<const std::vector<std::byte>>;

  [[noreturn]] static void refuse();
  BlockKey key_of(std::uint64_t block) const;
  Block block(std::uint64_t number, std::uint64_t last);
  Block kept(std::uint64_t number);
  Block fetch(std::uint64_t number, std::uint64_t last);
  void get(std::uint64_t offset, std::span<std::byte> into);

  const BucketPlace place_;
  const ObjectInfo info_;
  const std::uint64_t tag_;
  const Hash128 object_;
  const std::shared_ptr<BlockCache> cache_;  // null: none is kept
  // To fetch more at a time from a file that is read in order.
  std::atomic<std::uint64_t> next_block_{0}, window_{1};
};

}  // namespace shardwise::detail
