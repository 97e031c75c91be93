#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace shardwise::detail {

/// A regular file opened for reading at offsets. Thread-safe.
class InputFile {
 public:
  /// Throws not_found, or io where it cannot be opened or is not a regular file.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }

  /// When it was opened.
  std::size_t size_bytes() const { return size_bytes_; }

  /// Reads from `offset` and returns how many bytes came: less than out.size() only where the file
  /// ends. Throws io.
  std::size_t read_at(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_;
  std::size_t size_bytes_;
};

}  // namespace shardwise::detail
