#include "shardwise/checkpoint/detail/root/spare.h"

#include <memory>
#include <string>

#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

Spare::~Spare() {
  try {
    remove();
  } catch (const Error&) {
  }
}

void Spare::keep(const std::filesystem::path& trash) {
  remove();
  directory_ = trash;
  bool holds_any = false;
  try {
    for (const std::string& name : file_system_.list(trash)) {
      const std::unique_ptr<File> file = name == kManifestName || name == kIndexName
                                             ? nullptr
                                             : file_system_.reuse(trash / name, Caching::cached);
      if (!file) {
        remove_tree(file_system_, trash / name);
        continue;
      }
      // Now and not within the next save: it has less to sync then.
      file->sync();
      file->close();
      holds_any = true;
    }
    // A name that was removed is given anew only when its removal is on the disk.
    if (holds_any) file_system_.sync_directory(trash);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    holds_any = false;  // another process has cleaned up
  }
  ready_ = holds_any;
  if (!ready_) remove();
}

bool Spare::become(const std::filesystem::path& directory) {
  if (!ready_) return false;
  bool there = true;
  try {
    file_system_.rename(directory_, directory);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    there = false;
  }
  directory_.clear();
  ready_ = false;
  return there;
}

void Spare::remove() {
  if (directory_.empty()) return;
  ready_ = false;
  remove_tree(file_system_, directory_);
  directory_.clear();
}

}  // namespace shardwise::detail
