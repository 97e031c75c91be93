#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/file.h"

namespace shardwise {

/// The real file system; a test's function is called before each operation on a name, with what is
/// to be done to which path. There it does what another process might do just then, or throws.
/// Thread-safe if the function is.
class HookedFileSystem final : public FileSystem {
 public:
  using Hook = std::function<void(std::string_view operation, const std::filesystem::path& path)>;

  explicit HookedFileSystem(Hook hook) : hook_(std::move(hook)) {}

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override {
    hook_("create", path);
    return real_->create(path, caching);
  }
  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    hook_("open", path);
    return real_->open(path);
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
  void remove(const std::filesystem::path& path) override {
    hook_("remove", path);
    real_->remove(path);
  }
  std::vector<std::string> list(const std::filesystem::path& path) override {
    hook_("list", path);
    return real_->list(path);
  }

 private:
  Hook hook_;
  std::shared_ptr<FileSystem> real_ = posix_file_system();
};

}  // namespace shardwise
