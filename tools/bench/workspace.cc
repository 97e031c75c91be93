#include "bench/workspace.h"

#include <fmt/core.h>
#include <unistd.h>

#include <system_error>

#include "output.h"
#include "parse.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const char* what, const fs::path& path, const std::error_code& error) {
  throw Error(ErrorCode::io, fmt::format("bench: {} {}: {}", what, path.string(), error.message()));
}

void refuse_steps(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_step(entry->path())) continue;
    throw Error(ErrorCode::already_exists,
                fmt::format("bench save --keep: {} holds {} already; a directory without steps is "
                            "needed",
                            directory.string(), entry->path().filename().string()));
  }
  if (error) fail("list", directory, error);
}

}  // namespace

Workspace::Workspace(const fs::path& directory, Leave leave)
    : directory_(fs::absolute(directory).lexically_normal()),
      own_(directory / fmt::format("shardwise-bench-{}", getpid())),
      root_(leave == Leave::checkpoint ? directory : own_ / "root") {
  if (!directory_.has_filename()) directory_ = directory_.parent_path();  // "runs/" is "runs"
  make();
  try {
    if (leave == Leave::checkpoint) refuse_steps(directory);
    std::error_code error;
    const bool fresh = fs::create_directory(own_, error);
    if (error) fail("make", own_, error);
    if (!fresh) {
      throw Error(ErrorCode::already_exists,
                  fmt::format("bench: {} is there already; remove it", own_.string()));
    }
  } catch (...) {
    remove_made();
    throw;
  }
}

Workspace::~Workspace() {
  std::error_code ignored;
  fs::remove_all(own_, ignored);
  for (const fs::path& checkpoint : checkpoints_) fs::remove_all(checkpoint, ignored);
  remove_made();
}

void Workspace::make() {
  std::error_code error;
  if (fs::is_directory(directory_, error)) return;
  if (fs::exists(directory_, error)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("bench: {} is not a directory", directory_.string()));
  }
  for (fs::path path = directory_; path.has_filename() && !fs::exists(path, error);
       path = path.parent_path()) {
    made_ = path;
  }
  fs::create_directories(directory_, error);
  if (error) fail("make", directory_, error);
}

// Directories that hold something, such as a checkpoint that stays, are not removed.
void Workspace::remove_made() const {
  if (made_.empty()) return;
  std::error_code error;
  for (fs::path path = directory_; fs::remove(path, error) && path != made_;) {
    path = path.parent_path();
  }
}

fs::path Workspace::raw_file(int round) const { return own_ / fmt::format("raw-{}", round); }

std::size_t Workspace::free_bytes() const {
  std::error_code error;
  const fs::space_info space = fs::space(own_, error);
  if (error) fail("look for space in", directory_, error);
  return space.available;
}

void Workspace::check_space(std::size_t needed_bytes) const {
  const std::size_t free = free_bytes();
  if (free >= needed_bytes) return;
  throw Error(ErrorCode::io,
              fmt::format("bench: {} has {} free, {} are needed", directory_.string(),
                          human_bytes(free), human_bytes(needed_bytes)));
}

}  // namespace shardwise::tools
