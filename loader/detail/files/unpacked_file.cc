#include "shardwise/loader/detail/files/unpacked_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/files/gzip_reader.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{1} << 16;

/// Bytes in memory as a file to read.
class UnpackedBytes final : public File {
 public:
  explicit UnpackedBytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    std::memcpy(data, bytes_.data() + offset, size);  // within size(), which does not change
  }
  bool in_memory(std::uint64_t) override { return true; }
  std::uint64_t size() override { return bytes_.size(); }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override {}
  void close() override {}

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::unsupported, "write: the file is for reading");
  }

  std::vector<std::byte> bytes_;
};

}  // namespace

bool is_gzip(const InputFile& file) {
  std::array<std::byte, 2> magic{};
  file.read_at(0, magic);
  return magic == std::array{std::byte{0x1f}, std::byte{0x8b}};
}

std::shared_ptr<const InputFile> unpacked(std::shared_ptr<const InputFile> file) {
  if (!is_gzip(*file)) return file;
  GzipReader reader(*file);
  std::vector<std::byte> bytes;
  for (std::size_t done = 0;;) {
    bytes.resize(std::max(kLeastBytes, 2 * done));
    const std::size_t count = reader.read(std::span(bytes).subspan(done));
    done += count;
    if (done == bytes.size()) continue;
    bytes.resize(done);
    bytes.shrink_to_fit();
    return std::make_shared<const InputFile>(file->path(),
                                             std::make_unique<UnpackedBytes>(std::move(bytes)));
  }
}

}  // namespace shardwise::detail
