#include "shardwise/checkpoint/detail/tiers/file_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kCheckedBytes = std::size_t{4} << 20;

/// Hashes [begin, end) of the file, part by part.
template <class Hasher>
void add_range(File& file, std::uint64_t begin, std::uint64_t end, std::vector<std::byte>& room,
               Hasher& hasher) {
  while (begin < end) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), end - begin));
    file.read_at(begin, room.data(), bytes);
    hasher.update(room.data(), bytes);
    begin += bytes;
  }
}

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
  add_range(*file, 0, entry.data_begin, room, structure);
  add_range(*file, entry.data_end, entry.bytes, room, structure);
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
      add_range(*file, record.address,
                record.address + static_cast<std::uint64_t>(record.stored_bytes), room, hasher);
      check_chunk_hash(checkpoint, {tensor, piece, c}, hasher.digest());
    }
  }
}

}  // namespace shardwise::detail
