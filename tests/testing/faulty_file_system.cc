#include "testing/faulty_file_system.h"

#include <time.h>

#include <csignal>
#include <new>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

void kill_in(std::int64_t microseconds) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  itimerspec when{};
  when.it_value = {.tv_sec = microseconds / 1'000'000, .tv_nsec = microseconds % 1'000'000 * 1000};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
      ::timer_settime(timer, 0, &when, nullptr) != 0) {
    throw Error(ErrorCode::io, "set a timer that kills this process");
  }
}

}  // namespace

class FaultyFile final : public ForwardingFile {
 public:
  FaultyFile(std::unique_ptr<File> real, std::shared_ptr<FaultyFileSystem> owner)
      : ForwardingFile(std::move(real)), owner_(std::move(owner)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (owner_->is_next()) {
      if (owner_->fault_ == Fault::cut) real().read_at(offset, data, size / 2);
      owner_->fail("read");
    }
    real().read_at(offset, data, size);
  }
  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    if (owner_->is_next()) {
      if (owner_->fault_ == Fault::cut) real().write_at(offset, data, size / 2);
      owner_->fail("write");
    }
    real().write_at(offset, data, size);
  }
  void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
    File::write_runs(offset, runs);
  }
  std::uint64_t size() override {
    owner_->step("size");
    return real().size();
  }
  void resize(std::uint64_t size) override {
    owner_->step("resize");
    real().resize(size);
  }
  void sync() override {
    owner_->step("sync");
    real().sync();
  }
  void close() override {
    owner_->step("close");
    real().close();
  }

 private:
  std::shared_ptr<FaultyFileSystem> owner_;
};

bool FaultyFileSystem::is_next() {
  if (++count_ != at_) return false;
  if (fault_ != Fault::kill) return true;
  if (delay_us_ == 0) std::raise(SIGKILL);
  kill_in(delay_us_);
  return false;
}

void FaultyFileSystem::fail(const char* operation) {
  if (fault_ == Fault::no_memory) throw std::bad_alloc();
  throw Error(ErrorCode::io, std::string("injected: ") + operation + " fails: " +
                                 (fault_ == Fault::no_space ? "no space" : "broken device"));
}

std::unique_ptr<File> FaultyFileSystem::wrapped(std::unique_ptr<File> file,
                                                const std::filesystem::path& /*path*/) {
  return std::make_unique<FaultyFile>(std::move(file), shared_from_this());
}

std::unique_ptr<File> FaultyFileSystem::create(const std::filesystem::path& path, Caching caching) {
  step("create");
  return ForwardingFileSystem::create(path, caching);
}

std::unique_ptr<File> FaultyFileSystem::reuse(const std::filesystem::path& path, Caching caching) {
  step("reuse");
  return ForwardingFileSystem::reuse(path, caching);
}

std::unique_ptr<File> FaultyFileSystem::open(const std::filesystem::path& path) {
  step("open");
  return ForwardingFileSystem::open(path);
}

std::unique_ptr<File> FaultyFileSystem::open_for_update(const std::filesystem::path& path) {
  step("open for update");
  return ForwardingFileSystem::open_for_update(path);
}

void FaultyFileSystem::make_directory(const std::filesystem::path& path) {
  step("make directory");
  ForwardingFileSystem::make_directory(path);
}

void FaultyFileSystem::sync_directory(const std::filesystem::path& path) {
  step("sync directory");
  ForwardingFileSystem::sync_directory(path);
}

void FaultyFileSystem::exchange(const std::filesystem::path& a, const std::filesystem::path& b) {
  if (!exchanges_) return FileSystem::exchange(a, b);
  step("exchange");
  ForwardingFileSystem::exchange(a, b);
}

void FaultyFileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
  step("link");
  ForwardingFileSystem::link(from, to);
}

void FaultyFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  step("rename");
  ForwardingFileSystem::rename(from, to);
}

void FaultyFileSystem::remove(const std::filesystem::path& path) {
  step("remove");
  ForwardingFileSystem::remove(path);
}

std::vector<std::string> FaultyFileSystem::list(const std::filesystem::path& path) {
  step("list");
  return ForwardingFileSystem::list(path);
}

}  // namespace shardwise
