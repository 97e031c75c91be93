#include "shardwise/checkpoint/detail/record/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {
namespace {

bool has_name(FileSystem& file_system, const std::filesystem::path& target) {
  return std::ranges::binary_search(file_system.list(target.parent_path()),
                                    target.filename().string());
}

}  // namespace

std::filesystem::path absolute_target(const std::filesystem::path& target) {
  if (in_bucket(target)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("save {}: found a place in a bucket, needed a folder: CheckpointManager "
                    "saves steps in buckets",
                    target.string()));
  }
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(target, error).lexically_normal();
  if (error) {
    throw Error(ErrorCode::io, fmt::format("save {:?}: {}", target.string(), error.message()),
                error.value());
  }
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

bool is_saved_target(FileSystem& files, const std::filesystem::path& target) {
  try {
    if (!has_name(files, target)) return false;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;  // nor is the folder above
  }
  try {
    static_cast<void>(check_readable(files, target));
    return true;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    throw not_skipped("save " + target.string(), e.what());
  }
}

const std::filesystem::path& ready_target(FileSystem& files, const std::filesystem::path& target,
                                          Existing existing) {
  make_root(files, target.parent_path());
  if (has_name(files, target) && existing != Existing::replace) {
    throw Error(ErrorCode::already_exists,
                fmt::format("save {}: it is already there: Existing::replace takes its place, "
                            "Existing::skip writes nothing",
                            target.string()));
  }
  try {
    collect_root_garbage(files, target.parent_path());
  } catch (const Error&) {
    // A leftover that cannot be removed is in nobody's way.
  }
  return target;
}

}  // namespace shardwise::detail
