#include "shardwise/bucket/detail/bucket_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/format/tombstone.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "shardwise/storage/object/bucket_path.h"
#include "shardwise/storage/object/detail/parallel_requests.h"

namespace shardwise::bucket_detail {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostParts = 9'000;  // S3 takes 10,000
constexpr std::size_t kPartsAtOnce = 4;      // that are being uploaded

/// An object that is uploaded while it is written.
class UploadFile final : public File {
 public:
  UploadFile(std::shared_ptr<ObjectStore> store, std::string key, std::size_t part_bytes)
      : store_(std::move(store)), key_(std::move(key)), part_(part_bytes) {}

  void read_at(std::uint64_t, std::byte*, std::size_t) override {
    throw Error(ErrorCode::unsupported,
                fmt::format("read {}/{}: it is being written", store_->name(), key_));
  }

  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    settle_part();
    while (size > 0) {
      const auto begin = static_cast<std::size_t>(offset % part_);
      const std::size_t bytes = std::min(size, part_ - begin);
      write_part(static_cast<std::size_t>(offset / part_), begin, {data, bytes});
      offset += bytes, data += bytes, size -= bytes;
    }
  }

  std::uint64_t size() override {
    const std::lock_guard lock(mutex_);
    return size_;
  }

  void resize(std::uint64_t size) override {
    const std::lock_guard lock(mutex_);
    size_ = size;
  }

  void sync() override {
    settle_part();
    if (std::exchange(is_put_, true)) return;
    if (size_ <= part_) {
      std::vector<std::byte>& bytes = parts_[0].bytes;
      bytes.resize(static_cast<std::size_t>(size_));
      store_->put(key_, bytes);
    } else {
      for (std::size_t number = 0; number * part_ < size_; ++number) {
        if (uploaded_.contains(number)) continue;
        std::vector<std::byte> bytes = std::move(parts_[number].bytes);
        bytes.resize(
            static_cast<std::size_t>(std::min<std::uint64_t>(part_, size_ - number * part_)));
        begin_put(number, std::move(bytes));
      }
      for (std::future<void>& put : puts_) put.get();
      upload_->complete(size_);
    }
    parts_.clear();
  }

  void close() override { sync(); }

 private:
  struct Part {
    std::vector<std::byte> bytes = {};
    std::size_t written = 0;
  };

  // The size that is set before the first write is the least that the file will have.
  void settle_part() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_part_, true)) return;
    constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
    const std::uint64_t least = (size_ / kMostParts / kStep + 1) * kStep;
    if (size_ / part_ >= kMostParts) part_ = static_cast<std::size_t>(least);
  }

  void write_part(std::size_t number, std::size_t begin, std::span<const std::byte> from) {
    std::byte* into = nullptr;
    {
      const std::lock_guard lock(mutex_);
      refuse_if_needed(number);
      std::vector<std::byte>& bytes = parts_[number].bytes;
      if (bytes.empty()) bytes.resize(part_);
      into = bytes.data() + begin;
    }
    std::memcpy(into, from.data(), from.size());
    decltype(parts_)::node_type full;
    {
      const std::lock_guard lock(mutex_);
      size_ = std::max<std::uint64_t>(size_, number * part_ + begin + from.size());
      if ((parts_[number].written += from.size()) < part_ || number == 0) return;
      full = parts_.extract(number);
      uploaded_.insert(number);
    }
    begin_put(number, std::move(full.mapped().bytes));
  }

  // Waits while as many as may be are under way. Throws the error of one that has failed.
  void begin_put(std::size_t number, std::vector<std::byte> bytes) {
    for (;;) {
      std::future<void> oldest;
      {
        const std::lock_guard lock(mutex_);
        if (puts_.size() < kPartsAtOnce) {
          if (!upload_) upload_ = std::make_unique<ObjectUpload>(*store_, key_);
          puts_.push_back(std::async(std::launch::async, [this, number, bytes = std::move(bytes)] {
            upload_->put(number, bytes);
          }));
          return;
        }
        oldest = std::move(puts_.front());
        puts_.pop_front();
      }
      oldest.get();
    }
  }

  void refuse_if_needed(std::size_t number) const {
    if (number > kMostParts) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("write {}/{}: found more than {} parts of {} bytes, needed fewer: "
                              "more writers make smaller files",
                              store_->name(), key_, kMostParts, part_));
    }
    if (is_put_ || uploaded_.contains(number)) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("write {}/{}: part {} is uploaded already, and each byte is written "
                              "once",
                              store_->name(), key_, number));
    }
  }

  const std::shared_ptr<ObjectStore> store_;
  const std::string key_;
  std::mutex mutex_;  // guards the rest, while it is written
  std::size_t part_;
  bool has_part_ = false, is_put_ = false;
  std::uint64_t size_ = 0;
  std::map<std::size_t, Part> parts_;
  std::set<std::size_t> uploaded_;
  std::unique_ptr<ObjectUpload> upload_;
  std::deque<std::future<void>> puts_;  // their destructors wait, so the upload is there till then
};

class BucketFiles final : public ForwardingFileSystem {
 public:
  BucketFiles(const fs::path& root, std::size_t part_bytes)
      : ForwardingFileSystem(file_system_of(root)), root_(root), part_bytes_(part_bytes) {}

  std::unique_ptr<File> create(const fs::path& path, Caching /*caching*/) override {
    BucketPlace place = open_bucket(path);
    return std::make_unique<UploadFile>(std::move(place.store), std::move(place.key), part_bytes_);
  }
  std::unique_ptr<File> reuse(const fs::path&, Caching) override { return nullptr; }
  void make_directory(const fs::path&) override {}
  void remove(const fs::path& path) override {
    const BucketPlace place = open_bucket(path);
    place.store->remove(place.key);
  }

  // A tombstone is final.
  std::unique_ptr<File> open(const fs::path& path) override {
    std::unique_ptr<File> file = real().open(path);
    const bool is_manifest =
        path.filename() == detail::kManifestName && path.parent_path().parent_path() == root_;
    if (is_manifest && file->size() == detail::print_tombstone(std::string(32, '0')).size()) {
      const std::lock_guard lock(mutex_);
      removed_.insert(path.parent_path().filename().string());
    }
    return file;
  }

  std::vector<std::string> list(const fs::path& path) override {
    if (path != root_) return real().list(path);
    std::vector<std::string> names;
    try {
      names = real().list(path);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;  // its first object makes it
    }
    look_at_new(names);
    const std::lock_guard lock(mutex_);
    std::erase_if(names, [&](const std::string& name) { return removed_.contains(name); });
    return names;
  }

 private:
  // A root has a tombstone for each step that ever was: they are looked at once, many at a time.
  void look_at_new(const std::vector<std::string>& names) {
    std::vector<std::string> unseen;
    {
      const std::lock_guard lock(mutex_);
      for (const std::string& name : names) {
        if (detail::parse_step_name(name) && seen_.insert(name).second) unseen.push_back(name);
      }
    }
    detail::request_all(unseen.size(), 16, [&](std::size_t i) {
      try {
        static_cast<void>(open(root_ / unseen[i] / detail::kManifestName));
      } catch (const Error& e) {
        if (e.code() != ErrorCode::not_found) throw;
      }
    });
  }

  const fs::path root_;
  const std::size_t part_bytes_;
  std::mutex mutex_;  // guards the next two
  std::set<std::string> removed_, seen_;
};

}  // namespace

std::shared_ptr<FileSystem> bucket_files(const fs::path& root, std::size_t part_bytes) {
  return std::make_shared<BucketFiles>(root, part_bytes);
}

}  // namespace shardwise::bucket_detail
