#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace shardwise {

/// How much a read or write moves.
enum class Moves {
  whole,
  pages,  ///< now and then less, in whole pages if it has several; now and then EINTR
  bytes,  ///< the same with any number of bytes
};

/// Answers in place of the operating system's.
struct SystemAnswers {
  bool opens_direct = true;       ///< else EINVAL for O_DIRECT, as tmpfs before Linux 6.6
  bool moves_direct = true;       ///< else EINVAL for each read and write with O_DIRECT
  bool allocates = true;          ///< else EOPNOTSUPP for fallocate, as NFS 3
  bool renames_noreplace = true;  ///< else EINVAL for RENAME_NOREPLACE, as NFS
  bool renames = true;            ///< else EXDEV, as an overlay for a lower layer's directory
  Moves moves = Moves::whole;
  std::int64_t bytes_to_allocate = INT64_MAX;  ///< from there on ENOSPC, as a full disk
  std::int64_t bytes_to_write = INT64_MAX;     ///< the same
};

/// Counts of calls so far.
struct SystemCounts {
  std::atomic<std::int64_t> refused{0};     ///< answers that were not the system's own
  std::atomic<std::int64_t> misaligned{0};  ///< reads and writes with O_DIRECT, not in whole pages
  std::atomic<std::int64_t> write_behinds{0};
  std::atomic<std::int64_t> allocated_bytes{0}, written_bytes{0};
  std::atomic<std::int64_t> direct_written_bytes{0}, direct_read_bytes{0};
};

/// Stands between checkpoint/ and the operating system as long as it lives, in a program that is
/// linked with --wrap (tests/checkpoint/CMakeLists.txt). One at a time. Thread-safe.
///
/// O_DIRECT is acted, so that tests see the same on every file system: descriptors are opened
/// without it, and those that asked for it take whole pages only. The page cache seems
/// empty; in a real one, reads would find everything that a test has just written.
class SystemCalls {
 public:
  explicit SystemCalls(const SystemAnswers& answers);
  ~SystemCalls();
  SystemCalls(const SystemCalls&) = delete;
  SystemCalls& operator=(const SystemCalls&) = delete;

  const SystemCounts& counts() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
