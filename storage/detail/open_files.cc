#include "shardwise/storage/detail/open_files.h"

#include <utility>

namespace shardwise::detail {

// Chunks are read in the order of the files, so the file that was opened first is needed least.
std::shared_ptr<File> OpenFiles::at(std::size_t number) {
  bool read_once = false;
  {
    const MutexLock lock(mutex_);
    if (files_[number] != nullptr) return files_[number];
    read_once = read_once_;
  }
  std::shared_ptr<File> file = open_(number);
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

void OpenFiles::read_once() {
  const MutexLock lock(mutex_);
  read_once_ = true;
  for (const std::size_t number : opened_) files_[number]->read_once();
}

}  // namespace shardwise::detail
