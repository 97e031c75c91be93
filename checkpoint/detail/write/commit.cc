#include "shardwise/checkpoint/detail/write/commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

void check_json(const PublishOptions& options) {
  std::string problem = user_json_problem(options.user_json);
  if (!problem.empty()) {
    throw Error(ErrorCode::invalid_argument, "save: user_json " + problem);
  }
  if (!options.objects_json.empty()) {
    problem = user_json_problem(options.objects_json);
    if (!problem.empty()) {
      throw Error(ErrorCode::invalid_argument, "save: objects_json " + problem);
    }
  }
  static_cast<void>(with_metrics(options.objects_json, options.metrics));
}

std::string checked_manifest(const Manifest& manifest) {
  std::string text = print_manifest(manifest);
  if (text.size() > kMaxManifestBytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("write {}: it has {} bytes, needed is at most {}", kManifestName,
                            text.size(), kMaxManifestBytes));
  }
  Manifest read = parse_manifest(text, kManifestName);
  const auto same_tensor = [](const TensorEntry& a, const TensorEntry& b) {
    return a == b && (!a.sharding || same_pieces(*a.sharding, *b.sharding));
  };
  const auto same_file = [](const FileEntry& a, const FileEntry& b) {
    return a.name == b.name && a.bytes == b.bytes && a.data_end == b.data_end &&
           a.writer == b.writer && a.description_hash == b.description_hash;
  };
  if (read.writers != manifest.writers ||
      !std::ranges::equal(read.tensors, manifest.tensors, same_tensor) ||
      !std::ranges::equal(read.files, manifest.files, same_file)) {
    throw Error(ErrorCode::corrupt,
                fmt::format("write {}: found other tensors or files when it was read again, needed "
                            "are those that it was made of",
                            kManifestName));
  }
  return text;
}

std::size_t write_manifest(FileSystem& file_system, const std::filesystem::path& attempt,
                           std::string_view text) {
  write_whole_file(file_system, attempt / kManifestName, std::as_bytes(std::span(text)));
  file_system.sync_directory(attempt);
  return text.size();
}

std::size_t complete(FileSystem& file_system, const std::filesystem::path& attempt,
                     Manifest& manifest, std::span<const std::byte> index) {
  if (index.empty()) return write_manifest(file_system, attempt, checked_manifest(manifest));
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());
  std::string text;
  run_both([&] { write_whole_file(file_system, attempt / kIndexName, index); },
           [&] { text = checked_manifest(manifest); });
  return index.size() + write_manifest(file_system, attempt, text);
}

}  // namespace shardwise::detail
