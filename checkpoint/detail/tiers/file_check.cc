#include "shardwise/checkpoint/detail/tiers/file_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "shardwise/checkpoint/detail/read/hash_range.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kCheckedBytes = std::size_t{4} << 20;

}  // namespace

StoredCheckpoint partial_checkpoint(FileSystem& file_system, const std::filesystem::path& directory,
                                    const Manifest& manifest) {
  StoredCheckpoint checkpoint;
  checkpoint.directory = directory;
  checkpoint.manifest = manifest;
  checkpoint.files =
      open_files({directory, manifest.step, file_system.open_directory(directory)}, manifest);
  checkpoint.tables.resize(manifest.files.size());
  checkpoint.is_loaded.resize(manifest.files.size(), false);
  return checkpoint;
}

void check_file(StoredCheckpoint& checkpoint, std::size_t number) {
  load_file(checkpoint, number);
  const Manifest& manifest = checkpoint.manifest;
  const FileEntry& entry = manifest.files[number];
  const std::shared_ptr<File> file = checkpoint.files->at(number);
  std::vector<std::byte> room(kCheckedBytes);
  Hasher128 structure;
  hash_range(*file, 0, entry.data_begin, room, structure);
  hash_range(*file, entry.data_end, entry.bytes, room, structure);
  if (!(structure.digest() == entry.structure_hash)) {
    throw Error(ErrorCode::corrupt,
                fmt::format("check {}: found the hash {} of HDF5's own bytes, needed {}",
                            (checkpoint.directory / entry.name).string(),
                            to_hex(structure.digest()), to_hex(entry.structure_hash)));
  }
  for (const auto& [tensor, piece] : pieces_in_file(manifest, number)) {
    for (std::int64_t c = 0; c < num_chunks(manifest.tensors[tensor].pieces[piece]); ++c) {
      const ChunkRecord& record = checkpoint.record({tensor, piece, c});
      Hasher64 hasher;
      hash_range(*file, record.address,
                 record.address + static_cast<std::uint64_t>(record.stored_bytes), room, hasher);
      check_chunk_hash(checkpoint, {tensor, piece, c}, hasher.digest());
    }
  }
}

}  // namespace shardwise::detail
