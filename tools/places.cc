#include "places.h"

#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::tools {
namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  if (in_bucket(path)) {
    const BucketPlace place = open_bucket(path);
    return place.key.empty() || place.store->head(place.key) || is_folder(path);
  }
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_folder(const fs::path& path) {
  if (in_bucket(path)) return open_bucket(path).key.empty() || !names_in(path).empty();
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::vector<std::string> names_in(const fs::path& folder) {
  if (in_bucket(folder)) {
    try {
      return file_system_of(folder)->list(folder);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      return {};
    }
  }
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::optional<std::time_t> time_of(const fs::path& file) {
  if (in_bucket(file)) {
    const BucketPlace place = open_bucket(file);
    const std::optional<ObjectInfo> info = place.store->head(place.key);
    return info ? std::optional<std::time_t>(info->modified) : std::nullopt;
  }
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  return status.st_mtime;
}

}  // namespace shardwise::tools
