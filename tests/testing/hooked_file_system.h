#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise {

/// A file system, the real one if no other is given; a test's function is called before each
/// operation on a name, with what is to be done to which path, and another before each read from an
/// open file. There it does what another process might do just then, or throws. Thread-safe if the
/// functions are.
class HookedFileSystem final : public FileSystem {
 public:
  using Hook = std::function<void(std::string_view operation, const std::filesystem::path& path)>;

  using ReadHook = std::function<void(const std::filesystem::path& path, std::uint64_t offset,
                                      std::size_t size)>;

  explicit HookedFileSystem(Hook hook, ReadHook read_hook = nullptr,
                            std::shared_ptr<FileSystem> real = posix_file_system())
      : hook_(std::move(hook)), read_hook_(std::move(read_hook)), real_(std::move(real)) {}

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override {
    hook_("create", path);
    return real_->create(path, caching);
  }
  std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) override {
    hook_("reuse", path);
    return real_->reuse(path, caching);
  }
  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    hook_("open", path);
    return hooked(real_->open(path), path);
  }
  std::unique_ptr<Directory> open_directory(const std::filesystem::path& path) override {
    return std::make_unique<HookedDirectory>(*this, path, real_->open_directory(path));
  }
  void make_directory(const std::filesystem::path& path) override {
    hook_("make directory", path);
    real_->make_directory(path);
  }
  void sync_directory(const std::filesystem::path& path) override {
    hook_("sync directory", path);
    real_->sync_directory(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    hook_("rename", from);
    real_->rename(from, to);
  }
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    hook_("exchange", a);
    real_->exchange(a, b);
  }
  void remove(const std::filesystem::path& path) override {
    hook_("remove", path);
    real_->remove(path);
  }
  std::vector<std::string> list(const std::filesystem::path& path) override {
    hook_("list", path);
    return real_->list(path);
  }

 private:
  class HookedDirectory final : public Directory {
   public:
    HookedDirectory(HookedFileSystem& owner, std::filesystem::path path,
                    std::unique_ptr<Directory> real)
        : owner_(owner), path_(std::move(path)), real_(std::move(real)) {}

    std::unique_ptr<File> open(const std::string& name) override {
      owner_.hook_("open", path_ / name);
      return owner_.hooked(real_->open(name), path_ / name);
    }
    bool is_in_place() override { return real_->is_in_place(); }

   private:
    HookedFileSystem& owner_;
    const std::filesystem::path path_;
    std::unique_ptr<Directory> real_;
  };

  std::unique_ptr<File> hooked(std::unique_ptr<File> file, const std::filesystem::path& path) {
    if (!read_hook_) return file;
    return std::make_unique<HookedFile>(std::move(file), path, read_hook_);
  }

  /// Opened for reading.
  class HookedFile final : public File {
   public:
    HookedFile(std::unique_ptr<File> real, std::filesystem::path path, ReadHook hook)
        : real_(std::move(real)), path_(std::move(path)), hook_(std::move(hook)) {}

    void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
      hook_(path_, offset, size);
      real_->read_at(offset, data, size);
    }
    void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
      real_->write_at(offset, data, size);
    }
    std::uint64_t size() override { return real_->size(); }
    void resize(std::uint64_t size) override { real_->resize(size); }
    void sync() override { real_->sync(); }
    void close() override { real_->close(); }

   private:
    std::unique_ptr<File> real_;
    std::filesystem::path path_;
    ReadHook hook_;
  };

  Hook hook_;
  ReadHook read_hook_;
  std::shared_ptr<FileSystem> real_;
};

}  // namespace shardwise
