#include "testing/faulty_file_system.h"

#include <csignal>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> real, std::shared_ptr<FaultyFileSystem> owner)
      : real_(std::move(real)), owner_(std::move(owner)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    owner_->step("read");
    real_->read_at(offset, data, size);
  }
  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    if (owner_->is_next()) {
      if (owner_->fault_ == Fault::cut) real_->write_at(offset, data, size / 2);
      owner_->fail("write");
    }
    real_->write_at(offset, data, size);
  }
  std::uint64_t size() override {
    owner_->step("size");
    return real_->size();
  }
  void resize(std::uint64_t size) override {
    owner_->step("resize");
    real_->resize(size);
  }
  void sync() override {
    owner_->step("sync");
    real_->sync();
  }
  void close() override {
    owner_->step("close");
    real_->close();
  }

 private:
  std::unique_ptr<File> real_;
  std::shared_ptr<FaultyFileSystem> owner_;
};

bool FaultyFileSystem::is_next() {
  if (++count_ != at_) return false;
  if (fault_ == Fault::kill) std::raise(SIGKILL);
  return true;
}

void FaultyFileSystem::fail(const char* operation) {
  throw Error(ErrorCode::io, std::string("injected: ") + operation + " fails: " +
                                 (fault_ == Fault::no_space ? "no space" : "broken device"));
}

std::unique_ptr<File> FaultyFileSystem::create(const std::filesystem::path& path, Caching caching) {
  step("create");
  return std::make_unique<FaultyFile>(real_->create(path, caching), shared_from_this());
}

std::unique_ptr<File> FaultyFileSystem::open(const std::filesystem::path& path) {
  step("open");
  return std::make_unique<FaultyFile>(real_->open(path), shared_from_this());
}

void FaultyFileSystem::make_directory(const std::filesystem::path& path) {
  step("make directory");
  real_->make_directory(path);
}

void FaultyFileSystem::sync_directory(const std::filesystem::path& path) {
  step("sync directory");
  real_->sync_directory(path);
}

void FaultyFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  step("rename");
  real_->rename(from, to);
}

void FaultyFileSystem::remove(const std::filesystem::path& path) {
  step("remove");
  real_->remove(path);
}

std::vector<std::string> FaultyFileSystem::list(const std::filesystem::path& path) {
  step("list");
  return real_->list(path);
}

}  // namespace shardwise
