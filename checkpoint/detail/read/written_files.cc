#include "shardwise/checkpoint/detail/read/written_files.h"

#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <vector>

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

// The linked files of a file whose description was read are there.
void check_linked(FileSystem& file_system, const std::filesystem::path& attempt,
                  const FileEntry& entry) {
  for (const LinkedFile& linked : entry.linked) {
    const std::filesystem::path path = attempt / linked.name();
    static_cast<void>(describe_linked_file(*file_system.open(path), path.string(), linked));
  }
}

// If there are not too many, their pieces are added to the manifest.
void check_each(FileSystem& file_system, const std::filesystem::path& attempt, Manifest& manifest,
                std::span<const std::size_t> numbers) {
  if (numbers.size() > kMostFilesReadAtOnce) {
    return run_lanes(
        {.jobs = numbers.size(), .lanes = kLanes, .run = [&](std::size_t job, std::size_t) {
           FileEntry& entry = manifest.files[numbers[job]];
           const std::string path = (attempt / entry.name).string();
           const auto file = open_written(file_system, attempt, entry);
           read_linked_files(*file, path, entry);
           check_linked(file_system, attempt, entry);
         }});
  }
  for (const std::size_t f : numbers) {
    const auto file = open_written(file_system, attempt, manifest.files[f]);
    static_cast<void>(read_file_pieces(*file, attempt, manifest, f));
    check_linked(file_system, attempt, manifest.files[f]);
  }
}

}  // namespace

void check_written_files(FileSystem& file_system, const std::filesystem::path& attempt,
                         Manifest manifest) {
  std::vector<std::size_t> all(manifest.files.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  check_each(file_system, attempt, manifest, all);
  if (all.size() <= kMostFilesReadAtOnce) check_no_file_missing(manifest, attempt);
}

void check_written_files(FileSystem& file_system, const std::filesystem::path& attempt,
                         Manifest manifest, std::span<const std::size_t> numbers) {
  check_each(file_system, attempt, manifest, numbers);
}

}  // namespace shardwise::detail
