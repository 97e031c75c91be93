#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/file.h"

// Increments: chunks that have not changed since the step before are not written again, but stay in
// that step's shard file, which gets a second name in the new one (docs/checkpoint_format.md,
// heading "Linked files").
namespace shardwise::detail {

/// A committed step, and its manifest's entries of its shard files, or of those of this process.
struct EarlierStep {
  std::filesystem::path directory;  ///< empty: no such step
  std::vector<FileEntry> files;
};

/// Reads the manifest. Throws as open_directory and read_manifest do.
EarlierStep read_earlier_step(FileSystem& file_system, const std::filesystem::path& directory);

/// The same for a step that a caller names: nothing if the path is empty, or the step is damaged.
/// Throws not_found.
EarlierStep earlier_step_at(FileSystem& file_system, const std::filesystem::path& directory);

/// Gives the file at `from` the name `to`, too, if it is this one, nobody has written in it since
/// it was complete (File::is_sealed), and the parts that other tools read are right. Says whether
/// it has that name now. `opened` is that file: as long as it is open, nobody can empty it for a
/// save to write in, as FileSystem::reuse does.
bool link_file(FileSystem& file_system, File& opened, const std::filesystem::path& from,
               const std::filesystem::path& to, const LinkedFile& linked);

/// The chunks that an earlier step has of the pieces of one shard file that is being written.
/// Thread-compatible, but for find().
class UnchangedChunks {
 public:
  /// Chunks of the earlier step's file of the same writer, and of the files linked there. Null if
  /// there is no such file, or it cannot be read. Keeps the file system.
  static std::unique_ptr<UnchangedChunks> open(FileSystem& file_system, const EarlierStep& earlier,
                                               const std::filesystem::path& attempt,
                                               const SavePlan& plan, std::size_t file_number,
                                               const ChunkLayout& layout);

  /// The record of the layout's chunk with this number, if the earlier step has it with this
  /// content and the file that it is in could be linked into the attempt. Thread-safe.
  std::optional<ChunkRecord> find(std::int64_t chunk, const Hash128& content);

  /// When all chunks have been looked for: the numbers of those in files that this file uses to
  /// less than half, ascending. They are to be written here.
  std::vector<std::int64_t> little_used(std::span<const ChunkRecord> records) const;

  /// When all chunks are written: numbers the linked files that records refer to, and notes them in
  /// the entry; the names of the others go. Throws io.
  void settle(ChunkTable& table, FileEntry& entry);

  /// The path of the dataset, in this linked file of the settled entry, that has the chunks of the
  /// layout's piece with this number.
  std::string dataset(std::uint32_t linked, std::size_t piece) const;

 private:
  // A file that chunks may be in. It stays open until it is linked.
  struct Source {
    LinkedFile file;
    std::string name = {};  // in the earlier step
    std::unique_ptr<File> opened = {};
    std::vector<std::uint64_t> words = {};  // of its piece table
    std::vector<DescribedPiece> pieces = {};
    std::unordered_multimap<std::uint64_t, std::size_t> by_name = {};  // of the pieces
    std::vector<ChunkRecord> records = {};
    std::uint64_t stored_bytes = 0;
    std::vector<std::string> datasets = {};  // by the layout's pieces; empty: none

    // Its piece that is cut so, of a tensor of this name; null.
    const DescribedPiece* find(const PieceEntry& piece, std::uint64_t tensor) const;
  };

  struct Chunk {
    ChunkRecord record;  // linked: the source's number and 1; 0: no source
    Hash128 content;
  };

  UnchangedChunks(FileSystem& file_system, std::filesystem::path earlier,
                  std::filesystem::path attempt)
      : file_system_(file_system), earlier_(std::move(earlier)), attempt_(std::move(attempt)) {}

  void read(const FileEntry& entry);
  FileTables add(const FileEntry& entry);  // gives the tables that it has not kept
  static bool is_sound(const Source& source, const ChunkRecord& record, bool raw,
                       std::uint64_t chunk_bytes);
  bool link(const Source& source) const;
  void match(const SavePlan& plan, const ChunkLayout& layout);
  void forget_tables();
  void match_piece(std::size_t number, const TensorEntry& tensor, const PieceEntry& piece,
                   const DescribedPiece& earlier);

  FileSystem& file_system_;
  const std::filesystem::path earlier_, attempt_;
  std::vector<Source> sources_;  // the earlier step's own file first
  ContentTable content_;         // of that
  std::vector<std::uint64_t> decoded_hashes_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> settled_;  // the numbers of the sources that are used

  Mutex mutex_;
  std::vector<std::optional<bool>> is_linked_ SHARDWISE_GUARDED_BY(mutex_);  // by source
};

/// "/stored/<t>/<p>": the chunks of a piece that are in its own file, if others are in linked ones.
std::string stored_path(const PieceDataset& dataset);

}  // namespace shardwise::detail
