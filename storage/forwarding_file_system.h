#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise {

/// Passes each call on to another file: derive a class and override what should differ. As
/// thread-safe as the other file.
class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> real) : real_(std::move(real)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    real_->read_at(offset, data, size);
  }
  bool in_memory(std::uint64_t offset) override { return real_->in_memory(offset); }
  std::uint64_t next_data(std::uint64_t offset) override { return real_->next_data(offset); }
  void read_once() override { real_->read_once(); }
  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    real_->write_at(offset, data, size);
  }
  void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
    real_->write_runs(offset, runs);
  }
  std::uint64_t size() override { return real_->size(); }
  void resize(std::uint64_t size) override { real_->resize(size); }
  void sync() override { real_->sync(); }
  void close() override { real_->close(); }
  void seal() noexcept override { real_->seal(); }
  void unseal() noexcept override { real_->unseal(); }
  bool is_sealed() override { return real_->is_sealed(); }

 protected:
  File& real() { return *real_; }

 private:
  std::unique_ptr<File> real_;
};

/// Passes each call on to another file system: derive a class and override the operation that
/// should differ. Every file that is created, reused or opened goes through wrapped(). As
/// thread-safe as the other file system, which it shares.
///
///   class FullDisk final : public ForwardingFileSystem {
///     using ForwardingFileSystem::ForwardingFileSystem;
///     std::unique_ptr<File> create(const std::filesystem::path& path, Caching) override {
///       throw Error(ErrorCode::io, "create " + path.string() + ": No space left on device");
///     }
///   };
class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(std::shared_ptr<FileSystem> real = posix_file_system())
      : real_(std::move(real)) {}

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override {
    return wrapped(real_->create(path, caching), path);
  }
  std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) override {
    std::unique_ptr<File> file = real_->reuse(path, caching);
    return file ? wrapped(std::move(file), path) : nullptr;
  }
  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    return wrapped(real_->open(path), path);
  }
  std::unique_ptr<File> open_for_update(const std::filesystem::path& path) override {
    return wrapped(real_->open_for_update(path), path);
  }

  /// The directory needs this file system as long as it is in use. Its files are opened by
  /// open_in().
  std::unique_ptr<Directory> open_directory(const std::filesystem::path& path) override {
    return std::make_unique<ForwardingDirectory>(*this, path, real_->open_directory(path));
  }
  void make_directory(const std::filesystem::path& path) override { real_->make_directory(path); }
  void sync_directory(const std::filesystem::path& path) override { real_->sync_directory(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    real_->rename(from, to);
  }
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    real_->exchange(a, b);
  }
  void link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    real_->link(from, to);
  }
  void remove(const std::filesystem::path& path) override { real_->remove(path); }
  std::uint64_t free_bytes(const std::filesystem::path& directory) override {
    return real_->free_bytes(directory);
  }
  std::vector<std::string> list(const std::filesystem::path& path) override {
    return real_->list(path);
  }

 protected:
  FileSystem& real() { return *real_; }

  /// Returns the file to hand out instead of `file`, which is at this path; by default `file`
  /// itself.
  virtual std::unique_ptr<File> wrapped(std::unique_ptr<File> file,
                                        const std::filesystem::path& /*path*/) {
    return file;
  }

  /// Opens a file of a directory that open_directory() gave; `path` is the file's.
  virtual std::unique_ptr<File> open_in(Directory& real, const std::filesystem::path& path) {
    return wrapped(real.open(path.filename().string()), path);
  }

 private:
  class ForwardingDirectory final : public Directory {
   public:
    ForwardingDirectory(ForwardingFileSystem& owner, std::filesystem::path path,
                        std::unique_ptr<Directory> real)
        : owner_(owner), path_(std::move(path)), real_(std::move(real)) {}

    std::unique_ptr<File> open(const std::string& name) override {
      return owner_.open_in(*real_, path_ / name);
    }
    bool is_in_place() override { return real_->is_in_place(); }

   private:
    ForwardingFileSystem& owner_;
    const std::filesystem::path path_;
    std::unique_ptr<Directory> real_;
  };

  std::shared_ptr<FileSystem> real_;
};

}  // namespace shardwise
