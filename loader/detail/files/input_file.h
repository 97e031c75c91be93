#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A regular file, opened by its name or by a link to it, for reading at offsets. Thread-safe.
class InputFile {
 public:
  /// Throws not_found, or io if it cannot be opened or is not a regular file.
  explicit InputFile(const std::filesystem::path& path);

  /// Takes any file; `name` is its name in messages.
  InputFile(std::string name, std::unique_ptr<File> file);

  const std::string& path() const { return path_; }

  /// The size when it was opened.
  std::size_t size_bytes() const { return size_bytes_; }

  /// Reads from `offset` and returns the number of bytes: fewer than out.size() only if the file
  /// ends there, or did so when it was opened. Throws io.
  std::size_t read_at(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::unique_ptr<File> file_;
  std::size_t size_bytes_;
};

}  // namespace shardwise::detail
