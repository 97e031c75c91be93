#include "shardwise/checkpoint/detail/write/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>

#include "shardwise/checkpoint/detail/write/lease.h"
#include "shardwise/checkpoint/detail/write/root_names.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr int kMostTries = 100;
constexpr std::uint64_t kMostLeaseBytes = 4096;

// Whether anybody may be at work on an attempt. A lease has its content from the moment it has its
// name, and it is there before the attempt, so no lease and a strange lease both mean nobody.
bool has_live_owner(FileSystem& file_system, const std::filesystem::path& lease) {
  try {
    const std::unique_ptr<File> file = file_system.open(lease, Caching::cached);
    std::string text(std::min(file->size(), kMostLeaseBytes), '\0');
    file->read_at(0, reinterpret_cast<std::byte*>(text.data()), text.size());
    const std::optional<LeaseOwner> owner = parse_lease(text);
    return owner && may_be_alive(*owner);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return false;
  }
}

// Collects the garbage of one root. Thread-compatible.
class Collector {
 public:
  Collector(FileSystem& file_system, const std::filesystem::path& root)
      : file_system_(file_system), root_(root) {}

  void look_at(const std::string& name) {
    const std::optional<HiddenName> hidden = parse_hidden_name(name);
    if (!hidden) return;
    try {
      // A lease without its name yet protects nothing; its writer makes another one.
      const bool owned =
          (hidden->kind == HiddenKind::attempt || hidden->kind == HiddenKind::lease) &&
          has_live_owner(file_system_, root_ / lease_name(hidden->stem));
      if (!owned) remove_tree(file_system_, root_ / name);
      (owned ? report_.kept : report_.removed).push_back(name);
    } catch (const Error&) {
      if (!error_) error_ = std::current_exception();
    }
  }

  GarbageReport finish() {
    if (error_) std::rethrow_exception(error_);
    return std::move(report_);
  }

 private:
  FileSystem& file_system_;
  const std::filesystem::path& root_;
  GarbageReport report_;
  std::exception_ptr error_;
};

// None where the directory is no longer there.
std::vector<std::string> names_in(FileSystem& file_system, const std::filesystem::path& directory) {
  try {
    return file_system.list(directory);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return {};
  }
}

}  // namespace

void write_whole_file(FileSystem& file_system, const std::filesystem::path& path,
                      std::span<const std::byte> content) {
  const std::unique_ptr<File> file = file_system.create(path, Caching::cached);
  file->write_at(0, content.data(), content.size());
  file->sync();
  file->close();
}

void remove_tree(FileSystem& file_system, const std::filesystem::path& path) {
  // Others may be removing it too, or still be adding to it.
  for (int tries = 1;; ++tries) {
    try {
      return file_system.remove(path);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::already_exists) throw;
      if (tries == kMostTries) throw Error(ErrorCode::io, e.what());
    }
    for (const std::string& name : names_in(file_system, path)) {
      remove_tree(file_system, path / name);
    }
  }
}

void remove_checkpoint(FileSystem& file_system, const std::filesystem::path& root,
                       const StepName& name) {
  const std::string text = to_string(name);
  const std::filesystem::path trash = root / trash_name(text, new_id());
  try {
    file_system.rename(root / text, trash);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return;
  }
  file_system.sync_directory(root);
  remove_tree(file_system, trash);
}

std::vector<StepName> committed_names(FileSystem& file_system, const std::filesystem::path& root) {
  std::vector<StepName> names;
  for (const std::string& name : file_system.list(root)) {
    if (const std::optional<StepName> step = parse_step_name(name)) names.push_back(*step);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Attempt::Attempt(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step,
                 std::vector<std::filesystem::path>& leftovers)
    : file_system_(file_system), root_(root), step_(step), leftovers_(leftovers) {
  take_lease();
  try {
    file_system_.make_directory(directory_);
  } catch (const Error&) {
    give_lease_back();
    throw;
  }
}

Attempt::~Attempt() {
  // Published, it is no longer there.
  try {
    remove_tree(file_system_, directory_);
  } catch (const Error&) {
    // Without a lease it is anyone's to remove.
  }
  give_lease_back();
}

void Attempt::take_lease() {
  const std::string text = print_lease(this_process());
  // Others may take an unfinished lease for a dead process's and remove it: then once more.
  for (int tries = 1;; ++tries) {
    id_ = new_id();
    const std::string stem = attempt_stem(step_, id_);
    directory_ = root_ / attempt_name(stem);
    lease_ = root_ / lease_name(stem);
    const std::filesystem::path unfinished = root_ / unfinished_lease_name(stem);
    try {
      write_whole_file(file_system_, unfinished, std::as_bytes(std::span(text)));
      return file_system_.rename(unfinished, lease_);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::not_found && tries < kMostTries) continue;
      try {
        file_system_.remove(unfinished);
      } catch (const Error&) {
        leftovers_.push_back(unfinished);
      }
      throw;
    }
  }
}

void Attempt::give_lease_back() {
  try {
    file_system_.remove(lease_);
  } catch (const Error&) {
    leftovers_.push_back(lease_);
  }
}

StepName Attempt::publish(Existing existing) {
  StepName name{step_, 1};
  for (int tries = 1;; ++tries) {
    for (const StepName& there : committed_names(file_system_, root_)) {
      if (there.step == step_) name.generation = there.generation + 1;
    }
    if (existing == Existing::fail && name.generation > 1) {
      throw Error(ErrorCode::already_exists, fmt::format("publish {}: it is already there",
                                                         (root_ / to_string(name)).string()));
    }
    try {
      file_system_.rename(directory_, root_ / to_string(name));
      break;
    } catch (const Error& e) {
      // Another process has published the same generation since we looked.
      const bool taken = existing == Existing::replace && e.code() == ErrorCode::already_exists;
      if (!taken || tries == kMostTries) throw;
    }
  }
  try {
    file_system_.sync_directory(root_);
  } catch (const Error&) {
    // Nobody knows whether a crash would undo it now, so it is undone.
    try {
      file_system_.rename(root_ / to_string(name), directory_);
    } catch (const Error&) {
    }
    throw;
  }
  return name;
}

GarbageReport collect_root_garbage(FileSystem& file_system, const std::filesystem::path& root) {
  Collector collector(file_system, root);
  // Names come sorted, so ".lease" before ".tmp" of the same attempt; the lease must go last.
  std::vector<std::string> names = file_system.list(root);
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) collector.look_at(name);
  return collector.finish();
}

}  // namespace shardwise::detail
