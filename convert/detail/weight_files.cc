#include "shardwise/convert/detail/weight_files.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

std::shared_ptr<File> WeightFiles::open(const std::filesystem::path& path) {
  std::error_code error;  // what is not there is told by open()
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return file_system_->open(error ? path : real);
}

void WeightFiles::keep(std::size_t number, std::shared_ptr<File> file) {
  const MutexLock lock(mutex_);
  open_.resize(files_.size());
  if (open_[number]) return;
  open_[number] = std::move(file);
  opened_.push_back(number);
  if (opened_.size() <= kMostOpen) return;
  open_[opened_.front()].reset();
  opened_.pop_front();
}

std::shared_ptr<File> WeightFiles::add(const std::filesystem::path& path) {
  std::shared_ptr<File> file = open(path);
  files_.push_back({path, file->size()});
  keep(files_.size() - 1, file);
  return file;
}

std::shared_ptr<File> WeightFiles::at(std::size_t number) {
  {
    const MutexLock lock(mutex_);
    if (open_[number]) return open_[number];
  }
  const Entry& entry = files_[number];
  std::shared_ptr<File> file = open(entry.path);
  if (const std::uint64_t size = file->size(); size != entry.size) {
    throw Error(ErrorCode::corrupt, fmt::format("read {}: it has {} bytes now, it had {}",
                                                entry.path.string(), size, entry.size));
  }
  keep(number, file);
  return file;
}

}  // namespace shardwise::detail
