#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/storage/forwarding_file_system.h"

namespace shardwise {

enum class ChangeKind {
  create,
  reuse,
  write,
  resize,
  sync,
  close,
  make_directory,
  rename,
  link,
  remove,
  sync_directory,
};

/// An operation that changed something, or brought it to the disk.
struct Change {
  ChangeKind kind;
  std::string path;                   ///< from the journal's folder; of a file: when it was opened
  std::string to = {};                ///< rename, link
  std::uint64_t offset = 0;           ///< write; resize: the new size
  std::vector<std::byte> bytes = {};  ///< write
  std::size_t file = 0;  ///< number of the file, from 0, if the change is one of a file
};

/// The real file system. Carries out one changing operation at a time and writes down those that
/// succeeded, in this order. Thread-safe.
class JournalFileSystem final : public ForwardingFileSystem {
 public:
  /// Operations outside of `folder` are not expected.
  explicit JournalFileSystem(const std::filesystem::path& folder);

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override;
  std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) override;
  /// Not written down, and so refused.
  std::unique_ptr<File> open_for_update(const std::filesystem::path& path) override {
    return FileSystem::open_for_update(path);
  }
  void make_directory(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void link(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;

  /// Exchanging is renaming.
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    FileSystem::exchange(a, b);
  }

  /// So far.
  std::vector<Change> changes() const;

 private:
  struct Journal;
  class JournalFile;

  std::string name(const std::filesystem::path& path) const;

  std::filesystem::path folder_;
  std::shared_ptr<Journal> journal_;
};

}  // namespace shardwise
