#include "testing/system_calls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <set>

// The linker gives calls of open to __wrap_open, and calls of __real_open to the system's open.
extern "C" {
int __real_open(const char* path, int flags, ...);
int __real_openat(int directory, const char* path, int flags, ...);
ssize_t __real_pread(int fd, void* data, size_t size, off_t at);
ssize_t __real_pwrite(int fd, const void* data, size_t size, off_t at);
ssize_t __real_pwritev(int fd, const iovec* runs, int count, off_t at);
int __real_fallocate(int fd, int mode, off_t begin, off_t size);
int __real_renameat2(int from_in, const char* from, int to_in, const char* to, unsigned flags);
int __real_sync_file_range(int fd, off_t begin, off_t size, unsigned flags);
int __real_mincore(void* begin, size_t size, unsigned char* resident);
}

namespace shardwise {

struct SystemCalls::Impl {
  explicit Impl(const SystemAnswers& given)
      : answers(given),
        bytes_to_allocate(given.bytes_to_allocate),
        bytes_to_write(given.bytes_to_write) {}

  int refuse(int error) {
    ++counts.refused;
    errno = error;
    return -1;
  }

  int open(const char* path, int flags, mode_t mode) {
    const bool asks_direct = (flags & O_DIRECT) != 0;
    if (asks_direct && !answers.opens_direct) return refuse(EINVAL);
    const int fd = __real_open(path, flags & ~O_DIRECT, mode);
    const std::lock_guard lock(mutex);
    // A number that is given out again stands for another file.
    if (asks_direct) {
      direct.insert(fd);
    } else {
      direct.erase(fd);
    }
    return fd;
  }

  int openat(int directory, const char* path, int flags) {
    const int fd = __real_openat(directory, path, flags);
    const std::lock_guard lock(mutex);
    direct.erase(fd);
    return fd;
  }

  bool is_direct(int fd) {
    const std::lock_guard lock(mutex);
    return direct.count(fd) > 0;
  }

  // How many bytes a read or write moves; else -1, and errno says why.
  ssize_t part(int fd, const void* data, size_t size, off_t at) {
    constexpr std::size_t kPage = 4096;
    if (is_direct(fd)) {
      if (!answers.moves_direct) return refuse(EINVAL);
      const auto address = reinterpret_cast<std::uintptr_t>(data);
      if ((address | size | static_cast<std::size_t>(at)) % kPage != 0) {
        ++counts.misaligned;
        return refuse(EINVAL);
      }
    }
    if (answers.moves != Moves::whole) {
      const unsigned number = moves++;
      if (number % 6 == 1) return refuse(EINTR);
      if (number % 2 == 0) size = less(size, answers.moves == Moves::pages ? kPage : 1);
    }
    return static_cast<ssize_t>(size);
  }

  std::size_t less(std::size_t size, std::size_t unit) {
    if (size / 2 < unit) return size;
    ++counts.refused;
    return size / 2 / unit * unit;
  }

  ssize_t pread(int fd, void* data, size_t size, off_t at) {
    const ssize_t moves_bytes = part(fd, data, size, at);
    if (moves_bytes < 0) return -1;
    const ssize_t moved = __real_pread(fd, data, static_cast<size_t>(moves_bytes), at);
    if (moved > 0 && is_direct(fd)) counts.direct_read_bytes += moved;
    return moved;
  }

  ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
    ssize_t moves_bytes = part(fd, data, size, at);
    if (moves_bytes < 0) return -1;
    const std::int64_t room = bytes_to_write.fetch_sub(moves_bytes);
    if (room < moves_bytes) ++counts.refused;
    if (room <= 0) return refuse(ENOSPC);
    moves_bytes = std::min<std::int64_t>(moves_bytes, room);
    const ssize_t moved = __real_pwrite(fd, data, static_cast<size_t>(moves_bytes), at);
    if (moved > 0) counts.written_bytes += moved;
    if (moved > 0 && is_direct(fd)) counts.direct_written_bytes += moved;
    return moved;
  }

  // One run after the other, up to the first that does not move as a whole.
  ssize_t pwritev(int fd, const iovec* runs, int count, off_t at) {
    ssize_t sum = 0;
    for (int i = 0; i < count; ++i) {
      const ssize_t moved = pwrite(fd, runs[i].iov_base, runs[i].iov_len, at + sum);
      if (moved < 0) return sum > 0 ? sum : -1;
      sum += moved;
      if (static_cast<size_t>(moved) < runs[i].iov_len) break;
    }
    return sum;
  }

  int fallocate(int fd, int mode, off_t begin, off_t size) {
    if (!answers.allocates) return refuse(EOPNOTSUPP);
    if (mode == FALLOC_FL_ZERO_RANGE)
      return __real_fallocate(fd, mode, begin, size);  // it has room
    if (bytes_to_allocate.fetch_sub(size) < size) return refuse(ENOSPC);
    counts.allocated_bytes += size;
    return __real_fallocate(fd, mode, begin, size);
  }

  const SystemAnswers answers;
  SystemCounts counts;
  std::atomic<unsigned> moves{0};
  std::atomic<std::int64_t> bytes_to_allocate, bytes_to_write;
  std::mutex mutex;
  std::set<int> direct;  // under the mutex
};

namespace {
std::atomic<SystemCalls::Impl*> current{nullptr};
}

SystemCalls::SystemCalls(const SystemAnswers& answers) : impl_(std::make_unique<Impl>(answers)) {
  assert(current == nullptr);
  current = impl_.get();
}

SystemCalls::~SystemCalls() { current = nullptr; }

const SystemCounts& SystemCalls::counts() const { return impl_->counts; }

}  // namespace shardwise

extern "C" {

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  auto* const calls = shardwise::current.load();
  return calls != nullptr ? calls->open(path, flags, mode) : __real_open(path, flags, mode);
}

// Only for reading: nothing is made.
int __wrap_openat(int directory, const char* path, int flags, ...) {
  auto* const calls = shardwise::current.load();
  return calls != nullptr ? calls->openat(directory, path, flags)
                          : __real_openat(directory, path, flags);
}

ssize_t __wrap_pread(int fd, void* data, size_t size, off_t at) {
  auto* const calls = shardwise::current.load();
  return calls != nullptr ? calls->pread(fd, data, size, at) : __real_pread(fd, data, size, at);
}

ssize_t __wrap_pwrite(int fd, const void* data, size_t size, off_t at) {
  auto* const calls = shardwise::current.load();
  return calls != nullptr ? calls->pwrite(fd, data, size, at) : __real_pwrite(fd, data, size, at);
}

ssize_t __wrap_pwritev(int fd, const iovec* runs, int count, off_t at) {
  auto* const calls = shardwise::current.load();
  return calls != nullptr ? calls->pwritev(fd, runs, count, at)
                          : __real_pwritev(fd, runs, count, at);
}

int __wrap_fallocate(int fd, int mode, off_t begin, off_t size) {
  auto* const calls = shardwise::current.load();
  return calls != nullptr ? calls->fallocate(fd, mode, begin, size)
                          : __real_fallocate(fd, mode, begin, size);
}

int __wrap_renameat2(int from_in, const char* from, int to_in, const char* to, unsigned flags) {
  auto* const calls = shardwise::current.load();
  if (calls != nullptr && !calls->answers.renames) return calls->refuse(EXDEV);
  if (calls != nullptr && !calls->answers.renames_noreplace && (flags & RENAME_NOREPLACE) != 0) {
    return calls->refuse(EINVAL);
  }
  return __real_renameat2(from_in, from, to_in, to, flags);
}

int __wrap_sync_file_range(int fd, off_t begin, off_t size, unsigned flags) {
  auto* const calls = shardwise::current.load();
  if (calls != nullptr) ++calls->counts.write_behinds;
  return __real_sync_file_range(fd, begin, size, flags);
}

int __wrap_mincore(void* begin, size_t size, unsigned char* resident) {
  if (shardwise::current.load() == nullptr) return __real_mincore(begin, size, resident);
  std::fill_n(resident, (size + 4095) / 4096, static_cast<unsigned char>(0));
  return 0;
}

}  // extern "C"
