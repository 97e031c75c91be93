#include "shardwise/checkpoint/detail/root/listing.h"

#include <algorithm>
#include <memory>
#include <optional>
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
    if (file->size() > print_tombstone(std::string(32, '0')).size()) return true;
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

std::filesystem::path newest_generation(FileSystem& file_system,
                                        const std::filesystem::path& directory) {
  const std::optional<StepName> name = parse_step_name(directory.filename().string());
  if (!name || name->generation != 1 || has_manifest(file_system, directory)) return directory;
  const std::filesystem::path root = directory.parent_path();
  std::vector<StepName> others;
  for (const std::string& text : file_system.list(root)) {
    const std::optional<StepName> other = parse_step_name(text);
    if (other && other->step == name->step && other->generation > 1) others.push_back(*other);
  }
  std::ranges::sort(others);
  for (auto other = others.rbegin(); other != others.rend(); ++other) {
    if (has_manifest(file_system, root / to_string(*other))) return root / to_string(*other);
  }
  return directory;
}

}  // namespace shardwise::detail
