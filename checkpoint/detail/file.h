#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace shardwise {

/// Memory that holds a part of what is written.
struct WriteRun {
  const std::byte* data;
  std::size_t size;
};

/// An open file. Thread-safe for reads and writes at different places. Every failure throws io with
/// path, operation and the system's reason; a missing file not_found.
class File {
 public:
  virtual ~File() = default;

  /// Reads exactly `size` bytes. Throws corrupt where the file ends before.
  virtual void read_at(std::uint64_t offset, std::byte* data, std::size_t size) = 0;

  /// Whether the byte is known to lie in memory, so that small reads cost no more than large ones.
  virtual bool in_memory(std::uint64_t /*offset*/) { return false; }

  /// A hint: nothing is read twice, so that it need not be kept in memory.
  virtual void read_once() {}
  virtual void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) = 0;

  /// Writes the runs one behind the other, from `offset` on. The default writes them one by one.
  virtual void write_runs(std::uint64_t offset, std::span<const WriteRun> runs);

  virtual std::uint64_t size() = 0;
  virtual void resize(std::uint64_t size) = 0;  ///< later writes need not extend the file
  virtual void sync() = 0;                      ///< data and metadata are on the disk after it
  virtual void close() = 0;                     ///< errors of closing; the destructor hides them
};

/// Whether writes pass the page cache by. `direct` falls back to cached where the file system
/// refuses it; writes that are not aligned to 4 KiB go through the cache on the same file.
enum class Caching { cached, direct };

/// Every file operation of checkpoint/ goes through one of these, so that a test can fail it.
/// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// For reading and writing. Throws already_exists where it is there.
  virtual std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) = 0;

  /// Opens a file that is there for writing and reading, with zeros in the place of all its bytes:
  /// its room on the disk stays its own, so writing is as cheap as where the disk has been written
  /// before. Null where it is not there, the file system cannot do that, its owner or rights are
  /// not those of a new file, or somebody else has it: open, in this process or another, or by a
  /// second name.
  virtual std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) = 0;

  /// For reading. Throws not_found, and corrupt for what is not a regular file.
  virtual std::unique_ptr<File> open(const std::filesystem::path& path) = 0;

  /// Throws already_exists where it is there.
  virtual void make_directory(const std::filesystem::path& path) = 0;
  virtual void sync_directory(const std::filesystem::path& path) = 0;

  /// Throws already_exists where `to` is there; it is never replaced.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;

  /// A file or an empty directory. Absent is not an error. Throws already_exists where the
  /// directory holds something.
  virtual void remove(const std::filesystem::path& path) = 0;

  /// Names in a directory, sorted. Throws not_found.
  virtual std::vector<std::string> list(const std::filesystem::path& path) = 0;
};

/// The operating system's.
std::shared_ptr<FileSystem> posix_file_system();

}  // namespace shardwise
