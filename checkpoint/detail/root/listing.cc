#include "shardwise/checkpoint/detail/root/listing.h"

#include <algorithm>
#include <memory>
#include <span>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/format/tombstone.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {
namespace {

/// True if a folder in a bucket has a manifest in place of a tombstone. There the manifest is what
/// makes a folder a checkpoint, as its name does elsewhere.
bool has_manifest(FileSystem& file_system, const std::filesystem::path& directory) {
  try {
    const std::unique_ptr<File> file = file_system.open(directory / kManifestName);
    std::string begin(std::min<std::size_t>(file->size(), kTombstone.size()), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(begin)).data(), begin.size());
    return !is_tombstone(begin);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;
  }
}

}  // namespace

std::vector<std::string> names_in_root(FileSystem& file_system, const std::filesystem::path& root) {
  std::vector<std::string> names = file_system.list(root);
  if (in_bucket(root)) {
    std::erase_if(names, [&](const std::string& name) {
      return parse_step_name(name) && !has_manifest(file_system, root / name);
    });
  }
  return names;
}

}  // namespace shardwise::detail
