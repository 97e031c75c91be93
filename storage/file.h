#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// A part of a write: `size` bytes of memory at `data`.
struct WriteRun {
  const std::byte* data;
  std::size_t size;
};

/// An open file. Sizes and offsets are in bytes. The destructor closes the file and hides errors;
/// close() reports them.
///
/// Every failure throws an Error that names the path, the operation and the system's reason: io
/// unless a method says otherwise.
///
/// Thread-safe for reads and writes at different places; close() comes last.
class File {
 public:
  virtual ~File() = default;

  /// Reads exactly `size` bytes. Throws corrupt if the file ends before that.
  virtual void read_at(std::uint64_t offset, std::byte* data, std::size_t size) = 0;

  /// True if the byte is known to be in memory, so that small reads cost no more than large ones.
  /// False if unknown.
  virtual bool in_memory(std::uint64_t /*offset*/) { return false; }

  /// The offset of the first byte from `offset` on that may be other than zero: holes that the file
  /// system reports are skipped. The file's end if only a hole follows; `offset` if unknown.
  virtual std::uint64_t next_data(std::uint64_t offset) { return offset; }

  /// A hint that no byte is read twice, so the system need not keep them in memory. Call it before
  /// any read.
  virtual void read_once() {}

  /// Writes all of it, or throws.
  virtual void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) = 0;

  /// Writes the runs one after the other, from `offset` on. The default calls write_at for each.
  virtual void write_runs(std::uint64_t offset, std::span<const WriteRun> runs);

  virtual std::uint64_t size() = 0;
  virtual void resize(std::uint64_t size) = 0;  ///< later writes need not extend the file
  virtual void sync() = 0;                      ///< returns when data and metadata are on the disk
  virtual void close() = 0;                     ///< no other call may follow

  /// Marks a file whose bytes are final; call it after sync(). A later write by any process takes
  /// the mark away; a copy, a second name and a rename may. A file that cannot be marked stays
  /// unmarked. By default nothing is marked.
  virtual void seal() noexcept {}

  /// Takes the mark away, for bytes that are known to be bad. Needs no right to write.
  virtual void unseal() noexcept {}

  /// True if the mark is there. True if that is not known, as by default.
  virtual bool is_sealed() { return true; }
};

/// How writes use the page cache. `direct` bypasses it, or falls back to cached if the file system
/// refuses; writes that are not aligned to 4 KiB go through the cache on the same file.
enum class Caching { cached, direct };

/// An open directory: its files are found even if its path no longer leads to it. Thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;

  /// As FileSystem::open, for a file in the directory.
  virtual std::unique_ptr<File> open(const std::string& name) = 0;

  /// True if its path still leads to it.
  virtual bool is_in_place() = 0;
};

/// The file operations that a save or restore uses. Thread-safe. To change one operation of a file
/// system, say to see how a program copes with a fault, derive from ForwardingFileSystem
/// (forwarding_file_system.h) and give it to ManagerOptions::file_system or
/// ReadOptions::file_system.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// A new file, for reading and writing. Throws already_exists if the path exists.
  virtual std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) = 0;

  /// Opens an existing file for reading and writing, and turns all its bytes into zeros. The file
  /// keeps its room on the disk, so writing is as cheap as overwriting.
  ///
  /// Null if there is no such file, the file system cannot do this, the file has a second name, it
  /// is open in this process or another, or it differs from a new file in that directory in owner,
  /// group, rights, ACLs and other extended attributes, or flags.
  virtual std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) = 0;

  /// For reading. Throws not_found, and corrupt if it is a link or not a regular file.
  virtual std::unique_ptr<File> open(const std::filesystem::path& path) = 0;

  /// For reading and writing; all bytes stay as they are. Throws not_found, corrupt if it is a link
  /// or not a regular file, and unsupported if the file system cannot; the default always does.
  virtual std::unique_ptr<File> open_for_update(const std::filesystem::path& path);

  /// For reading the files in it. Throws not_found. The default opens them by their paths, and
  /// needs the file system as long as the directory is in use.
  virtual std::unique_ptr<Directory> open_directory(const std::filesystem::path& path);

  /// Throws already_exists if the path exists.
  virtual void make_directory(const std::filesystem::path& path) = 0;

  /// Returns when the names in the directory are on the disk.
  virtual void sync_directory(const std::filesystem::path& path) = 0;

  /// Throws already_exists if `to` exists; it is never replaced. Throws unsupported if the system
  /// cannot rename between the two places, such as from one file system to another, or a lower
  /// layer's directory in an overlay.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;

  /// Swaps the names of two existing directories or files in one step. Throws unsupported if the
  /// system cannot; the default always does.
  virtual void exchange(const std::filesystem::path& a, const std::filesystem::path& b);

  /// Gives a file a second name. Throws already_exists if `to` exists, not_found, and unsupported
  /// if the file system cannot link the two places; the default always does.
  virtual void link(const std::filesystem::path& from, const std::filesystem::path& to);

  /// Removes a file or an empty directory; one that does not exist is no error. Throws
  /// already_exists if the directory is not empty.
  virtual void remove(const std::filesystem::path& path) = 0;

  /// Bytes that are free for files in this directory; the largest number if unknown, as by default.
  virtual std::uint64_t free_bytes(const std::filesystem::path& directory);

  /// Names in a directory, sorted. Throws not_found.
  virtual std::vector<std::string> list(const std::filesystem::path& path) = 0;
};

/// The operating system's files.
std::shared_ptr<FileSystem> posix_file_system();

}  // namespace shardwise
