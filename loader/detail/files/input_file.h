#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A file opened for reading at offsets: a regular one, by its name or a link to it. Thread-safe.
class InputFile {
 public:
  /// Throws not_found, or io if it cannot be opened or is not a regular file.
  explicit InputFile(const std::filesystem::path& path);

  /// Of any file, by the name that messages give it.
  InputFile(std::string name, std::unique_ptr<File> file);

  const std::string& path() const { return path_; }

  /// When it was opened.
  std::size_t size_bytes() const { return size_bytes_; }

  /// Reads from `offset` and returns how many bytes came: less than out.size() only where the file
  /// ends, or ended when it was opened. Throws io.
  std::size_t read_at(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::unique_ptr<File> file_;
  std::size_t size_bytes_;
};

}  // namespace shardwise::detail
