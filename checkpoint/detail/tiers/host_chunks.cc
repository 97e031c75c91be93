#include "shardwise/checkpoint/detail/tiers/host_chunks.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/tiers/inventory.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

HostChunks::HostChunks(FileSystem& file_system, std::span<const std::filesystem::path> roots)
    : file_system_(file_system) {
  for (const std::filesystem::path& root : roots) {
    for (const std::string& process : file_system_.list(root)) {
      if (process_of_directory(process) < 0) continue;
      for (const StepName& name : committed_names(file_system_, root / process)) {
        std::filesystem::path path = root / process / to_string(name);
        std::string shown = process + "/" + to_string(name);
        if (roots.size() > 1) shown = path.string();
        directories_.push_back({name.step, std::move(path), std::move(shown)});
      }
    }
  }
  std::ranges::stable_sort(directories_, std::ranges::greater(), &Directory::step);
}

// What cannot be read is no help.
void HostChunks::make_index() {
  has_index_ = true;
  for (std::size_t d = 0; d < directories_.size(); ++d) {
    try {
      const StoredCheckpoint stored = open_what_is_readable(file_system_, directories_[d].path);
      for (std::size_t f = 0; f < stored.tables.size(); ++f) {
        if (!stored.is_loaded_file(f)) continue;
        for (const ChunkRecord& record : stored.tables[f].records) {
          const std::string file = stored.file_name(stored.file_of(f, record));
          index_.emplace(record.hash, Place{d, file, record.address, record.stored_bytes});
        }
      }
    } catch (const Error&) {
    }
  }
}

std::optional<HostChunks::Found> HostChunks::read(const Place& place, const ChunkBytes& chunk) {
  if (place.bytes != chunk.bytes) return std::nullopt;
  const Directory& from = directories_[place.directory];
  try {
    const std::unique_ptr<File> file = file_system_.open(from.path / place.file);
    const std::uint64_t size = file->size();
    if (place.address > size || place.bytes > size - place.address) return std::nullopt;
    std::vector<std::byte> bytes(static_cast<std::size_t>(place.bytes));
    file->read_at(place.address, bytes.data(), bytes.size());
    if (hash64(bytes.data(), bytes.size()) != chunk.hash) return std::nullopt;
    return Found{std::move(bytes), from.name};
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<HostChunks::Found> HostChunks::find(const ChunkBytes& chunk) {
  for (std::size_t d = 0; d < directories_.size(); ++d) {
    auto found = read({d, chunk.file, chunk.address, chunk.bytes}, chunk);
    if (found) return found;
  }
  if (!has_index_) make_index();
  const auto [begin, end] = index_.equal_range(chunk.hash);
  for (auto at = begin; at != end; ++at) {
    if (auto found = read(at->second, chunk)) return found;
  }
  return std::nullopt;
}

}  // namespace shardwise::detail
