#include "shardwise/checkpoint/detail/read/written_files.h"

#include <fmt/format.h>

#include <memory>

#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Files of many processes are mostly on a file system that answers after a while.
constexpr std::size_t kLanes = 16;

std::unique_ptr<File> open_written(FileSystem& file_system, const std::filesystem::path& attempt,
                                   const FileEntry& entry) {
  const std::filesystem::path path = attempt / entry.name;
  std::unique_ptr<File> file = file_system.open(path);
  if (const std::uint64_t bytes = file->size(); bytes != entry.bytes) {
    throw Error(ErrorCode::corrupt,
                fmt::format("open shard file {}: found {} bytes, needed {}, which its record says",
                            path.string(), bytes, entry.bytes));
  }
  return file;
}

}  // namespace

void check_written_files(FileSystem& file_system, const std::filesystem::path& attempt,
                         Manifest manifest) {
  const std::size_t files = manifest.files.size();
  if (files > kMostFilesReadAtOnce) {
    return run_lanes({.jobs = files, .lanes = kLanes, .run = [&](std::size_t f, std::size_t) {
                        FileEntry& entry = manifest.files[f];
                        read_file_description(*open_written(file_system, attempt, entry),
                                              (attempt / entry.name).string(), entry);
                      }});
  }
  for (std::size_t f = 0; f < files; ++f) {
    const auto file = open_written(file_system, attempt, manifest.files[f]);
    static_cast<void>(read_file_pieces(*file, attempt, manifest, f));
  }
  check_no_file_missing(manifest, attempt);
}

}  // namespace shardwise::detail
