#include "shardwise/loader/detail/remote/remote_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <utility>

#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/parallel_requests.h"

namespace shardwise {
namespace detail {
namespace {

constexpr std::uint64_t kDefaultCacheBytes = std::uint64_t{8} << 30;
constexpr std::uint64_t kMostBlocksAtOnce = 8;
constexpr std::size_t kRecentBlocks = 32;
constexpr int kWholeFileRequests = 4;
constexpr std::string_view kNewestBlocks = "blocks-1";  // the format of the files in it

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::filesystem::path default_folder() {
  if (const std::string folder = environment("SHARDWISE_CACHE"); !folder.empty()) return folder;
  if (const std::string base = environment("XDG_CACHE_HOME"); !base.empty()) {
    return std::filesystem::path(base) / "shardwise";
  }
  if (const std::string home = environment("HOME"); !home.empty()) {
    return std::filesystem::path(home) / ".cache" / "shardwise";
  }
  return std::filesystem::temp_directory_path() / fmt::format("shardwise-{}", ::geteuid());
}

std::uint64_t default_bytes() {
  const std::string text = environment("SHARDWISE_CACHE_BYTES");
  if (text.empty()) return kDefaultCacheBytes;
  if (const auto bytes = parse_count(text)) return static_cast<std::uint64_t>(*bytes);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("read SHARDWISE_CACHE_BYTES: found \"{}\", needed a number of bytes",
                          text.substr(0, 40)));
}

struct CurrentCache {
  Mutex mutex;
  bool is_set SHARDWISE_GUARDED_BY(mutex) = false;
  std::shared_ptr<BlockCache> cache SHARDWISE_GUARDED_BY(mutex);
};

CurrentCache& current_cache() {
  static CurrentCache current;
  return current;
}

std::shared_ptr<BlockCache> make_cache(const RemoteCacheOptions& options) {
  const std::uint64_t bytes = options.most_bytes ? *options.most_bytes : default_bytes();
  if (bytes == 0) return nullptr;
  const std::filesystem::path folder = options.folder.empty() ? default_folder() : options.folder;
  return std::make_shared<BlockCache>(std::filesystem::absolute(folder) / kNewestBlocks, bytes);
}

std::shared_ptr<BlockCache> cache_for_new_files() {
  CurrentCache& current = current_cache();
  const MutexLock lock(current.mutex);
  if (!current.is_set) current.cache = make_cache({});
  current.is_set = true;
  return current.cache;
}

/// The blocks used last, in memory: files are often read in small pieces. Thread-safe.
class RecentBlocks {
 public:
  using Block = std::shared_ptr<const std::vector<std::byte>>;

  Block find(const Hash128& object, std::uint64_t begin) {
    const MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(blocks_, [&](const Entry& entry) {
      return entry.begin == begin && entry.object == object;
    });
    if (found == blocks_.end()) return nullptr;
    blocks_.splice(blocks_.begin(), blocks_, found);
    return found->block;
  }

  void add(const Hash128& object, std::uint64_t begin, Block block) {
    const MutexLock lock(mutex_);
    blocks_.push_front({object, begin, std::move(block)});
    if (blocks_.size() > kRecentBlocks) blocks_.pop_back();
  }

 private:
  struct Entry {
    Hash128 object;
    std::uint64_t begin;
    Block block;
  };
  Mutex mutex_;
  std::list<Entry> blocks_ SHARDWISE_GUARDED_BY(mutex_);
};

/// A child of fork() gets its own: a thread that it lacks may hold the lock of the parent's.
RecentBlocks& recent_blocks() {
  struct Owned {
    pid_t owner;
    RecentBlocks blocks;
  };
  static std::atomic<Owned*> all{nullptr};
  Owned* held = all.load(std::memory_order_acquire);
  if (held != nullptr && held->owner == ::getpid()) return held->blocks;
  auto* const own = new Owned{::getpid(), {}};
  if (all.compare_exchange_strong(held, own)) return own->blocks;
  delete own;
  return held->blocks;
}

ObjectInfo info_of(const BucketPlace& place, const std::filesystem::path& url) {
  std::optional<ObjectInfo> info;
  if (!place.key.empty()) info = from_store([&] { return place.store->head(place.key); });
  if (info && !info->etag.empty()) return *info;
  if (info) {
    throw StoreError(
        ErrorCode::corrupt,
        fmt::format("open {}: found an object without an ETag, needed one", shown_url(url)));
  }
  throw StoreError(ErrorCode::not_found,
                   fmt::format("open {}: found no such object", shown_url(url)));
}

std::uint64_t tag_of(const ObjectInfo& info) {
  return hash64(fmt::format("{} {}", info.size, info.etag));
}

}  // namespace

bool is_remote(const std::filesystem::path& path) { return in_bucket(path) || on_web(path); }

BucketPlace remote_place(const std::filesystem::path& url) {
  return on_web(url) ? open_web(url) : open_bucket(path_of_url(url.native()));
}

std::string shown_url(const std::filesystem::path& url) {
  const std::string& text = url.native();
  return on_web(url) ? text.substr(0, text.find('?')) : text;
}

RemoteFile::RemoteFile(const std::filesystem::path& url, const ObjectInfo* known)
    : place_(remote_place(url)),
      info_(known != nullptr ? *known : info_of(place_, url)),
      tag_(tag_of(info_)),
      object_(
          hash128(fmt::format("{}\n{}\n{}\n{}", place_.base, place_.key, info_.size, info_.etag))),
      cache_(cache_for_new_files()) {}

void RemoteFile::refuse() {
  throw Error(ErrorCode::unsupported, "write to a file at a URL: sources only read");
}

void RemoteFile::read_at(std::uint64_t offset, std::byte* data, std::size_t size) {
  if (offset > info_.size || size > info_.size - offset) {
    throw Error(ErrorCode::corrupt,
                fmt::format("read of {}/{}: found {} bytes, needed {} from byte {} on", place_.base,
                            place_.key, info_.size, size, offset));
  }
  if (size == 0) return;
  const std::uint64_t last = (offset + size - 1) / kBlockBytes;
  while (size > 0) {
    const Block bytes = block(offset / kBlockBytes, last);
    const auto skipped = static_cast<std::size_t>(offset % kBlockBytes);
    const std::size_t part = std::min(size, bytes->size() - skipped);
    std::memcpy(data, bytes->data() + skipped, part);
    data += part, offset += part, size -= part;
  }
}

BlockKey RemoteFile::key_of(std::uint64_t block) const {
  const std::uint64_t begin = block * kBlockBytes;
  return {object_, begin, std::min<std::uint64_t>(kBlockBytes, info_.size - begin)};
}

// `last`: of the blocks that the caller reads.
RemoteFile::Block RemoteFile::block(std::uint64_t number, std::uint64_t last) {
  if (Block found = kept(number)) return found;
  Block fetched;
  if (!cache_) return fetch(number, last);
  cache_->in_turn({object_, number / kMostBlocksAtOnce, 0}, [&] {
    fetched = kept(number);  // another may have fetched it by now
    if (!fetched) fetched = fetch(number, last);
  });
  return fetched;
}

RemoteFile::Block RemoteFile::kept(std::uint64_t number) {
  const BlockKey key = key_of(number);
  if (Block found = recent_blocks().find(object_, key.begin)) return found;
  if (!cache_) return nullptr;
  std::vector<std::byte> bytes(static_cast<std::size_t>(key.size));
  if (!cache_->find(key, bytes)) return nullptr;
  Block found = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  recent_blocks().add(object_, key.begin, found);
  return found;
}

// Gets a run of blocks by one request: those that the caller reads, and the more the longer the
// file has been read in order.
RemoteFile::Block RemoteFile::fetch(std::uint64_t number, std::uint64_t last) {
  const bool goes_on = number == next_block_.load(std::memory_order_relaxed) && number > 0;
  const std::uint64_t window =
      goes_on ? std::min(2 * window_.load(std::memory_order_relaxed), kMostBlocksAtOnce) : 1;
  const std::uint64_t in_file = (info_.size - 1) / kBlockBytes + 1 - number;
  const std::uint64_t most = std::min(in_file, kMostBlocksAtOnce - number % kMostBlocksAtOnce);
  const std::uint64_t wanted = std::min(most, std::max(window, last - number + 1));
  std::uint64_t count = 1;
  while (count < wanted && !(cache_ && cache_->may_have(key_of(number + count)))) ++count;
  std::uint64_t size = 0;
  for (std::uint64_t i = 0; i < count; ++i) size += key_of(number + i).size;
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  get(number * kBlockBytes, bytes);
  next_block_.store(number + count, std::memory_order_relaxed);
  window_.store(window, std::memory_order_relaxed);
  Block first;
  for (std::uint64_t i = count; i-- > 0;) {
    const BlockKey key = key_of(number + i);
    const auto part = std::span(bytes).subspan(static_cast<std::size_t>(i * kBlockBytes),
                                               static_cast<std::size_t>(key.size));
    if (cache_) cache_->put(key, part);
    first = std::make_shared<const std::vector<std::byte>>(part.begin(), part.end());
    recent_blocks().add(object_, key.begin, first);
  }
  return first;
}

void RemoteFile::get(std::uint64_t offset, std::span<std::byte> into) {
  from_store([&] { place_.store->get(place_.key, offset, into, info_.etag); });
}

std::filesystem::path RemoteFile::whole_copy() {
  const BlockKey whole{object_, 0, info_.size};
  if (!cache_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("fetch {}/{}: found a cache of 0 bytes, needed {} "
                            "(SHARDWISE_CACHE_BYTES)",
                            place_.base, place_.key, info_.size));
  }
  return cache_->whole_file(whole, [&](const BlockCache::WriteAt& write) {
    constexpr std::uint64_t kPart = kMostBlocksAtOnce * kBlockBytes;
    const auto parts = static_cast<std::size_t>((info_.size + kPart - 1) / kPart);
    request_all(parts, kWholeFileRequests, [&](std::size_t part) {
      const std::uint64_t begin = part * kPart;
      std::vector<std::byte> bytes(
          static_cast<std::size_t>(std::min<std::uint64_t>(kPart, info_.size - begin)));
      get(begin, bytes);
      write(begin, bytes);
    });
  });
}

}  // namespace detail

void set_remote_cache(const RemoteCacheOptions& options) {
  std::shared_ptr<detail::BlockCache> cache = detail::make_cache(options);
  detail::CurrentCache& current = detail::current_cache();
  const MutexLock lock(current.mutex);
  current.cache = std::move(cache);
  current.is_set = true;
}

}  // namespace shardwise
