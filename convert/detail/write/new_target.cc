#include "shardwise/convert/detail/write/new_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>

#include "shardwise/convert/detail/write/export_format.h"
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

/// A folder that holds a checkpoint is never replaced.
bool holds_checkpoint(std::span<const std::string> names) {
  const auto is_shard_file = [](const std::string& name) { return name.starts_with("shards-"); };
  return std::find(names.begin(), names.end(), "manifest.json") != names.end() &&
         std::any_of(names.begin(), names.end(), is_shard_file);
}

}  // namespace

NewTarget::NewTarget(FileSystem& file_system, const fs::path& target, TargetKind kind,
                     Existing existing, IsExported is_exported)
    : file_system_(file_system),
      given_(target),
      target_(absolute_path(target)),
      kind_(kind),
      is_exported_(std::move(is_exported)) {
  const std::vector<std::string> names = file_system_.list(target_.parent_path());
  if (holds_checkpoint(names)) {
    refuse_target(ErrorCode::invalid_argument, given_,
                  "that is inside a checkpoint, needed is a place outside");
  }
  if (std::find(names.begin(), names.end(), target_.filename().string()) != names.end()) {
    if (existing != Existing::replace) {
      refuse_target(ErrorCode::already_exists, given_,
                    "it exists: Existing::replace replaces it, Existing::skip writes nothing");
    }
    check_replaceable();
    replaces_ = true;
  }
  staged_.emplace(file_system_, target_);
  if (kind_ == TargetKind::folder) file_system_.make_directory(staged_->place());
}

bool NewTarget::skips(FileSystem& file_system, const fs::path& target,
                      const std::function<void()>& check) {
  const fs::path absolute = absolute_path(target);
  const std::vector<std::string> names = file_system.list(absolute.parent_path());
  if (std::find(names.begin(), names.end(), absolute.filename().string()) == names.end()) {
    return false;
  }
  try {
    check();
    return true;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    refuse_target(
        ErrorCode::already_exists, target,
        fmt::format("Existing::skip needs a whole export there, found none ({})", e.what()));
  }
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
    if (is_exported_ ? is_exported_(target_ / name) : is_exported_name(name)) continue;
    refuse_target(ErrorCode::already_exists, given_,
                  fmt::format("it exists and holds {:?}, too; only a folder that holds nothing "
                              "but exported files is replaced",
                              name));
  }
}

std::unique_ptr<File> NewTarget::create(const std::string& name) {
  const fs::path& place = staged_->place();
  return file_system_.create(kind_ == TargetKind::folder ? place / name : place, Caching::direct);
}

void NewTarget::publish() {
  if (kind_ == TargetKind::folder) file_system_.sync_directory(staged_->place());
  if (replaces_) check_replaceable();
  staged_->publish(replaces_);
}

}  // namespace shardwise::detail
