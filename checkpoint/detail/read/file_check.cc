#include "shardwise/checkpoint/detail/read/file_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kHashedBytes = std::size_t{1} << 20;

}  // namespace

void hash_range(File& file, std::uint64_t begin, std::uint64_t end, Hasher128& hasher,
                const ReadFunction& read) {
  std::vector<std::byte> room(
      static_cast<std::size_t>(std::min<std::uint64_t>(kHashedBytes, end - begin)));
  while (begin < end) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), end - begin));
    file.read_at(begin, room.data(), bytes);
    hasher.update(room.data(), bytes);
    begin += bytes;
    if (read) read(bytes);
  }
}

void check_structure(File& file, const std::string& path, const FileEntry& entry,
                     const ReadFunction& read) {
  Hasher128 hasher;
  hash_range(file, 0, entry.data_begin, hasher, read);
  hash_range(file, entry.data_end, entry.bytes, hasher, read);
  if (hasher.digest() == entry.structure_hash) return;
  throw Error(ErrorCode::corrupt,
              fmt::format("check {}: found the hash {} of HDF5's own bytes, outside [{}, {}), "
                          "needed is {}",
                          path, to_hex(hasher.digest()), entry.data_begin, entry.data_end,
                          to_hex(entry.structure_hash)));
}

void check_structure(const StoredCheckpoint& checkpoint, std::size_t file,
                     const ReadFunction& read) {
  const FileEntry& entry = checkpoint.manifest.files[file];
  check_structure(*checkpoint.files->at(file), (checkpoint.directory / entry.name).string(), entry,
                  read);
}

void check_structure(File& file, const std::string& path, const LinkedFile& linked,
                     const ReadFunction& read) {
  check_structure(file, path, describe_linked_file(file, path, linked), read);
}

std::vector<BadChunk> find_bad_chunks(StoredCheckpoint& checkpoint, std::size_t file) {
  load_file(checkpoint, file);
  check_structure(checkpoint, file);
  for (const std::size_t number : checkpoint.linked_of[file]) {
    const LinkedFile& linked = checkpoint.linked[number - checkpoint.manifest.files.size()];
    check_structure(*checkpoint.files->at(number), (checkpoint.directory / linked.name()).string(),
                    linked);
  }
  std::vector<BadChunk> bad;
  std::vector<std::byte> stored;
  for (const auto& [tensor, piece] : pieces_in_file(checkpoint.manifest.tensors, file)) {
    const std::int64_t chunks = num_chunks(checkpoint.manifest.tensors[tensor].pieces[piece]);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const ChunkId id{tensor, piece, c};
      const ChunkRecord& record = checkpoint.record(id);
      stored.resize(static_cast<std::size_t>(record.stored_bytes));
      try {
        checkpoint.files->at(checkpoint.file_of(id))
            ->read_at(record.address, stored.data(), stored.size());
        check_chunk_hash(checkpoint, id, hash64(stored.data(), stored.size()));
      } catch (const Error& e) {
        if (e.code() != ErrorCode::corrupt && e.code() != ErrorCode::io) throw;
        bad.push_back({checkpoint.piece(id).first_chunk + c, e.what()});
      }
    }
  }
  return bad;
}

void check_file(StoredCheckpoint& checkpoint, std::size_t file) {
  const std::vector<BadChunk> bad = find_bad_chunks(checkpoint, file);
  if (!bad.empty()) throw Error(ErrorCode::corrupt, bad.front().problem);
}

}  // namespace shardwise::detail
