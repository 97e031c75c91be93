#include "shardwise/checkpoint/detail/root/spare.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

void Spare::drop() noexcept {
  try {
    remove();
  } catch (...) {  // the next clean-up of the root removes it
  }
}

void Spare::keep(const std::filesystem::path& trash, const StepName& name) {
  Failures failures;
  failures.attempt([&] { remove(); });
  bool gone = false;
  const bool taken = failures.attempt([&] {
    try {
      take(trash, name);
    } catch (const Error& e) {
      gone = e.code() == ErrorCode::not_found;
      if (!gone) throw;  // else another process has cleaned up one of the two directories
    }
  });
  if (!taken || gone) {
    drop();
    failures.attempt([&] { remove_tree(file_system_, trash); });
  }
  failures.rethrow_first();
}

void Spare::take(const std::filesystem::path& trash, const StepName& name) {
  try {
    return file_system_.remove(trash);  // a link, which is not followed
  } catch (const Error& e) {
    if (e.code() != ErrorCode::already_exists) throw;
  }
  directory_ = trash.parent_path() / trash_name(to_string(name), new_id());
  file_system_.make_directory(directory_);
  std::vector<std::filesystem::path> moved;
  for (const std::string& file : file_system_.list(trash)) {
    const bool is_shard_file = file != kManifestName && file != kIndexName &&
                               !file.starts_with(kLinkedPrefix) && !file.ends_with(kParitySuffix);
    if (!is_shard_file) continue;
    file_system_.rename(trash / file, directory_ / file);
    moved.push_back(directory_ / file);
  }
  file_system_.sync_directory(directory_);
  file_system_.sync_directory(trash);
  remove_tree(file_system_, trash);
  bool holds_any = false;
  for (const std::filesystem::path& path : moved) {
    const std::unique_ptr<File> file = file_system_.reuse(path, Caching::cached);
    if (!file) {
      remove_tree(file_system_, path);
      continue;
    }
    // Now and not within the next save: it has less to sync then.
    file->sync();
    file->close();
    holds_any = true;
  }
  if (!holds_any) return remove();
  // A name that was removed is used again only when its removal is on the disk.
  file_system_.sync_directory(directory_);
}

bool Spare::become(const std::filesystem::path& directory) {
  if (directory_.empty()) return false;
  bool there = true;
  try {
    file_system_.rename(directory_, directory);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    there = false;
  }
  directory_.clear();
  return there;
}

void Spare::remove() {
  const std::filesystem::path directory = std::exchange(directory_, {});
  if (!directory.empty()) remove_tree(file_system_, directory);
}

}  // namespace shardwise::detail
