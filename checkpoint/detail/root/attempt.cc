#include "shardwise/checkpoint/detail/root/attempt.h"

#include <fmt/format.h>

#include "shardwise/checkpoint/detail/root/lease.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

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

Attempt::Attempt(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step,
                 std::vector<std::filesystem::path>& leftovers, Spare* spare)
    : file_system_(file_system), root_(root), step_(step), leftovers_(leftovers) {
  take_lease();
  try {
    reused_ = spare != nullptr && spare->become(directory_);
    if (!reused_) file_system_.make_directory(directory_);
  } catch (const Error&) {
    give_lease_back();
    throw;
  }
}

Attempt::~Attempt() {
  // What stays is anyone's to remove when the lease is gone.
  if (!name_may_be_kept_) {
    try {
      remove_tree(file_system_, directory_);  // published, it is no longer there
    } catch (const Error&) {
    }
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
    take_back(name);
    throw;
  }
  return name;
}

// Nobody knows whether a crash would undo the publication now, so it is undone. Until that is on
// the disk, a crash may bring the name back: then there must be whole files under it.
void Attempt::take_back(const StepName& name) {
  name_may_be_kept_ = true;
  try {
    file_system_.rename(root_ / to_string(name), directory_);
    file_system_.sync_directory(root_);
    name_may_be_kept_ = false;
  } catch (const Error&) {
  }
}

}  // namespace shardwise::detail
