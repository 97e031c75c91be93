#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/storage/forwarding_file_system.h"

namespace shardwise {

/// A file system, the real one if no other is given; a test's function is called before each
/// operation on a name, with the operation and the path, and another before each read from an
/// open file. There it does what another process might do just then, or throws. Thread-safe if the
/// functions are.
class HookedFileSystem final : public ForwardingFileSystem {
 public:
  using Hook = std::function<void(std::string_view operation, const std::filesystem::path& path)>;

  using ReadHook = std::function<void(const std::filesystem::path& path, std::uint64_t offset,
                                      std::size_t size)>;

  explicit HookedFileSystem(Hook hook, ReadHook read_hook = nullptr,
                            std::shared_ptr<FileSystem> real = posix_file_system())
      : ForwardingFileSystem(std::move(real)),
        hook_(std::move(hook)),
        read_hook_(std::move(read_hook)) {}

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override {
    hook_("create", path);
    return real().create(path, caching);
  }
  std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) override {
    hook_("reuse", path);
    return real().reuse(path, caching);
  }
  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    hook_("open", path);
    return ForwardingFileSystem::open(path);
  }
  std::unique_ptr<File> open_for_update(const std::filesystem::path& path) override {
    hook_("open for update", path);
    return ForwardingFileSystem::open_for_update(path);
  }
  void make_directory(const std::filesystem::path& path) override {
    hook_("make directory", path);
    real().make_directory(path);
  }
  void sync_directory(const std::filesystem::path& path) override {
    hook_("sync directory", path);
    real().sync_directory(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    hook_("rename", from);
    real().rename(from, to);
  }
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    hook_("exchange", a);
    real().exchange(a, b);
  }
  void link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    hook_("link", from);
    real().link(from, to);
  }
  void remove(const std::filesystem::path& path) override {
    hook_("remove", path);
    real().remove(path);
  }
  std::vector<std::string> list(const std::filesystem::path& path) override {
    hook_("list", path);
    return real().list(path);
  }

 private:
  std::unique_ptr<File> wrapped(std::unique_ptr<File> file,
                                const std::filesystem::path& path) override {
    if (!read_hook_) return file;
    return std::make_unique<HookedFile>(std::move(file), path, read_hook_);
  }
  std::unique_ptr<File> open_in(Directory& directory, const std::filesystem::path& path) override {
    hook_("open", path);
    return ForwardingFileSystem::open_in(directory, path);
  }

  /// Opened for reading.
  class HookedFile final : public ForwardingFile {
   public:
    HookedFile(std::unique_ptr<File> real, std::filesystem::path path, ReadHook hook)
        : ForwardingFile(std::move(real)), path_(std::move(path)), hook_(std::move(hook)) {}

    void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
      hook_(path_, offset, size);
      real().read_at(offset, data, size);
    }

   private:
    std::filesystem::path path_;
    ReadHook hook_;
  };

  Hook hook_;
  ReadHook read_hook_;
};

}  // namespace shardwise
