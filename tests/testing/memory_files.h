#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {

/// Files of one directory that are only there for reading and only in memory, by their names.
using MemoryFiles = std::map<std::string, std::vector<std::byte>>;

/// A directory full of MemoryFiles, whatever path it is asked for. Immutable.
class MemoryFileSystem final : public FileSystem {
 public:
  explicit MemoryFileSystem(MemoryFiles files) : files_(std::move(files)) {}

  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    const auto found = files_.find(path.filename().string());
    if (found == files_.end()) throw Error(ErrorCode::not_found, "open " + path.string());
    return std::make_unique<MemoryFile>(found->second);
  }

  std::vector<std::string> list(const std::filesystem::path&) override {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : files_) names.push_back(name);
    return names;
  }

  std::unique_ptr<File> create(const std::filesystem::path&, Caching) override { refuse(); }
  std::unique_ptr<File> reuse(const std::filesystem::path&, Caching) override { refuse(); }
  void make_directory(const std::filesystem::path&) override { refuse(); }
  void sync_directory(const std::filesystem::path&) override { refuse(); }
  void rename(const std::filesystem::path&, const std::filesystem::path&) override { refuse(); }
  void remove(const std::filesystem::path&) override { refuse(); }

 private:
  /// Immutable.
  class MemoryFile final : public File {
   public:
    explicit MemoryFile(const std::vector<std::byte>& bytes) : bytes_(bytes) {}

    void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
      if (offset > bytes_.size() || size > bytes_.size() - offset) {
        throw Error(ErrorCode::corrupt, "read: the file ends before");
      }
      if (size != 0) std::memcpy(data, bytes_.data() + offset, size);
    }
    std::uint64_t size() override { return bytes_.size(); }
    void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
    void resize(std::uint64_t) override { refuse(); }
    void sync() override { refuse(); }
    void close() override {}

   private:
    const std::vector<std::byte>& bytes_;
  };

  [[noreturn]] static void refuse() { throw std::logic_error("memory files are for reading"); }

  const MemoryFiles files_;
};

}  // namespace shardwise
