#include "shardwise/checkpoint/detail/write/written_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr const char* kNoteSuffix = ".whole";

/// What the manifest would say of the file.
struct Note {
  std::uint64_t bytes, data_end, hash_high, hash_low;
};

std::filesystem::path note_path(const std::filesystem::path& attempt, const FileEntry& file) {
  return attempt / (file.name + kNoteSuffix);
}

/// The same but for the number of the file.
bool same_piece(PieceEntry a, const PieceEntry& b) {
  a.file = b.file;
  return a == b;
}

}  // namespace

void note_written_file(FileSystem& file_system, const std::filesystem::path& attempt,
                       const FileEntry& file) {
  const Note note{file.bytes, file.data_end, file.description_hash.high, file.description_hash.low};
  remove_tree(file_system, note_path(attempt, file));
  write_whole_file(file_system, note_path(attempt, file), std::as_bytes(std::span(&note, 1)));
}

std::size_t noted_files(FileSystem& file_system, const std::filesystem::path& attempt) noexcept {
  try {
    const std::vector<std::string> names = file_system.list(attempt);
    return static_cast<std::size_t>(std::count_if(
        names.begin(), names.end(), [](const auto& name) { return name.ends_with(kNoteSuffix); }));
  } catch (...) {
    return 0;
  }
}

std::optional<WrittenShardFile> read_written_file(FileSystem& file_system,
                                                  const std::filesystem::path& attempt,
                                                  const SavePlan& plan, std::size_t number) {
  try {
    FileEntry entry = plan.files[number];
    Note note{};
    const std::unique_ptr<File> noted = file_system.open(note_path(attempt, entry));
    if (noted->size() != sizeof note) return {};
    noted->read_at(0, reinterpret_cast<std::byte*>(&note), sizeof note);
    entry.bytes = note.bytes;
    entry.data_end = note.data_end;
    entry.description_hash = {.high = note.hash_high, .low = note.hash_low};

    // Read as a reader does, and compared with what would be written.
    const std::unique_ptr<File> file = file_system.open(attempt / entry.name);
    if (file->size() != entry.bytes || entry.data_end < kDescriptionBytes) return {};
    Manifest manifest;
    manifest.writers = plan.writers;
    manifest.tensors = without_pieces(plan.tensors);
    manifest.files = {entry};
    const std::vector<PieceId> pieces = read_file_pieces(*file, attempt, manifest, 0);
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      std::size_t found = 0;
      const PieceList& there = manifest.tensors[t].pieces;
      for (const PieceEntry& piece : plan.tensors[t].pieces) {
        if (static_cast<std::size_t>(piece.file) != number) continue;
        if (found == there.size() || !same_piece(there[found], piece)) return {};
        ++found;
      }
    }
    ChunkTable table = read_chunk_table(*file, attempt, manifest, 0, pieces);
    return WrittenShardFile{manifest.files[0], std::move(table), true};
  } catch (const Error&) {
    return {};  // it is written again
  }
}

}  // namespace shardwise::detail
