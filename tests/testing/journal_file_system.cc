#include "testing/journal_file_system.h"

#include <utility>

#include "shardwise/shard/host/mutex.h"

namespace shardwise {

struct JournalFileSystem::Journal {
  Mutex mutex;
  std::vector<Change> changes SHARDWISE_GUARDED_BY(mutex);
  std::size_t files SHARDWISE_GUARDED_BY(mutex) = 0;

  template <class Operation>
  void carry_out(Change change, Operation&& operation) {
    const MutexLock lock(mutex);
    operation();
    changes.push_back(std::move(change));
  }
};

class JournalFileSystem::JournalFile final : public ForwardingFile {
 public:
  JournalFile(std::unique_ptr<File> real, std::shared_ptr<Journal> journal, std::string path,
              std::size_t number)
      : ForwardingFile(std::move(real)),
        journal_(std::move(journal)),
        path_(std::move(path)),
        number_(number) {}

  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    Change change = made(ChangeKind::write);
    change.offset = offset;
    change.bytes.assign(data, data + size);
    journal_->carry_out(std::move(change), [&] { real().write_at(offset, data, size); });
  }
  void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
    File::write_runs(offset, runs);
  }
  void resize(std::uint64_t size) override {
    Change change = made(ChangeKind::resize);
    change.offset = size;
    journal_->carry_out(std::move(change), [&] { real().resize(size); });
  }
  void sync() override {
    journal_->carry_out(made(ChangeKind::sync), [&] { real().sync(); });
  }
  void close() override {
    journal_->carry_out(made(ChangeKind::close), [&] { real().close(); });
  }

 private:
  Change made(ChangeKind kind) const { return {.kind = kind, .path = path_, .file = number_}; }

  std::shared_ptr<Journal> journal_;
  std::string path_;
  std::size_t number_;
};

JournalFileSystem::JournalFileSystem(const std::filesystem::path& folder)
    : folder_(folder), journal_(std::make_shared<Journal>()) {}

std::string JournalFileSystem::name(const std::filesystem::path& path) const {
  return path.lexically_relative(folder_).generic_string();
}

std::unique_ptr<File> JournalFileSystem::create(const std::filesystem::path& path,
                                                Caching caching) {
  const MutexLock lock(journal_->mutex);
  std::unique_ptr<File> file = real().create(path, caching);
  const std::size_t number = journal_->files++;
  journal_->changes.push_back({.kind = ChangeKind::create, .path = name(path), .file = number});
  return std::make_unique<JournalFile>(std::move(file), journal_, name(path), number);
}

std::unique_ptr<File> JournalFileSystem::reuse(const std::filesystem::path& path, Caching caching) {
  const MutexLock lock(journal_->mutex);
  std::unique_ptr<File> file = real().reuse(path, caching);
  if (!file) return nullptr;
  const std::size_t number = journal_->files++;
  journal_->changes.push_back({.kind = ChangeKind::reuse, .path = name(path), .file = number});
  return std::make_unique<JournalFile>(std::move(file), journal_, name(path), number);
}

void JournalFileSystem::make_directory(const std::filesystem::path& path) {
  journal_->carry_out({.kind = ChangeKind::make_directory, .path = name(path)},
                      [&] { real().make_directory(path); });
}

void JournalFileSystem::sync_directory(const std::filesystem::path& path) {
  journal_->carry_out({.kind = ChangeKind::sync_directory, .path = name(path)},
                      [&] { real().sync_directory(path); });
}

void JournalFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  journal_->carry_out({.kind = ChangeKind::rename, .path = name(from), .to = name(to)},
                      [&] { real().rename(from, to); });
}

void JournalFileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
  journal_->carry_out({.kind = ChangeKind::link, .path = name(from), .to = name(to)},
                      [&] { real().link(from, to); });
}

void JournalFileSystem::remove(const std::filesystem::path& path) {
  const MutexLock lock(journal_->mutex);
  const bool there = std::filesystem::exists(std::filesystem::symlink_status(path));
  real().remove(path);
  if (there) journal_->changes.push_back({.kind = ChangeKind::remove, .path = name(path)});
}

std::vector<Change> JournalFileSystem::changes() const {
  const MutexLock lock(journal_->mutex);
  return journal_->changes;
}

}  // namespace shardwise
