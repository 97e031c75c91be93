#include "shardwise/loader/detail/remote/block_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kCacheMagic = {'S', 'W', 'b', 'l', 'o', 'c', 'k', '1'};
constexpr std::string_view kUnfinished = ".new-";
constexpr std::size_t kNameDigits = 32;
constexpr std::size_t kHashedAtOnce = std::size_t{1} << 20;
constexpr std::time_t kTouchSeconds = 60, kDeadSeconds = 3600;

/// The last bytes of a file.
struct Trailer {
  std::array<char, 8> magic = kCacheMagic;
  std::uint64_t object_high = 0, object_low = 0, begin = 0, size = 0;
  std::uint64_t hash_high = 0, hash_low = 0;
  std::uint64_t own_hash = 0;  ///< of the fields above

  std::uint64_t computed_hash() const {
    return hash64(reinterpret_cast<const std::byte*>(this), offsetof(Trailer, own_hash));
  }
};
static_assert(sizeof(Trailer) == 64 && std::is_trivially_copyable_v<Trailer>);

Trailer trailer_of(const BlockKey& key, const Hash128& hash) {
  Trailer trailer{.object_high = key.object.high,
                  .object_low = key.object.low,
                  .begin = key.begin,
                  .size = key.size,
                  .hash_high = hash.high,
                  .hash_low = hash.low};
  trailer.own_hash = trailer.computed_hash();
  return trailer;
}

Hash128 hash_in(const Trailer& trailer) { return {trailer.hash_high, trailer.hash_low}; }

std::string name_of(const BlockKey& key) {
  const std::array<std::uint64_t, 4> facts{key.object.high, key.object.low, key.begin, key.size};
  const auto bytes = std::as_bytes(std::span(facts));
  return to_hex(hash128(bytes.data(), bytes.size()));
}

bool read_all(int file, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

bool write_all(int file, std::uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::pwrite(file, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data = data.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

/// An open file; closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  const int number_;
};

Descriptor opened(const fs::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

/// A regular file, and its trailer if a cache wrote it.
struct CacheFile {
  std::uint64_t size = 0;
  timespec used = {};
  std::optional<Trailer> trailer = {};
};

std::optional<CacheFile> look_at(const Descriptor& file) {
  struct stat status {};
  if (!file || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  CacheFile found{static_cast<std::uint64_t>(status.st_size), status.st_mtim, {}};
  Trailer trailer;
  const std::uint64_t begin = found.size - std::min<std::uint64_t>(found.size, sizeof trailer);
  if (found.size >= sizeof trailer &&
      read_all(file.number(), begin, std::as_writable_bytes(std::span(&trailer, 1))) &&
      trailer.magic == kCacheMagic && trailer.own_hash == trailer.computed_hash() &&
      trailer.size == begin) {
    found.trailer = trailer;
  }
  return found;
}

/// True if a cache wrote the file under this name.
bool is_block(const CacheFile& file, std::string_view name) {
  const auto& trailer = file.trailer;
  return trailer &&
         name ==
             name_of({{trailer->object_high, trailer->object_low}, trailer->begin, trailer->size});
}

std::optional<Hash128> hash_of_file(const Descriptor& file, std::uint64_t size) {
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(size, kHashedAtOnce)));
  Hasher128 hasher;
  for (std::uint64_t at = 0; at < size;) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size - at));
    if (!read_all(file.number(), at, std::span(buffer).first(part))) return std::nullopt;
    hasher.update(buffer.data(), part);
    at += part;
  }
  return hasher.digest();
}

/// Marks a file as used, at most once a minute.
void touch(const Descriptor& file, const CacheFile& found) {
  if (::time(nullptr) - found.used.tv_sec >= kTouchSeconds) ::futimens(file.number(), nullptr);
}

/// True for a file that this cache may replace: its own of this name, or one without a byte.
bool may_replace(const fs::path& path) {
  const Descriptor file = opened(path);
  if (!file) return errno == ENOENT;
  const auto found = look_at(file);
  return found && (found->size == 0 || is_block(*found, path.filename().native()));
}

}  // namespace

/// A lock of this process on one byte of the file "lock". The system ends it with the process, and
/// a child of fork() does not have it.
class BlockCache::FileLock {
 public:
  FileLock(int file, std::size_t byte) : file_(file), byte_(static_cast<off_t>(byte)) {
    set(F_WRLCK);
  }
  ~FileLock() { set(F_UNLCK); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  void set(short kind) const {
    struct flock lock {};
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte_;
    lock.l_len = 1;
    while (::fcntl(file_, F_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }

  const int file_;
  const off_t byte_;
};

BlockCache::BlockCache(fs::path folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes), locks_(new Locks{::getpid(), {}, {}}) {
  const auto refuse = [this](ErrorCode code, const std::string& found, const char* needed) {
    delete locks_.load();
    throw Error(code, fmt::format("open the cache {}: found {}, needed {}", folder_.string(), found,
                                  needed));
  };
  std::error_code error;
  fs::create_directories(folder_.parent_path(), error);
  ::mkdir(folder_.c_str(), 0700);
  struct stat status {};
  if (::lstat(folder_.c_str(), &status) != 0) {
    refuse(ErrorCode::io, std::strerror(errno), "a folder that can be made (SHARDWISE_CACHE)");
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    refuse(ErrorCode::invalid_argument, "what others can change",
           "a folder of this user's that nobody else can write to (SHARDWISE_CACHE)");
  }
  lock_file_ = ::open((folder_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_file_ < 0) refuse(ErrorCode::io, std::strerror(errno), "a folder that can be written");
}

BlockCache::~BlockCache() {
  ::close(lock_file_);
  delete locks_.load();
}

// A child of fork() makes locks of its own, since a thread that it lacks may hold the parent's.
BlockCache::Locks& BlockCache::locks() const {
  Locks* held = locks_.load(std::memory_order_acquire);
  if (held->owner == ::getpid()) return *held;
  auto* const own = new Locks{::getpid(), {}, {}};
  if (locks_.compare_exchange_strong(held, own)) return *own;
  delete own;
  return *held;
}

fs::path BlockCache::path_of(const BlockKey& key) const {
  const std::string name = name_of(key);
  return folder_ / name.substr(0, 2) / name;
}

bool BlockCache::find(const BlockKey& key, std::span<std::byte> out) const {
  const fs::path path = path_of(key);
  const Descriptor file = opened(path);
  const auto found = look_at(file);
  if (!found || !is_block(*found, path.filename().native()) || !read_all(file.number(), 0, out) ||
      hash128(out.data(), out.size()) != hash_in(*found->trailer)) {
    return false;
  }
  touch(file, *found);
  return true;
}

bool BlockCache::may_have(const BlockKey& key) const {
  struct stat status {};
  return ::lstat(path_of(key).c_str(), &status) == 0 &&
         static_cast<std::uint64_t>(status.st_size) == key.size + sizeof(Trailer);
}

void BlockCache::put(const BlockKey& key, std::span<const std::byte> bytes) {
  if (bytes.size() + sizeof(Trailer) > most_bytes_) return;
  const Trailer trailer = trailer_of(key, hash128(bytes.data(), bytes.size()));
  std::string written = name_of_new();
  bool is_kept = false;
  {
    const Descriptor file(::mkostemp(written.data(), O_CLOEXEC));
    if (!file) return;
    // The trailer comes first: it says whose the file is, even if this process is killed.
    is_kept = write_all(file.number(), key.size, std::as_bytes(std::span(&trailer, 1))) &&
              write_all(file.number(), 0, bytes);
  }
  if (!is_kept || !publish(key, written)) ::unlink(written.c_str());
}

std::string BlockCache::name_of_new() const {
  return (folder_ / (std::string(kUnfinished) + "XXXXXX")).string();
}

// Gives a complete file its name, once the budget has room for it.
bool BlockCache::publish(const BlockKey& key, const std::string& written) {
  const fs::path path = path_of(key);
  ::mkdir(path.parent_path().c_str(), 0700);
  const MutexLock lock(locks().count);
  const FileLock among_processes(lock_file_, 0);
  if (!may_replace(path)) return false;
  const std::uint64_t bytes = key.size + sizeof(Trailer);
  std::uint64_t all = 0;
  const bool is_counted = read_all(lock_file_, 0, std::as_writable_bytes(std::span(&all, 1)));
  if (!is_counted || all > most_bytes_ || bytes > most_bytes_ - all) all = make_room(bytes);
  if (bytes > most_bytes_ - std::min(all, most_bytes_)) return false;
  all += bytes;
  return write_all(lock_file_, 0, std::as_bytes(std::span(&all, 1))) &&
         ::rename(written.c_str(), path.c_str()) == 0;
}

// Removes the files used least recently until `bytes` more, and a tenth of the budget, are free.
// Returns the bytes that are there. Only files that a cache wrote under their names are seen.
std::uint64_t BlockCache::make_room(std::uint64_t bytes) {
  struct Found {
    std::int64_t used;
    std::uint64_t size;
    fs::path path;
  };
  std::vector<Found> files;
  std::uint64_t all = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_new = name.starts_with(kUnfinished);
    // The file "lock", for one, must not be closed: that would end the locks of this process.
    if (!is_new && name.size() != kNameDigits) continue;
    const Descriptor file = opened(at->path());
    const auto found = look_at(file);
    if (!found || !found->trailer) continue;
    const bool is_dead = is_new && ::time(nullptr) - found->used.tv_sec > kDeadSeconds;
    if (is_dead) ::unlink(at->path().c_str());  // of a process that was killed
    if (is_new || !is_block(*found, name)) continue;
    const std::int64_t used =
        std::int64_t{found->used.tv_sec} * 1'000'000'000 + found->used.tv_nsec;
    files.push_back({used, found->size, at->path()});
    all += found->size;
  }
  std::ranges::sort(files, {}, &Found::used);
  const std::uint64_t most = most_bytes_ - std::min(most_bytes_, std::max(bytes, most_bytes_ / 10));
  for (const Found& found : files) {
    if (all <= most) break;
    if (::unlink(found.path.c_str()) == 0) all -= found.size;
  }
  return all;
}

fs::path BlockCache::whole_file(const BlockKey& key,
                                const std::function<void(const WriteAt& write)>& fill) {
  if (key.size + sizeof(Trailer) > most_bytes_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("fetch a whole file into the cache {}: found {} bytes, needed at most "
                            "its budget of {} (SHARDWISE_CACHE_BYTES)",
                            folder_.string(), key.size, most_bytes_));
  }
  fs::path path = path_of(key);
  bool is_there = false;
  in_turn(key, [&] { is_there = has_whole(key, path) || fetch_whole(key, fill); });
  if (is_there) return path;
  throw Error(ErrorCode::io, fmt::format("fetch a whole file into the cache {}: found no room for "
                                         "{} bytes, or a file of somebody else's in its place",
                                         folder_.string(), key.size));
}

bool BlockCache::has_whole(const BlockKey& key, const fs::path& path) {
  const Descriptor file = opened(path);
  const auto found = look_at(file);
  if (!found || !is_block(*found, path.filename().native()) ||
      hash_of_file(file, key.size) != hash_in(*found->trailer)) {
    return false;
  }
  touch(file, *found);
  return true;
}

bool BlockCache::fetch_whole(const BlockKey& key,
                             const std::function<void(const WriteAt& write)>& fill) {
  std::string written = name_of_new();
  const Descriptor file(::mkostemp(written.data(), O_CLOEXEC | O_RDWR));
  const auto write = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    if (file && write_all(file.number(), offset, bytes)) return;
    throw Error(ErrorCode::io,
                fmt::format("fetch a whole file into the cache {}: {}", folder_.string(),
                            std::strerror(errno)),
                errno);
  };
  bool is_kept = false;
  try {
    const auto end = [&](const Hash128& hash) {
      const Trailer trailer = trailer_of(key, hash);
      write(key.size, std::as_bytes(std::span(&trailer, 1)));
    };
    end({});
    fill(write);
    if (const auto hash = hash_of_file(file, key.size)) {
      end(*hash);
      is_kept = publish(key, written);
    }
  } catch (...) {
    ::unlink(written.c_str());
    throw;
  }
  if (!is_kept) ::unlink(written.c_str());
  return is_kept;
}

void BlockCache::in_turn(const BlockKey& key, const std::function<void()>& body) const {
  const std::size_t turn = static_cast<std::size_t>(key.object.low + key.begin) % kTurns;
  const MutexLock lock(locks().turns[turn]);
  const FileLock among_processes(lock_file_, 8 + turn);
  body();
}

}  // namespace shardwise::detail
