#include "shardwise/storage/object/detail/object_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kBlock = std::size_t{256} << 10;

/// One object. Keeps the block that was read last, for tables that are read in small pieces.
class ObjectFile final : public File {
 public:
  ObjectFile(std::shared_ptr<ObjectStore> store, ObjectInfo info)
      : store_(std::move(store)), info_(std::move(info)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (offset > info_.size || size > info_.size - offset) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("read of {}/{}: found {} bytes, needed {} from byte {} on",
                              store_->name(), info_.key, info_.size, size, offset));
    }
    if (size >= kBlock) return store_->get(info_.key, offset, {data, size}, info_.etag);
    while (size > 0) {
      const std::lock_guard lock(mutex_);
      const std::uint64_t begin = offset / kBlock * kBlock;
      if (block_.empty() || begin != block_begin_) fetch(begin);
      const auto skipped = static_cast<std::size_t>(offset - begin);
      const std::size_t part = std::min(size, block_.size() - skipped);
      std::memcpy(data, block_.data() + skipped, part);
      data += part, offset += part, size -= part;
    }
  }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse("write to"); }
  std::uint64_t size() override { return info_.size; }
  void resize(std::uint64_t) override { refuse("resize"); }
  void sync() override {}
  void close() override {}

 private:
  void fetch(std::uint64_t begin) {
    block_.clear();
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, info_.size - begin)));
    store_->get(info_.key, begin, bytes, info_.etag);
    block_ = std::move(bytes);
    block_begin_ = begin;
  }

  [[noreturn]] void refuse(const char* operation) const {
    throw Error(ErrorCode::unsupported, fmt::format("{} {}/{}: an object in a bucket is put whole",
                                                    operation, store_->name(), info_.key));
  }

  const std::shared_ptr<ObjectStore> store_;
  const ObjectInfo info_;
  std::mutex mutex_;  // guards the two below
  std::vector<std::byte> block_;
  std::uint64_t block_begin_ = 0;
};

class ObjectFiles final : public FileSystem {
 public:
  ObjectFiles(std::shared_ptr<ObjectStore> store, const std::string& base)
      : store_(std::move(store)),
        base_(std::filesystem::path(base + "/").lexically_normal().string()) {}

  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    std::string key = key_of(path);
    std::optional<ObjectInfo> info;
    if (!key.empty()) info = store_->head(key);
    if (!info)
      throw Error(ErrorCode::not_found,
                  fmt::format("open {}: there is no such object", path.string()));
    return std::make_unique<ObjectFile>(store_, std::move(*info));
  }

  std::vector<std::string> list(const std::filesystem::path& path) override {
    std::string prefix = key_of(path);
    if (!prefix.empty()) prefix += '/';
    ObjectPage page = store_->list(prefix, "/");
    std::vector<std::string> names;
    const auto add = [&](std::string_view key) {
      key.remove_prefix(prefix.size());
      if (key.ends_with('/')) key.remove_suffix(1);
      if (!key.empty()) names.emplace_back(key);
    };
    for (const ObjectInfo& object : page.objects) add(object.key);
    for (const std::string& folder : page.prefixes) add(folder);
    if (names.empty() && !prefix.empty()) {
      throw Error(ErrorCode::not_found,
                  fmt::format("list {}: no key begins with it", path.string()));
    }
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching) override {
    refuse("create", path);
  }
  std::unique_ptr<File> reuse(const std::filesystem::path&, Caching) override { return nullptr; }
  void make_directory(const std::filesystem::path& path) override {
    refuse("make the folder", path);
  }
  void sync_directory(const std::filesystem::path&) override {}
  void rename(const std::filesystem::path& from, const std::filesystem::path&) override {
    refuse("rename", from);
  }
  void remove(const std::filesystem::path& path) override { refuse("remove", path); }

 private:
  std::string key_of(const std::filesystem::path& path) const {
    std::string text = path.lexically_normal().string();
    if (!text.ends_with('/')) text += '/';
    if (!text.starts_with(base_)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("path {}: found one outside the bucket, needed one below {}",
                              path.string(), base_));
    }
    text.erase(0, base_.size());
    if (text.ends_with('/')) text.pop_back();
    return text;
  }

  [[noreturn]] static void refuse(const char* operation, const std::filesystem::path& path) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} {}: files in a bucket are read; `shardwise cp` copies checkpoints "
                            "into it",
                            operation, path.string()));
  }

  const std::shared_ptr<ObjectStore> store_;
  const std::string base_;  // normal, with a slash at its end
};

}  // namespace

std::shared_ptr<FileSystem> object_files(std::shared_ptr<ObjectStore> store,
                                         const std::string& base) {
  return std::make_shared<ObjectFiles>(std::move(store), base);
}

}  // namespace shardwise::detail
