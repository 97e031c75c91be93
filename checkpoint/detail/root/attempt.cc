#include "shardwise/checkpoint/detail/root/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/root/exchange.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr int kMostTries = 100;

}  // namespace

void write_whole_file(FileSystem& file_system, const std::filesystem::path& path,
                      std::span<const std::byte> content) {
  const std::unique_ptr<File> file = file_system.create(path, Caching::cached);
  file->write_at(0, content.data(), content.size());
  file->sync();
  file->close();
}

namespace {

// Only a checkpoint may be replaced: anything else is not ours to remove.
void check_replaceable(FileSystem& file_system, const std::filesystem::path& target) {
  try {
    if (std::ranges::binary_search(file_system.list(target), std::string_view(kManifestName)))
      return;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found && e.code() != ErrorCode::io) throw;
  }
  throw Error(
      ErrorCode::already_exists,
      fmt::format("replace {}: it is no checkpoint, and is left as it is", target.string()));
}

}  // namespace

Attempt::Attempt(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step,
                 std::vector<std::filesystem::path>& leftovers, Spare* spare)
    : file_system_(file_system), root_(root), step_(step), leftovers_(leftovers) {
  take_lease();
  try {
    reused_ = spare != nullptr && spare->become(directory_);
    if (!reused_) file_system_.make_directory(directory_);
  } catch (...) {
    give_back(lease_);
    throw;
  }
}

Attempt::Attempt(FileSystem& file_system, const std::filesystem::path& target,
                 std::vector<std::filesystem::path>& leftovers)
    : file_system_(file_system),
      root_(target.parent_path()),
      name_(target.filename().string()),
      leftovers_(leftovers) {
  if (name_.empty() || name_ == "." || name_ == ".." || parse_hidden_name(name_)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save {:?}: it does not name a checkpoint", target.string()));
  }
  take_lease();
  try {
    file_system_.make_directory(directory_);
  } catch (...) {
    give_back(lease_);
    throw;
  }
}

Attempt::~Attempt() {
  if (!maker_.is_this_process()) return;
  // Anyone may remove the rest when the lease is gone.
  if (!name_may_be_kept_) {
    try {
      remove_tree(file_system_, directory_);  // published, it is no longer there
    } catch (...) {
    }
  }
  give_back(lease_);
}

void Attempt::take_lease() {
  const std::string text = print_lease(this_process());
  // Others may take an unfinished lease for a dead process's and remove it: then once more.
  for (int tries = 1;; ++tries) {
    id_ = new_id();
    const std::string stem = name_.empty() ? attempt_stem(step_, id_) : attempt_stem(name_, id_);
    directory_ = root_ / attempt_name(stem);
    lease_ = root_ / lease_name(stem);
    const std::filesystem::path unfinished = root_ / unfinished_lease_name(stem);
    try {
      write_whole_file(file_system_, unfinished, std::as_bytes(std::span(text)));
      return file_system_.rename(unfinished, lease_);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::not_found && tries < kMostTries) continue;
      give_back(unfinished);
      throw;
    } catch (...) {
      give_back(unfinished);
      throw;
    }
  }
}

void Attempt::give_back(const std::filesystem::path& lease) noexcept {
  try {
    file_system_.remove(lease);
  } catch (...) {
    try {
      leftovers_.push_back(lease);
    } catch (...) {  // it holds until this process ends
    }
  }
}

std::filesystem::path Attempt::publish(Existing existing) {
  std::filesystem::path published;
  if (!name_.empty()) {
    published = root_ / name_;
    publish_as(published, existing);
    return published;
  }
  for (int tries = 1;; ++tries) {
    published = root_ / to_string(next_name(existing));
    try {
      file_system_.rename(directory_, published);
      break;
    } catch (const Error& e) {
      // Another process has published the same generation since we looked.
      const bool taken = existing == Existing::replace && e.code() == ErrorCode::already_exists;
      if (!taken || tries == kMostTries) throw;
    }
  }
  try {
    file_system_.sync_directory(root_);
  } catch (...) {
    take_back(published, false);
    throw;
  }
  return published;
}

void Attempt::publish_as(const std::filesystem::path& target, Existing existing) {
  bool replaces = false;
  try {
    file_system_.rename(directory_, target);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::already_exists) throw;
    if (existing != Existing::replace) {
      throw Error(ErrorCode::already_exists,
                  fmt::format("publish {}: it is already there", target.string()));
    }
    check_replaceable(file_system_, target);
    exchange(target);
    replaces = true;
  }
  try {
    file_system_.sync_directory(root_);
  } catch (...) {
    take_back(target, replaces);
    throw;
  }
}

// The name aside is not one of ours: nobody removes it, if this process ends just then.
void Attempt::exchange(const std::filesystem::path& target) {
  exchange_by_any_means(file_system_, directory_, target,
                        root_ / fmt::format("{}.replaced-{}", name_, id_));
}

StepName Attempt::next_name(Existing existing) const {
  StepName name{step_, 1};
  const RunNames names = remove_stale_marks(file_system_, root_);  // this step may get one's name
  for (const StepName& there : names.all()) {
    if (there.step != step_) continue;
    const std::string path = (root_ / to_string(there)).string();
    if (existing != Existing::replace && std::ranges::binary_search(names.own, there)) {
      throw Error(ErrorCode::already_exists, fmt::format("publish {}: it is already there", path));
    }
    if (there.generation == std::numeric_limits<std::int64_t>::max()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("publish a later generation than {}: numbers end there; remove it or "
                              "give it another name",
                              path));
    }
    name.generation = there.generation + 1;
  }
  return name;
}

// Nobody knows whether a crash would undo the publication now, so it is undone. Until that is on
// the disk, a crash may bring the name back: then there must be whole files under it.
void Attempt::take_back(const std::filesystem::path& published, bool replaced) noexcept {
  name_may_be_kept_ = true;
  try {
    if (replaced) {
      exchange(published);
    } else {
      file_system_.rename(published, directory_);
    }
    file_system_.sync_directory(root_);
    name_may_be_kept_ = false;
  } catch (...) {
  }
}

}  // namespace shardwise::detail
