#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <system_error>
#include <vector>

#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/convert/detail/write/new_target.h"
#include "shardwise/convert/model.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/known_format.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

bool is_of_dcp(const fs::path& path) {
  return path.filename() == ".metadata" || path.extension() == ".distcp";
}

/// True for an entry of a checkpoint or of a step, whose items are folders of a tree or of JSON.
bool is_of_orbax(const fs::path& path) {
  static constexpr std::array kNames = {
      "_METADATA",       "_CHECKPOINT_METADATA", "_sharding",  "_strings.json",
      "array_metadatas", "commit_success.txt",   "descriptor", "d",
      "manifest.ocdbt",  "ocdbt.process_0"};
  const std::string name = path.filename().string();
  if (std::ranges::find(kNames, name) != kNames.end()) return true;
  std::error_code ignored;
  return std::ranges::any_of(std::array{"_METADATA", "metadata", "metrics"},
                             [&](const char* file) { return fs::exists(path / file, ignored); });
}

[[noreturn]] void refuse_folder(ErrorCode code, const fs::path& target, const std::string& what) {
  throw Error(code, fmt::format("export to {}: {}", target.string(), what));
}

detail::NewTarget::IsExported check_of(std::string_view format, const fs::path& target) {
  for (const detail::ExportFormat* const other : detail::export_formats()) {
    if (target.extension() != other->suffix()) continue;
    refuse_folder(
        ErrorCode::invalid_argument, target,
        fmt::format("the format is {}, but its name ends in {}", format, other->suffix()));
  }
  if (format == "dcp") return is_of_dcp;
  if (format == "orbax") return is_of_orbax;
  refuse_folder(ErrorCode::invalid_argument, target,
                fmt::format("format {:?} is not known, needed is dcp or orbax", format));
}

/// Counts and syncs all files, then syncs the folders.
void sync_below(FileSystem& file_system, const fs::path& folder, const fs::path& shown,
                ExportStats& stats) {
  for (const std::string& name : file_system.list(folder)) {
    const fs::path path = folder / name;
    std::error_code error;
    if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
      sync_below(file_system, path, shown / name, stats);
      file_system.sync_directory(path);
      continue;
    }
    const std::unique_ptr<File> file = file_system.open(path);
    file->sync();
    stats.file_bytes += static_cast<std::size_t>(file->size());
    stats.files.push_back(shown / name);
  }
}

}  // namespace

ExportStats export_folder(const fs::path& target, std::string_view format, Existing existing,
                          const std::function<void(const fs::path& folder)>& write) {
  const Stopwatch watch;
  const auto file_system = posix_file_system();
  detail::NewTarget::IsExported is_exported = check_of(format, target);
  const auto check = [&] {
    const KnownFormat known = known_format(target, *file_system);
    if (known.name == format) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("it is {}, needed is a checkpoint of {}",
                            known.name.empty() ? "of no known format" : to_string(known), format));
  };
  if (existing == Existing::skip && detail::NewTarget::skips(*file_system, target, check)) {
    return {};
  }
  detail::NewTarget place(*file_system, target, detail::TargetKind::folder, existing,
                          std::move(is_exported));
  write(place.place());
  ExportStats stats;
  sync_below(*file_system, place.place(), target, stats);
  place.publish();
  stats.total_seconds = watch.seconds();
  return stats;
}

}  // namespace shardwise
