#include "shardwise/checkpoint/detail/root/marks/stats_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/listing.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kPrefix = "stats-", kSuffix = ".json";
constexpr std::string_view kBegin = "{\"directory\":";

double per_second(std::size_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

// Anybody may have a file of such a name: no save removes a file that no save wrote. A save that
// was killed leaves only the beginning, or nothing yet.
bool is_stats_file(FileSystem& file_system, const std::filesystem::path& path) {
  try {
    const std::unique_ptr<File> file = file_system.open(path);
    std::string begin(std::min<std::uint64_t>(file->size(), kBegin.size()), ' ');
    file->read_at(0, reinterpret_cast<std::byte*>(begin.data()), begin.size());
    return kBegin.starts_with(begin);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;
  }
}

}  // namespace

std::string print_stats(const SaveStats& stats) {
  const std::string directory = stats.directory.filename().string();
  const std::size_t written = stats.logical_bytes - stats.unchanged_bytes;
  std::string text(kBegin);
  append_json(text, directory);
  text += ",\n";
  const auto add = [&](std::string_view name, auto value) {
    text += fmt::format("\"{}\":{},\n", name, value);
  };
  add("logical_bytes", stats.logical_bytes);
  add("unchanged_bytes", stats.unchanged_bytes);
  add("stored_bytes", stats.stored_bytes);
  add("file_bytes", stats.file_bytes);
  add("chunks", stats.chunks);
  add("memory_bytes", stats.memory_bytes);
  add("parity_bytes", stats.parity_bytes);
  add("failed_saves", stats.failed_saves);
  add("blocked_seconds", stats.blocked_seconds);
  add("plan_seconds", stats.plan_seconds);
  add("write_seconds", stats.write_seconds);
  add("publish_seconds", stats.publish_seconds);
  add("total_seconds", stats.total_seconds);
  add("write_gb_per_second", per_second(written, stats.write_seconds));
  add("total_gb_per_second", per_second(stats.logical_bytes, stats.total_seconds));
  text += "\"cleanup_error\":";
  append_json(text, stats.cleanup_error);
  return text + "}\n";
}

void write_stats(FileSystem& file_system, const SaveStats& stats) {
  const std::filesystem::path path =
      stats.directory.parent_path() /
      fmt::format("{}{}{}", kPrefix, stats.directory.filename().string(), kSuffix);
  const std::string text = print_stats(stats);
  const auto bytes = std::as_bytes(std::span(text));
  if (is_stats_file(file_system, path)) file_system.remove(path);  // the step was saved before
  const std::unique_ptr<File> file = file_system.create(path, Caching::cached);
  file->write_at(0, bytes.data(), bytes.size());
  file->close();
}

void remove_stale_stats(FileSystem& file_system, const std::filesystem::path& root) {
  const std::vector<std::string> names = names_in_root(file_system, root);
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const std::string step =
        name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    if (!parse_step_name(step) || std::ranges::binary_search(names, step)) continue;
    if (is_stats_file(file_system, root / name)) file_system.remove(root / name);
  }
}

}  // namespace shardwise::detail
