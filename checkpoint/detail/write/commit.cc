#include "shardwise/checkpoint/detail/write/commit.h"

#include <fmt/format.h>

#include <string>

#include "shardwise/checkpoint/detail/manifest_check.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

void check_json(const SaveOptions& options) {
  std::string problem = user_json_problem(options.user_json);
  if (!problem.empty()) {
    throw Error(ErrorCode::invalid_argument, "save: user_json " + problem);
  }
  if (options.objects_json.empty()) return;
  problem = user_json_problem(options.objects_json);
  if (!problem.empty()) {
    throw Error(ErrorCode::invalid_argument, "save: objects_json " + problem);
  }
}

std::size_t complete(FileSystem& file_system, const std::filesystem::path& attempt,
                     Manifest& manifest, std::span<const std::byte> index) {
  if (!index.empty()) {
    manifest.index_bytes = index.size();
    manifest.index_hash = hash128(index.data(), index.size());
  }
  check_manifest(manifest);
  const std::string text = print_manifest(manifest);
  if (text.size() > kMaxManifestBytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("write {}: it has {} bytes, at most {} are possible", kManifestName,
                            text.size(), kMaxManifestBytes));
  }
  if (manifest.has_index()) write_whole_file(file_system, attempt / kIndexName, index);
  write_whole_file(file_system, attempt / kManifestName, std::as_bytes(std::span(text)));
  file_system.sync_directory(attempt);
  return index.size() + text.size();
}

}  // namespace shardwise::detail
