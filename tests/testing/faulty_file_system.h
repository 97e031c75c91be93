#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "shardwise/storage/forwarding_file_system.h"

namespace shardwise {

/// The fault of one operation.
enum class Fault {
  io,         ///< it fails
  no_space,   ///< it fails as on a full disk
  cut,        ///< half of a write or read is done, then it fails; other operations fail at once
  no_memory,  ///< std::bad_alloc
  kill,       ///< the process gets SIGKILL before it, or some time after
};

/// The real file system, one of whose operations goes wrong. Counts every call that reaches the
/// disk: creating, reusing, opening, reading, writing, resizing, syncing, closing, listing,
/// renaming, linking, removing. Thread-safe.
class FaultyFileSystem final : public ForwardingFileSystem,
                               public std::enable_shared_from_this<FaultyFileSystem> {
 public:
  /// The operation number `at`, counted from 1, fails; 0: none does. With `kill`, the system's
  /// timer may be set there instead of dying at once: the process dies wherever it is by then.
  FaultyFileSystem(std::int64_t at, Fault fault, std::int64_t delay_us = 0)
      : at_(at), fault_(fault), delay_us_(delay_us) {}

  /// Operations so far.
  std::int64_t operations() const { return count_; }

  /// Counts from the start again, with another operation to fail.
  void restart(std::int64_t at) {
    at_ = at;
    count_ = 0;
  }

  std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override;
  std::unique_ptr<File> reuse(const std::filesystem::path& path, Caching caching) override;
  std::unique_ptr<File> open(const std::filesystem::path& path) override;
  std::unique_ptr<File> open_for_update(const std::filesystem::path& path) override;
  void make_directory(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void link(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  std::vector<std::string> list(const std::filesystem::path& path) override;

  /// From now on, as the real file system does; until then exchanging is renaming.
  void exchange_in_one_step() { exchanges_ = true; }

  /// The directory's files are opened by their paths: as operations above.
  std::unique_ptr<Directory> open_directory(const std::filesystem::path& path) override {
    return FileSystem::open_directory(path);
  }
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b) override;

 private:
  std::unique_ptr<File> wrapped(std::unique_ptr<File> file,
                                const std::filesystem::path& path) override;

  friend class FaultyFile;

  /// Counts a call; true where it is the one that fails.
  bool is_next();
  [[noreturn]] void fail(const char* operation);
  void step(const char* operation) {
    if (is_next()) fail(operation);
  }

  std::atomic<std::int64_t> at_, count_{0};
  Fault fault_;
  std::int64_t delay_us_;
  bool exchanges_ = false;
};

}  // namespace shardwise
