#include "disk_use.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

/// Throws io, unless the path has just gone.
void check_seen(const fs::path& path, const std::error_code& error) {
  if (!error || error == std::errc::no_such_file_or_directory) return;
  throw Error(ErrorCode::io, fmt::format("{}: {}", path.string(), error.message()), error.value());
}

}  // namespace

void DiskUse::add(const fs::path& path) {
  if (in_bucket(path)) {
    const BucketPlace place = open_bucket(path);
    for (const ObjectInfo& object : place.store->list(place.key + "/").objects) {
      bytes_ += static_cast<std::size_t>(object.size);
    }
    return;
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return check_seen(path, std::error_code(errno, std::generic_category()));
  }
  if (S_ISREG(status.st_mode)) {
    const bool is_shared = status.st_nlink > 1;
    if (is_shared && !seen_.emplace(status.st_dev, status.st_ino).second) return;
    const auto bytes = static_cast<std::size_t>(status.st_size);
    bytes_ += bytes;
    if (is_shared) shared_bytes_ += bytes;
    return;
  }
  if (!S_ISDIR(status.st_mode)) return;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    add(entry->path());
  }
  check_seen(path, error);
}

DiskUse disk_use(const fs::path& path) {
  DiskUse use;
  use.add(path);
  return use;
}

}  // namespace shardwise::tools
