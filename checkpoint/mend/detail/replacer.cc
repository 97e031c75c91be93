#include "shardwise/mend/detail/replacer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/shard/error.h"

namespace shardwise::mend_detail {

namespace fs = std::filesystem;

namespace {

constexpr int kMostTries = 5;

}  // namespace

Replacer::Replacer(FileSystem& file_system, fs::path directory)
    : file_system_(file_system),
      directory_(std::move(directory)),
      opened_(file_system.open_directory(directory_)) {}

// Syncs first: a file that was replaced must not come back once its hidden name is removed.
void Replacer::remove_leftovers() {
  std::vector<std::string> names = file_system_.list(directory_);
  std::erase_if(names, [](const std::string& name) { return !detail::is_repair_name(name); });
  if (names.empty()) return;
  file_system_.sync_directory(directory_);
  for (const std::string& name : names) remove_or_leave(directory_ / name);
}

// A file that stays is no part of the checkpoint, and the next repair removes it.
void Replacer::remove_or_leave(const fs::path& hidden) {
  try {
    file_system_.remove(hidden);
  } catch (const Error&) {
  }
}

// Another repair of this checkpoint may put or remove a file of this name at the same time, or take
// the hidden one for a leftover. Then all is done again.
bool Replacer::take_place(const fs::path& hidden, const fs::path& place, bool is_last) {
  const std::vector<std::string> names = file_system_.list(directory_);
  if (!opened_->is_in_place()) {
    throw Error(ErrorCode::not_found,
                fmt::format("repair {}: the checkpoint was removed or replaced since it was opened",
                            place.string()));
  }
  try {
    if (std::ranges::find(names, place.filename().string()) == names.end()) {
      file_system_.rename(hidden, place);
    } else {
      file_system_.exchange(hidden, place);
    }
    return true;
  } catch (const Error& e) {
    const bool is_of_another =
        e.code() == ErrorCode::already_exists || e.code() == ErrorCode::not_found;
    if (is_last || !is_of_another) throw;
    return false;
  }
}

void Replacer::put(const std::string& name, const Fill& fill) {
  const fs::path place = directory_ / name;
  for (int tries = 1;; ++tries) {
    const fs::path hidden = directory_ / detail::repair_name(name, detail::new_id());
    const std::unique_ptr<File> file = file_system_.create(hidden, Caching::cached);
    bool is_placed = false;
    try {
      fill(*file);
      file->sync();
      file->seal();
      file->close();
      is_placed = take_place(hidden, place, tries == kMostTries);
    } catch (...) {
      remove_or_leave(hidden);
      throw;
    }
    if (is_placed) file_system_.sync_directory(directory_);
    remove_or_leave(hidden);
    if (is_placed) return;
  }
}

void Replacer::put(const std::string& name, std::span<const std::byte> bytes) {
  put(name, [&](File& file) {
    file.write_at(0, bytes.data(), bytes.size());
    std::vector<std::byte> read(bytes.size());
    file.read_at(0, read.data(), read.size());
    if (std::ranges::equal(read, bytes)) return;
    throw Error(ErrorCode::io, fmt::format("repair {}: the bytes that were written are not those "
                                           "that are read",
                                           (directory_ / name).string()));
  });
}

}  // namespace shardwise::mend_detail
