#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shardwise/loader/detail/files/input_file.h"

namespace shardwise::detail {

/// A file that is read once from its beginning, through a window that moves on. Thread-compatible.
class FileWindow {
 public:
  /// Most bytes in a window, which bounds the size of one record.
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;

  /// `file` must outlive the window.
  explicit FileWindow(const InputFile& file) : file_(file) {}

  /// The offset of the file's first byte that is not yet passed.
  std::uint64_t offset() const { return offset_; }

  /// The text read from there on. Valid until read_more().
  std::string_view text() const { return {buffer_.get() + begin_, end_ - begin_}; }

  /// Adds to the text; false at the end of the file. Throws io, or corrupt if the window is full.
  bool read_more();

  /// Passes the next `count` bytes. Requires count <= text().size().
  void pass(std::size_t count) {
    begin_ += count;
    offset_ += count;
  }

 private:
  const InputFile& file_;
  std::uint64_t offset_ = 0;
  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace shardwise::detail
