#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/parity/parity_format.h"
#include "shardwise/mend/detail/erasure_code.h"
#include "shardwise/storage/file.h"

namespace shardwise::mend_detail {

struct ParityEncoding {
  int threads = 1;
  std::size_t budget_bytes = std::size_t{256} << 20;

  /// Called on the caller's thread with the bytes of the file that were read since the last call.
  std::function<void(std::size_t bytes)> progress = nullptr;
};

/// Reads a file, which its path leads to, and writes its parity into `out`, an empty file. Each
/// block is read once. Throws as reading and writing do.
void write_parity_file(FileSystem& file_system, const std::filesystem::path& path,
                       const detail::ParityOf& of, const detail::ParityLayout& layout, File& out,
                       const ParityEncoding& encoding = {});

/// A file that is damaged or missing, as it was: blocks that have another hash are made of its
/// parity when they are read. For reading alone. Thread-compatible.
class RestoredFile final : public File {
 public:
  /// `damaged` is null if the file is missing; `path` is for messages.
  RestoredFile(std::shared_ptr<File> damaged, std::unique_ptr<File> parity,
               detail::ParityHeader header, std::string path);

  /// Throws io if more blocks of a group are lost than there is parity for, naming them.
  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override;
  std::uint64_t size() override { return layout().file_bytes; }

  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override { refuse(); }
  void close() override {}

 private:
  using Bytes = std::vector<std::byte>;
  enum class State : char { unknown, good, bad };

  [[noreturn]] void refuse() const;
  const detail::ParityLayout& layout() const { return header_.layout; }
  bool read_block(std::uint64_t block, Bytes& bytes);
  const Bytes& restored(std::uint64_t block);
  void restore(std::uint64_t group);
  bool has_parity(std::uint64_t number, std::byte* bytes);

  const std::shared_ptr<File> damaged_;
  const std::unique_ptr<File> parity_;
  const detail::ParityHeader header_;
  const std::string path_;
  std::vector<State> states_;
  std::map<std::uint64_t, Bytes> restored_;        // blocks, not too many
  std::map<std::uint64_t, std::string> why_lost_;  // of a group
  Bytes room_;
};

}  // namespace shardwise::mend_detail
