#include "shardwise/checkpoint/detail/parity/parity_check.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

std::vector<ProtectedFile> protected_files(const StoredCheckpoint& stored) {
  std::vector<ProtectedFile> files;
  for (const FileEntry& entry : stored.manifest.files) {
    files.push_back({entry.name, parity_of(entry)});
  }
  for (const LinkedFile& linked : stored.linked) {
    files.push_back({linked.name(), parity_of(linked), true});
  }
  return files;
}

ParityLayout check_parity_file(File& file, const std::string& path, const ParityOf& of,
                               const std::function<void(std::size_t bytes)>& read) {
  const auto [header, problem] = read_parity_header(file, path, of);
  if (!problem.empty()) {
    throw Error(ErrorCode::corrupt,
                problem.starts_with("read ") ? problem : fmt::format("read {}: {}", path, problem));
  }
  const ParityLayout& layout = header.layout;
  if (read) read(static_cast<std::size_t>(2 * layout.header_bytes()));
  std::vector<std::byte> bytes(layout.block_bytes());
  for (std::uint64_t i = 0; i < header.parity.size(); ++i) {
    file.read_at(layout.address(i), bytes.data(), bytes.size());
    if (read) read(bytes.size());
    const Hash128 hash = hash128(bytes.data(), bytes.size());
    const Hash128 needed = header.parity[static_cast<std::size_t>(i)];
    if (hash == needed) continue;
    throw Error(ErrorCode::corrupt,
                fmt::format("read {}: parity block {} at {}: found the hash {}, needed is {}", path,
                            i, layout.address(i), to_hex(hash), to_hex(needed)));
  }
  return layout;
}

}  // namespace shardwise::detail
