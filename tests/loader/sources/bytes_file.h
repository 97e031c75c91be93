#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/shard/error.h"

namespace shardwise {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto all = std::as_bytes(std::span(text));
  return Bytes(all.begin(), all.end());
}

/// A file in memory, which others may cut or change while it is open.
class BytesFile final : public File {
 public:
  explicit BytesFile(std::shared_ptr<Bytes> content) : content_(std::move(content)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (offset > content_->size() || size > content_->size() - offset) {
      throw Error(ErrorCode::corrupt, "read: the file ends before");
    }
    if (size != 0) std::memcpy(data, content_->data() + offset, size);
  }
  std::uint64_t size() override { return content_->size(); }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override { refuse(); }
  void close() override {}

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("the file is for reading"); }

  std::shared_ptr<Bytes> content_;
};

inline std::shared_ptr<const detail::InputFile> file_of(std::shared_ptr<Bytes> content) {
  return std::make_shared<const detail::InputFile>("here",
                                                   std::make_unique<BytesFile>(std::move(content)));
}
inline std::shared_ptr<const detail::InputFile> file_of(Bytes content) {
  return file_of(std::make_shared<Bytes>(std::move(content)));
}
inline std::shared_ptr<const detail::InputFile> file_of(std::string_view text) {
  return file_of(bytes_of(text));
}

}  // namespace shardwise
