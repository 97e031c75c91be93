#include "shardwise/checkpoint/detail/root/root.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/listing.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {
namespace {

constexpr int kMostListings = 100;
constexpr std::uint64_t kMostLeaseBytes = 4096;

// Collects the garbage of one root, whose names were listed before it is made. Thread-compatible.
class Collector {
 public:
  Collector(FileSystem& file_system, const std::filesystem::path& root,
            const GarbageOptions& options)
      : file_system_(file_system), root_(root), options_(options) {}

  void look_at(const std::string& name) {
    const std::optional<HiddenName> hidden = parse_hidden_name(name);
    if (!hidden) return;
    failures_.attempt([&] {
      const bool owned = is_owned(name, *hidden);
      if (!owned) remove(name, *hidden);
      // A note about the root is no leftover.
      const bool is_note = hidden->kind == HiddenKind::aside || hidden->kind == HiddenKind::writer;
      if (!is_note || !owned) (owned ? report_.kept : report_.removed).push_back(name);
    });
  }

  GarbageReport finish() {
    failures_.rethrow_first();
    return std::move(report_);
  }

 private:
  // A lease is there before its attempt. One without its name yet protects nothing; its writer
  // makes another one.
  bool is_owned(const std::string& name, const HiddenName& hidden) const {
    if (hidden.kind == HiddenKind::aside) return is_there(hidden.stem);
    if (hidden.kind == HiddenKind::pin || hidden.kind == HiddenKind::writer) {
      return has_live_owner(file_system_, root_ / name, options_);
    }
    if (hidden.kind == HiddenKind::trash) {
      const std::optional<StepName> step = parse_step_name(hidden.stem);
      return step && is_pinned(file_system_, root_, *step, options_);
    }
    return (hidden.kind == HiddenKind::attempt || hidden.kind == HiddenKind::lease) &&
           has_live_owner(file_system_, root_ / lease_name(hidden.stem), options_);
  }

  bool is_there(const std::string& step) const {
    const std::vector<std::string> names = file_system_.list(root_);
    return std::ranges::find(names, step) != names.end();
  }

  // Attempts and trash may have been checkpoints, and still be to the disk: of a process that died
  // after a rename, or could not sync it. One sync does for all that was listed before it.
  void remove(const std::string& name, const HiddenName& hidden) {
    if (!synced_ && (hidden.kind == HiddenKind::attempt || hidden.kind == HiddenKind::trash)) {
      file_system_.sync_directory(root_);
      synced_ = true;
    }
    if (hidden.kind == HiddenKind::trash) return remove_trash(root_ / name, hidden.stem);
    remove_tree(file_system_, root_ / name);
  }

  // Who made it may see a pin and bring it back: under another name it cannot, whole or half.
  void remove_trash(const std::filesystem::path& trash, const std::string& checkpoint) {
    const std::filesystem::path taken = root_ / trash_name(checkpoint, new_id());
    try {
      file_system_.rename(trash, taken);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::unsupported) return remove_tree(file_system_, trash);
      if (e.code() != ErrorCode::not_found) throw;
      return;  // it is back, or somebody else's
    }
    remove_tree(file_system_, taken);
  }

  FileSystem& file_system_;
  const std::filesystem::path& root_;
  const GarbageOptions& options_;
  bool synced_ = false;
  GarbageReport report_;
  Failures failures_;
};

// No names if the directory is gone.
std::vector<std::string> names_if_there(FileSystem& file_system,
                                        const std::filesystem::path& directory) {
  try {
    return file_system.list(directory);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return {};
  }
}

// Makes a directory whose name is on the disk when it returns, and those above it.
void make_directories(FileSystem& file_system, const std::filesystem::path& directory) {
  const std::filesystem::path parent =
      directory.has_parent_path() ? directory.parent_path() : std::filesystem::path(".");
  const auto make = [&] {
    try {
      file_system.make_directory(directory);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::already_exists) throw;  // another process may be faster
    }
  };
  try {
    make();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found || parent == directory) throw;
    make_directories(file_system, parent);
    make();
  }
  file_system.sync_directory(parent);
}

Trash trash_in_place(FileSystem& file_system, const std::filesystem::path& directory) {
  const std::filesystem::path manifest = directory / kManifestName;
  Trash trash{directory, manifest, directory / (std::string(kManifestName) + ".trash-" + new_id())};
  try {
    file_system.rename(trash.was, trash.is);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return trash;  // it was none already
  }
  file_system.sync_directory(directory);
  return trash;
}

}  // namespace

std::optional<LeaseOwner> live_owner(FileSystem& file_system, const std::filesystem::path& lease,
                                     const GarbageOptions& options) {
  std::string text;
  try {
    const std::unique_ptr<File> file = file_system.open(lease);
    text.resize(std::min(file->size(), kMostLeaseBytes));
    file->read_at(0, reinterpret_cast<std::byte*>(text.data()), text.size());
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return std::nullopt;
  }
  // With the file closed: its descriptor may be the last one.
  std::optional<LeaseOwner> owner = parse_lease(text);
  if (owner && !may_be_alive(*owner, options.dead_hosts)) owner.reset();
  return owner;
}

bool has_live_owner(FileSystem& file_system, const std::filesystem::path& lease,
                    const GarbageOptions& options) {
  return live_owner(file_system, lease, options).has_value();
}

std::filesystem::path absolute_root(const std::filesystem::path& root) {
  if (in_bucket(root)) return path_of_url(root);
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(root, error);
  if (error) {
    throw Error(ErrorCode::io,
                fmt::format("open checkpoint root {:?}: {}", root.string(), error.message()),
                error.value());
  }
  return absolute;
}

void make_root(FileSystem& file_system, const std::filesystem::path& root) {
  try {
    file_system.list(root);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    make_directories(file_system, root.has_filename() ? root : root.parent_path());
  }
}

void remove_tree(FileSystem& file_system, const std::filesystem::path& path) {
  // Others may be removing it too, or still be adding to it.
  for (int tries = 1;; ++tries) {
    try {
      return file_system.remove(path);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::already_exists) throw;
      if (tries == kMostListings) throw Error(ErrorCode::io, e.what());
    }
    for (const std::string& name : names_if_there(file_system, path)) {
      remove_tree(file_system, path / name);
    }
  }
}

std::optional<Trash> trash_checkpoint(FileSystem& file_system, const std::filesystem::path& root,
                                      const StepName& name) {
  const std::string text = to_string(name);
  const std::filesystem::path trash = root / trash_name(text, new_id());
  try {
    file_system.rename(root / text, trash);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::not_found) return std::nullopt;
    if (e.code() == ErrorCode::unsupported) return trash_in_place(file_system, root / text);
    throw;
  }
  file_system.sync_directory(root);
  return Trash{trash, root / text, trash};
}

void remove_checkpoint(FileSystem& file_system, const std::filesystem::path& root,
                       const StepName& name) {
  if (const auto trash = trash_checkpoint(file_system, root, name)) {
    remove_tree(file_system, trash->directory);
  }
}

std::vector<StepName> committed_names(FileSystem& file_system, const std::filesystem::path& root) {
  std::vector<StepName> names;
  for (const std::string& name : names_in_root(file_system, root)) {
    if (const std::optional<StepName> step = parse_step_name(name)) names.push_back(*step);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void refuse_existing(FileSystem& file_system, const std::filesystem::path& root,
                     std::int64_t step) {
  for (const StepName& name : run_names(file_system, root).own) {
    if (name.step != step) continue;
    throw Error(ErrorCode::already_exists,
                fmt::format("save step {}: {} is already there; Existing::replace writes a new "
                            "generation of it, Existing::skip writes nothing",
                            step, (root / to_string(name)).string()));
  }
}

Error not_skipped(const std::filesystem::path& path, const std::string& reason) {
  return {ErrorCode::already_exists,
          fmt::format("{}: Existing::skip needs a valid checkpoint there, found none ({}); "
                      "Existing::replace takes its place",
                      path.string(), reason)};
}

GarbageReport collect_root_garbage(FileSystem& file_system, const std::filesystem::path& root,
                                   const GarbageOptions& options) {
  // Names come sorted, so ".lease" before ".tmp" of the same attempt; the lease must go last.
  std::vector<std::string> names = file_system.list(root);
  std::reverse(names.begin(), names.end());
  Collector collector(file_system, root, options);
  for (const std::string& name : names) collector.look_at(name);
  return collector.finish();
}

}  // namespace shardwise::detail
