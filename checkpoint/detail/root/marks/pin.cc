#include "shardwise/checkpoint/detail/root/marks/pin.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr int kMostPins = 100;

}  // namespace

Pin::Pin(FileSystem& file_system, const std::filesystem::path& directory)
    : file_system_(file_system) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(directory, error);
  const std::optional<StepName> name = parse_step_name(real.filename().string());
  if (error || !name) return;  // opening it reports the problem
  const std::filesystem::path root = real.parent_path();
  // Others may take an unfinished lease for a dead process's and remove it: then once more.
  for (int tries = 1; path_.empty() && tries <= kMostPins; ++tries) {
    const std::string id = new_id();
    const std::filesystem::path unfinished =
        root / unfinished_lease_name(attempt_stem(name->step, id));
    std::filesystem::path pin = root / pin_name(to_string(*name), id);
    try {
      const std::string text = print_lease(this_process());
      // Not synced: the remains after a power loss have no owner.
      const std::unique_ptr<File> file = file_system.create(unfinished, Caching::cached);
      file->write_at(0, std::as_bytes(std::span(text)).data(), text.size());
      file->close();
      file_system.rename(unfinished, pin);
      path_ = std::move(pin);
    } catch (const Error& e) {
      // Anyone may remove the remains.
      if (e.code() != ErrorCode::not_found) return;
    }
  }
}

Pin::~Pin() {
  if (path_.empty() || !maker_.is_this_process()) return;
  try {
    file_system_.remove(path_);
  } catch (...) {
    // It holds as long as this process lives, and is then anyone's to remove.
  }
}

bool is_pinned(FileSystem& file_system, const std::filesystem::path& root, const StepName& name,
               const GarbageOptions& options) {
  for (const std::string& entry : file_system.list(root)) {
    const std::optional<HiddenName> hidden = parse_hidden_name(entry);
    if (hidden && hidden->kind == HiddenKind::pin && hidden->stem == to_string(name) &&
        has_live_owner(file_system, root / entry, options)) {
      return true;
    }
  }
  return false;
}

bool remove_unless_pinned(FileSystem& file_system, const std::filesystem::path& root,
                          const StepName& name, Spare* spare) {
  if (is_pinned(file_system, root, name)) return false;
  const std::optional<Trash> trash = trash_checkpoint(file_system, root, name);
  if (!trash) return true;
  if (!is_pinned(file_system, root, name)) {
    // A directory that cannot be renamed would have to be copied to be moved.
    const bool renamed = trash->is == trash->directory;
    if (spare != nullptr && renamed) {
      spare->keep(trash->directory, name);
    } else {
      remove_tree(file_system, trash->directory);
    }
    return true;
  }
  try {
    file_system.rename(trash->is, trash->was);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return true;  // nobody has opened it: the pin was not there when a collector looked for it
  }
  file_system.sync_directory(trash->was.parent_path());
  return false;
}

}  // namespace shardwise::detail
