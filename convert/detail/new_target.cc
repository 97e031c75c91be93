#include "shardwise/convert/detail/new_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <system_error>

#include "shardwise/convert/detail/safetensors_index.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_target(ErrorCode code, const fs::path& target, const std::string& what) {
  throw Error(code, fmt::format("export to {}: {}", target.string(), what));
}

fs::path absolute_path(const fs::path& target) {
  std::error_code error;
  fs::path absolute = fs::absolute(target, error).lexically_normal();
  if (error) refuse_target(ErrorCode::io, target, error.message());
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  if (!absolute.has_filename()) {
    refuse_target(ErrorCode::invalid_argument, target, "it is no name of a file or folder");
  }
  return absolute;
}

fs::path hidden_name(const fs::path& target) {
  std::random_device random;
  const auto word = [&random] { return static_cast<std::uint64_t>(random()) << 32 | random(); };
  constexpr std::size_t kMostOfName = 180;  // a name has at most 255 bytes
  return target.parent_path() / fmt::format(".{}.{:016x}{:016x}.partial",
                                            target.filename().string().substr(0, kMostOfName),
                                            word(), word());
}

/// What it holds never changes.
bool holds_checkpoint(std::span<const std::string> names) {
  const auto is_shard_file = [](const std::string& name) { return name.starts_with("shards-"); };
  return std::find(names.begin(), names.end(), "manifest.json") != names.end() &&
         std::any_of(names.begin(), names.end(), is_shard_file);
}

}  // namespace

NewTarget::NewTarget(FileSystem& file_system, const fs::path& target, TargetKind kind,
                     Existing existing)
    : file_system_(file_system), given_(target), target_(absolute_path(target)), kind_(kind) {
  const std::vector<std::string> beside = file_system_.list(target_.parent_path());
  if (holds_checkpoint(beside)) {
    refuse_target(ErrorCode::invalid_argument, given_,
                  "that is inside a checkpoint, needed is a place outside");
  }
  if (std::find(beside.begin(), beside.end(), target_.filename().string()) != beside.end()) {
    if (existing == Existing::fail) refuse_target(ErrorCode::already_exists, given_, "it exists");
    check_replaceable();
    replaces_ = true;
  }
  hidden_ = hidden_name(target_);
  if (kind_ == TargetKind::folder) file_system_.make_directory(hidden_);
}

void NewTarget::check_replaceable() const {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(target_, error).type();
  if (kind_ == TargetKind::file) {
    if (type == fs::file_type::regular) return;
    refuse_target(ErrorCode::already_exists, given_,
                  "it exists and is no file, nothing replaces it");
  }
  if (type != fs::file_type::directory) {
    refuse_target(ErrorCode::already_exists, given_,
                  "it exists and is no folder, nothing replaces it");
  }
  for (const std::string& name : file_system_.list(target_)) {
    if (name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix)) continue;
    refuse_target(ErrorCode::already_exists, given_,
                  fmt::format("it exists and holds {:?}, too; a folder is replaced that holds "
                              "nothing but safetensors and their index",
                              name));
  }
}

NewTarget::~NewTarget() {
  try {
    remove_all(hidden_);
  } catch (const std::exception&) {
    // It stays under its hidden name.
  }
}

std::unique_ptr<File> NewTarget::create(const std::string& name) {
  return file_system_.create(kind_ == TargetKind::folder ? hidden_ / name : hidden_,
                             Caching::direct);
}

void NewTarget::remove_all(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    for (const std::string& name : file_system_.list(path)) file_system_.remove(path / name);
  }
  file_system_.remove(path);
}

void NewTarget::publish() {
  if (kind_ == TargetKind::folder) file_system_.sync_directory(hidden_);
  if (replaces_) {
    check_replaceable();
    replace();
  } else {
    file_system_.rename(hidden_, target_);
  }
  file_system_.sync_directory(target_.parent_path());
}

void NewTarget::replace() {
  // The destructor removes what has the hidden name then.
  exchange_by_any_means(file_system_, hidden_, target_, hidden_name(target_));
}

}  // namespace shardwise::detail
