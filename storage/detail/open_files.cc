#include "shardwise/storage/detail/open_files.h"

#include <utility>

namespace shardwise::detail {

// Chunks are read in the order of the files, so the file that was opened first is needed least.
std::shared_ptr<File> OpenFiles::at(std::size_t number) {
  bool read_once = false;
  std::function<std::unique_ptr<File>()> added;
  {
    const MutexLock lock(mutex_);
    if (files_[number] != nullptr) return files_[number];
    read_once = read_once_;
    if (number >= first_added_) added = added_[number - first_added_];
  }
  std::shared_ptr<File> file = added ? added() : open_(number);
  if (read_once) file->read_once();
  const MutexLock lock(mutex_);
  if (files_[number] != nullptr) return files_[number];  // another thread was faster
  if (opened_.size() == kMostOpen) {
    files_[opened_.front()] = nullptr;
    opened_.pop_front();
  }
  files_[number] = file;
  opened_.push_back(number);
  return file;
}

std::size_t OpenFiles::add(std::function<std::unique_ptr<File>()> open) {
  const MutexLock lock(mutex_);
  files_.emplace_back();
  added_.push_back(std::move(open));
  return files_.size() - 1;
}

void OpenFiles::read_once() {
  const MutexLock lock(mutex_);
  read_once_ = true;
  for (const std::size_t number : opened_) files_[number]->read_once();
}

}  // namespace shardwise::detail
