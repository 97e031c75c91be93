#include "shardwise/storage/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/attributes.h"
#include "shardwise/storage/detail/page_cache.h"

namespace shardwise {
namespace {

// The alignment that O_DIRECT demands of addresses, offsets and sizes; no file system needs more.
constexpr std::uint64_t kDirectAlignment = 4096;

// Smaller reads always go through the page cache.
constexpr std::size_t kLeastDirectRead = std::size_t{64} << 10;

// Dirty pages are sent to the disk when they reach this size, so that the disk works while we
// compute and the final fsync finds nothing left (measured: 3.2 GB/s durable instead of 1.8).
constexpr std::uint64_t kWriteBehindBytes = std::uint64_t{8} << 20;

constexpr std::size_t kMostRuns = 64;  // per call; Linux takes up to 1,024

constexpr std::size_t kMostBytesPerCall = std::size_t{1} << 30;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void throw_system(int error, std::string_view operation,
                               const std::filesystem::path& path, std::string_view detail = {}) {
  ErrorCode code = ErrorCode::io;
  if (error == ENOENT) code = ErrorCode::not_found;
  if (error == EEXIST || error == ENOTEMPTY) code = ErrorCode::already_exists;
  if (error == EXDEV) code = ErrorCode::unsupported;
  throw Error(code,
              fmt::format("{} {}: {}{}{}", operation, path.string(), reason(error),
                          detail.empty() ? "" : ", ", detail),
              error);
}

std::string place(std::uint64_t offset, std::size_t size) {
  return fmt::format("{} bytes at offset {} needed", size, offset);
}

template <class Call>
auto retry(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Owns a file descriptor. Thread-compatible.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }

  // The error number, or 0. Linux closes even when it reports EINTR.
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

int open_descriptor(const std::filesystem::path& path, int flags) {
  return retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
}

bool is_aligned(std::uint64_t offset, const std::byte* data, std::size_t size = 0) {
  return (offset | reinterpret_cast<std::uintptr_t>(data) | size) % kDirectAlignment == 0;
}

// Two descriptors of one file: aligned writes bypass the page cache, all other writes go through
// it. The two never share a page, since the direct part ends at the end of a page. Rounding a tail
// up instead would overwrite the bytes after it. As thread-safe as a File.
class PosixFile final : public File {
 public:
  PosixFile(std::filesystem::path path, Descriptor cached, Descriptor direct)
      : path_(std::move(path)),
        cached_(std::move(cached)),
        direct_(std::move(direct)),
        use_direct_(direct_.get() >= 0) {}

  // For reading.
  PosixFile(std::filesystem::path path, Descriptor cached, std::uint64_t size)
      : PosixFile(std::move(path), std::move(cached), Descriptor()) {
    cache_.emplace(cached_.get(), size);
  }

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    std::size_t done = read_direct(offset, data, size) ? size : 0;
    if (done < size) done = transfer(offset, data, size, ::pread, "read");
    if (done < size) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("read {}: the file ends at byte {}, {}", path_.string(),
                              std::min(offset + done, this->size()), place(offset, size)));
    }
  }

  bool in_memory(std::uint64_t offset) override { return cache_ && cache_->holds(offset); }

  std::uint64_t next_data(std::uint64_t offset) override {
    const off_t data = ::lseek(cached_.get(), static_cast<off_t>(offset), SEEK_DATA);
    if (data >= 0) return static_cast<std::uint64_t>(data);
    return errno == ENXIO ? std::max(offset, size()) : offset;
  }

  void read_once() override {
    // Opens the same file again, even if its name leads elsewhere by now. Without /proc, or if
    // O_DIRECT is refused, reads go through the cache.
    const std::string same = fmt::format("/proc/self/fd/{}", cached_.get());
    direct_ = Descriptor(open_descriptor(same, O_RDONLY | O_DIRECT));
    use_direct_ = direct_.get() >= 0;
  }

  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    const std::size_t done = write_direct(offset, data, size);
    if (done == size) return;
    const std::size_t rest = transfer(offset + done, data + done, size - done, ::pwrite, "write");
    if (done + rest < size) throw_system(ENOSPC, "write", path_, place(offset, size));
    const std::uint64_t dirty = dirty_bytes_.fetch_add(size - done) + (size - done);
    if (dirty < kWriteBehindBytes) return;
    dirty_bytes_ -= dirty;
    // Only a hint: an error of the disk itself is reported by sync().
    ::sync_file_range(cached_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }

  void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
    while (!runs.empty()) {
      const std::span<const WriteRun> part = runs.first(std::min(runs.size(), kMostRuns));
      if (!write_direct(offset, part)) File::write_runs(offset, part);
      offset += total_bytes(part);
      runs = runs.subspan(part.size());
    }
  }

  std::uint64_t size() override {
    struct stat status {};
    if (::fstat(cached_.get(), &status) != 0) throw_system(errno, "stat", path_);
    return static_cast<std::uint64_t>(status.st_size);
  }

  void resize(std::uint64_t size) override {
    const std::uint64_t now = this->size();
    const auto end = static_cast<off_t>(size);
    if (size > now) {
      const auto begin = static_cast<off_t>(now);
      if (retry([&] { return ::fallocate(cached_.get(), 0, begin, end - begin); }) == 0) return;
      if (errno != EOPNOTSUPP && errno != ENOSYS) fail("allocate", now, size - now);
    }
    if (retry([&] { return ::ftruncate(cached_.get(), end); }) != 0) fail("resize", 0, size);
  }

  void sync() override {
    if (retry([&] { return ::fsync(cached_.get()); }) != 0) throw_system(errno, "sync", path_);
  }

  void close() override {
    const int direct_error = direct_.close();
    const int cached_error = cached_.close();
    if (const int error = cached_error != 0 ? cached_error : direct_error; error != 0) {
      throw_system(error, "close", path_);
    }
  }

  // The mark is a modification time without a fraction of a second; later writes set one. A file
  // system that keeps only whole seconds shows every file as sealed.
  void seal() noexcept override { set_fraction(0); }
  void unseal() noexcept override { set_fraction(500'000'000); }
  bool is_sealed() override {
    struct stat status {};
    if (::fstat(cached_.get(), &status) != 0) throw_system(errno, "stat", path_);
    return status.st_mtim.tv_nsec == 0;
  }

 private:
  void set_fraction(long nanoseconds) noexcept {
    struct stat status {};
    if (::fstat(cached_.get(), &status) != 0) return;
    const std::array<timespec, 2> times{timespec{0, UTIME_OMIT},
                                        timespec{status.st_mtim.tv_sec, nanoseconds}};
    static_cast<void>(::futimens(cached_.get(), times.data()));  // refused: it stays as it is
  }

  [[noreturn]] void fail(std::string_view operation, std::uint64_t offset, std::size_t size) {
    throw_system(errno, operation, path_, place(offset, size));
  }

  // Moves `size` bytes through the page cache; fewer only if a read reaches the file's end. Call is
  // pread or pwrite.
  template <class Byte, class Call>
  std::size_t transfer(std::uint64_t offset, Byte* data, std::size_t size, Call call,
                       std::string_view operation) {
    std::size_t done = 0;
    while (done < size) {
      const std::size_t part = std::min(size - done, kMostBytesPerCall);
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t moved = retry([&] { return call(cached_.get(), data + done, part, at); });
      if (moved < 0) fail(operation, offset, size);
      if (moved == 0) break;
      done += static_cast<std::size_t>(moved);
    }
    return done;
  }

  static std::size_t total_bytes(std::span<const WriteRun> runs) {
    std::size_t bytes = 0;
    for (const WriteRun& run : runs) bytes += run.size;
    return bytes;
  }

  // Reads all of it, bypassing the cache, or returns false: the caller's read through the cache
  // then reads it or reports the error.
  bool read_direct(std::uint64_t offset, std::byte* data, std::size_t size) {
    if (!cache_ || !use_direct_ || size < kLeastDirectRead || !is_aligned(offset, data, size) ||
        cache_->holds(offset)) {
      return false;
    }
    const ssize_t moved =
        retry([&] { return ::pread(direct_.get(), data, size, static_cast<off_t>(offset)); });
    if (moved < 0 && errno == EINVAL) use_direct_ = false;
    return moved == static_cast<ssize_t>(size);
  }

  // Writes all of it, bypassing the cache, or returns false: the caller then writes run by run or
  // reports the error.
  bool write_direct(std::uint64_t offset, std::span<const WriteRun> runs) {
    std::array<iovec, kMostRuns> vectors;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (!use_direct_ || !is_aligned(offset, runs[i].data, runs[i].size)) return false;
      vectors[i] = {const_cast<std::byte*>(runs[i].data), runs[i].size};
    }
    const ssize_t moved = retry([&] {
      return ::pwritev(direct_.get(), vectors.data(), static_cast<int>(runs.size()),
                       static_cast<off_t>(offset));
    });
    return moved == static_cast<ssize_t>(total_bytes(runs));
  }

  // Writes as many whole pages as can bypass the cache; none if the file system refuses.
  std::size_t write_direct(std::uint64_t offset, const std::byte* data, std::size_t size) {
    if (!use_direct_ || !is_aligned(offset, data)) return 0;
    const std::size_t end = size / kDirectAlignment * kDirectAlignment;
    std::size_t done = 0;
    while (done < end) {
      const std::size_t part = std::min(end - done, kMostBytesPerCall);
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t moved = retry([&] { return ::pwrite(direct_.get(), data + done, part, at); });
      if (moved < 0 && errno == EINVAL) {
        use_direct_ = false;
        break;
      }
      if (moved < 0 && errno == EFAULT) break;  // a device's memory, which only copies can reach
      if (moved < 0) fail("write", offset, size);
      done += static_cast<std::size_t>(moved);
      if (moved == 0 || done % kDirectAlignment != 0) break;
    }
    return done;
  }

  std::filesystem::path path_;
  Descriptor cached_, direct_;
  std::atomic<bool> use_direct_;
  std::optional<detail::PageCacheView> cache_;  // of a file that is open for reading
  std::atomic<std::uint64_t> dirty_bytes_{0};
};

// Takes the descriptor of a file that was opened. If opening failed, errno says why.
std::unique_ptr<File> readable(const std::filesystem::path& path, Descriptor cached) {
  if (cached.get() < 0 && errno == ELOOP) {
    throw Error(ErrorCode::corrupt, fmt::format("open {}: a link, not a file", path.string()));
  }
  struct stat status {};  // without a type if the path is a directory that was opened for writing
  const bool failed = cached.get() < 0 ? errno != EISDIR : ::fstat(cached.get(), &status) != 0;
  if (failed) throw_system(errno, "open", path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::corrupt, fmt::format("open {}: not a regular file", path.string()));
  }
  return std::make_unique<PosixFile>(path, std::move(cached),
                                     static_cast<std::uint64_t>(status.st_size));
}

// Non-blocking, so that a pipe in a file's place is an error and not a wait. Links are refused,
// since a checkpoint has none, and the target of a link may change.
constexpr int kReadFlags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW;

class PosixDirectory final : public Directory {
 public:
  PosixDirectory(std::filesystem::path path, Descriptor directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}

  std::unique_ptr<File> open(const std::string& name) override {
    const int flags = kReadFlags | O_CLOEXEC;
    return readable(
        path_ / name,
        Descriptor(retry([&] { return ::openat(directory_.get(), name.c_str(), flags); })));
  }

  bool is_in_place() override {
    struct stat there {};
    struct stat here {};
    return ::stat(path_.c_str(), &there) == 0 && ::fstat(directory_.get(), &here) == 0 &&
           there.st_dev == here.st_dev && there.st_ino == here.st_ino;
  }

 private:
  std::filesystem::path path_;
  Descriptor directory_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override {
    Descriptor cached(open_descriptor(path, O_RDWR | O_CREAT | O_EXCL));
    if (cached.get() < 0) throw_system(errno, "create", path);
    return writable(path, std::move(cached), caching);
  }

  std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) override {
    Descriptor cached(open_descriptor(path, O_RDWR | O_NONBLOCK | O_NOFOLLOW));
    struct stat status {};
    if (cached.get() < 0 || ::fstat(cached.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_nlink != 1 || !is_as_new(path, cached.get()) ||
        !zero(cached.get(), status.st_size)) {
      return nullptr;
    }
    return writable(path, std::move(cached), caching);
  }

  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    return readable(path, Descriptor(open_descriptor(path, kReadFlags)));
  }

  std::unique_ptr<File> open_for_update(const std::filesystem::path& path) override {
    return readable(path, Descriptor(open_descriptor(path, O_RDWR | O_NONBLOCK | O_NOFOLLOW)));
  }

  std::unique_ptr<Directory> open_directory(const std::filesystem::path& path) override {
    // Finding a file in a directory does not need the right to list it.
    Descriptor directory(open_descriptor(path, O_PATH | O_DIRECTORY));
    if (directory.get() < 0) throw_system(errno, "open directory", path);
    return std::make_unique<PosixDirectory>(path, std::move(directory));
  }

  void make_directory(const std::filesystem::path& path) override {
    if (::mkdir(path.c_str(), 0777) != 0) throw_system(errno, "make directory", path);
  }

  void sync_directory(const std::filesystem::path& path) override {
    const Descriptor directory(open_descriptor(path, O_RDONLY | O_DIRECTORY));
    if (directory.get() < 0) throw_system(errno, "open directory", path);
    if (retry([&] { return ::fsync(directory.get()); }) != 0) {
      throw_system(errno, "sync directory", path);
    }
  }

  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno == EINVAL || errno == ENOSYS) {
      // For file systems without the flag. Plain rename does not replace a directory with entries
      // either, and all our other names are unique.
      struct stat status {};
      errno = EEXIST;
      if (::lstat(to.c_str(), &status) != 0 && ::rename(from.c_str(), to.c_str()) == 0) return;
    }
    throw_system(errno, "rename", from, "to " + to.string());
  }

  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
    const bool unknown = errno == EINVAL || errno == ENOSYS;
    throw_system(unknown ? EXDEV : errno, "exchange", a, "with " + b.string());
  }

  void link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0) return;
    // The file system has no second names, the user has no right to them, or the limit is reached.
    const bool refused = errno == EPERM || errno == EMLINK || errno == ENOSYS || errno == EACCES;
    throw_system(refused ? EXDEV : errno, "link", from, "to " + to.string());
  }

  void remove(const std::filesystem::path& path) override {
    if (std::remove(path.c_str()) != 0 && errno != ENOENT) throw_system(errno, "remove", path);
  }

  std::uint64_t free_bytes(const std::filesystem::path& directory) override {
    struct statvfs status {};
    if (::statvfs(directory.c_str(), &status) != 0) return FileSystem::free_bytes(directory);
    return std::uint64_t{status.f_bavail} * status.f_frsize;
  }

  std::vector<std::string> list(const std::filesystem::path& path) override {
    DIR* const directory = ::opendir(path.c_str());
    if (directory == nullptr) throw_system(errno, "list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(directory)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(directory);
    if (error != 0) throw_system(error, "list", path);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  static std::unique_ptr<File> writable(const std::filesystem::path& path, Descriptor cached,
                                        Caching caching) {
    Descriptor direct;
    // A file system without O_DIRECT says EINVAL here. Any other error shows up with the other
    // descriptor, too.
    if (caching == Caching::direct) direct = Descriptor(open_descriptor(path, O_RDWR | O_DIRECT));
    return std::make_unique<PosixFile>(path, std::move(cached), std::move(direct));
  }

  // True if the file has the attributes that a new file would get there now. Attributes that a user
  // gave to one checkpoint must not appear on the next.
  static bool is_as_new(const std::filesystem::path& path, int fd) {
    const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
    const Descriptor fresh(open_descriptor(parent, O_TMPFILE | O_RDWR));
    return fresh.get() >= 0 && detail::have_same_attributes(fd, fresh.get());
  }

  // Fills the file with zeros and keeps its room on the disk. False if the file system cannot, or
  // if another descriptor of any process leads to the file, since Linux then grants no write lease.
  // A process that opens the file during this call waits, and this process gets SIGURG, which is
  // ignored by default; SIGIO would end it.
  static bool zero(int fd, off_t size) {
    if (::fcntl(fd, F_SETSIG, SIGURG) != 0 || ::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return false;
    const bool zeros =
        size == 0 || retry([&] { return ::fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, size); }) == 0;
    return ::fcntl(fd, F_SETLEASE, F_UNLCK) == 0 && zeros;
  }
};

}  // namespace

void File::write_runs(std::uint64_t offset, std::span<const WriteRun> runs) {
  for (const WriteRun& run : runs) {
    write_at(offset, run.data, run.size);
    offset += run.size;
  }
}

namespace {

class DirectoryByPath final : public Directory {
 public:
  DirectoryByPath(FileSystem& file_system, std::filesystem::path path)
      : file_system_(file_system), path_(std::move(path)) {}

  std::unique_ptr<File> open(const std::string& name) override {
    return file_system_.open(path_ / name);
  }
  bool is_in_place() override {
    try {
      static_cast<void>(file_system_.list(path_));
      return true;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;
      return false;
    }
  }

 private:
  FileSystem& file_system_;
  const std::filesystem::path path_;
};

}  // namespace

std::unique_ptr<Directory> FileSystem::open_directory(const std::filesystem::path& path) {
  static_cast<void>(list(path));  // throws not_found
  return std::make_unique<DirectoryByPath>(*this, path);
}

std::unique_ptr<File> FileSystem::open_for_update(const std::filesystem::path& path) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("open {}: this file system cannot write to a file that is there", path.string()));
}

void FileSystem::exchange(const std::filesystem::path& a, const std::filesystem::path& b) {
  throw_system(EXDEV, "exchange", a, "with " + b.string());
}

std::uint64_t FileSystem::free_bytes(const std::filesystem::path& /*directory*/) {
  return std::numeric_limits<std::uint64_t>::max();
}

void FileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
  throw_system(EXDEV, "link", from, "to " + to.string());
}

std::shared_ptr<FileSystem> posix_file_system() { return std::make_shared<PosixFileSystem>(); }

}  // namespace shardwise
