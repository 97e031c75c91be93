#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "shardwise/loader/detail/remote/remote_file.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A regular file, opened by its name or by a link to it, or an object at a URL, for reading at
/// offsets. Thread-safe.
class InputFile {
 public:
  /// Throws not_found, or io if it cannot be opened or is not a regular file; of a URL, as
  /// RemoteFile.
  explicit InputFile(const std::filesystem::path& path);

  /// An object that a listing has named.
  InputFile(const std::filesystem::path& url, const ObjectInfo& known);

  /// Takes any file; `name` is its name in messages.
  InputFile(std::string name, std::unique_ptr<File> file);

  /// For messages; a URL is without its query.
  const std::string& path() const { return path_; }

  /// As RemoteFile::tag; 0 for a local file.
  std::uint64_t tag() const { return remote_ ? remote_->tag() : 0; }

  /// The path of a local file with these bytes: `path`, which it was opened by, or a copy of the
  /// whole object in the cache. Throws as RemoteFile::whole_copy.
  std::filesystem::path local_path(const std::filesystem::path& path) const {
    return remote_ ? remote_->whole_copy() : path;
  }

  /// The size when it was opened.
  std::size_t size_bytes() const { return size_bytes_; }

  /// Reads from `offset` and returns the number of bytes: fewer than out.size() only if the file
  /// ends there, or did so when it was opened. Throws io.
  std::size_t read_at(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::shared_ptr<File> file_;
  std::shared_ptr<RemoteFile> remote_;  // `file_`, if it is at a URL
  std::size_t size_bytes_;
};

}  // namespace shardwise::detail
