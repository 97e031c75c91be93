#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/open_files.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

class Decoder;

/// A chunk by its place in the manifest. The numbers index StoredCheckpoint::manifest.
struct ChunkId {
  std::size_t tensor = 0;
  std::size_t piece = 0;
  std::int64_t chunk = 0;  ///< in the piece's grid

  auto operator<=>(const ChunkId&) const = default;
};

/// A reader of a checkpoint with more shard files opens only those that hold requested elements.
inline constexpr std::size_t kMostFilesReadAtOnce = 64;

/// A committed checkpoint, opened: its manifest, its shard files and their chunk tables, all
/// checked. The files may be read by several threads.
struct StoredCheckpoint {
  std::filesystem::path directory;
  Manifest manifest;

  // Per entry of manifest.files.
  std::shared_ptr<OpenFiles> files;
  std::vector<ChunkTable> tables;
  std::vector<bool> is_loaded;  ///< pieces and tables are here; empty: those of all files are

  // The linked files of those that are loaded, each once. In `files` they follow those of the
  // manifest. For each of these, the numbers there of its own linked files.
  std::vector<LinkedFile> linked;
  std::vector<std::vector<std::size_t>> linked_of;
  std::function<std::unique_ptr<File>(const LinkedFile&)> open_linked;

  bool is_complete() const { return is_loaded.empty(); }
  bool is_loaded_file(std::size_t file) const { return is_complete() || is_loaded[file]; }

  /// The number, in `files`, of the file that the chunk is in.
  std::size_t file_of(const ChunkId& id) const;
  std::size_t file_of(std::size_t shard_file, const ChunkRecord& record) const {
    return record.linked == 0 ? shard_file : linked_of[shard_file][record.linked - 1];
  }

  /// Name and size of a file by its number in `files`.
  std::string file_name(std::size_t number) const;
  std::uint64_t file_bytes(std::size_t number) const;

  const TensorEntry& tensor(const ChunkId& id) const { return manifest.tensors[id.tensor]; }
  PieceEntry piece(const ChunkId& id) const { return tensor(id).pieces[id.piece]; }
  const ChunkRecord& record(const ChunkId& id) const;

  /// The hash of the chunk's decoded bytes.
  std::uint64_t decoded_hash(const ChunkId& id) const;
  Box box(const ChunkId& id) const { return chunk_box(piece(id), id.chunk); }

  /// With the padding of a chunk that reaches over its piece's edge.
  std::size_t decoded_bytes(const ChunkId& id) const {
    std::size_t bytes = size_bytes(tensor(id).dtype);
    for (const std::int64_t extent : tensor(id).pieces.chunk(id.piece)) bytes *= as_size(extent);
    return bytes;
  }

  /// For messages: the file's path, the chunk's number and tensor, and its global box.
  std::string describe(const ChunkId& id) const;
};

/// The directory of a committed checkpoint, opened: its files are found also while another process
/// removes or replaces it.
struct OpenDirectory {
  std::filesystem::path path;
  std::int64_t step;  ///< as its name says; or kNoStep
  std::shared_ptr<Directory> directory;
};

/// The directory's path without links and dots. Throws not_found.
std::filesystem::path real_directory(const std::filesystem::path& directory);

/// Throws not_found if it is not there or is an attempt's or trash. The file system must outlive
/// it.
OpenDirectory open_directory(FileSystem& file_system, const std::filesystem::path& path);

/// The bytes of the manifest, not looked at. Throws not_found if the file is missing, corrupt if it
/// has more than kMaxManifestBytes.
std::string read_manifest_text(const OpenDirectory& directory);

/// Reads the manifest alone, with the directory's step if it names none; without
/// its pieces. Throws not_found without such a file; unsupported;
/// corrupt.
Manifest read_manifest(const OpenDirectory& directory);

/// Opens one of the checkpoint's files and compares its size with the manifest's. Throws corrupt if
/// it is not there, not a regular file or of another size; not_found if the checkpoint was removed
/// or replaced in between.
std::unique_ptr<File> open_file(const OpenDirectory& directory, const FileEntry& entry);

/// A checkpoint with this manifest, of whose shard files none is read yet. They are opened so, and
/// need not all be there.
StoredCheckpoint unread_checkpoint(const OpenDirectory& directory, Manifest manifest);

/// Opens a linked file of the checkpoint, and compares its size and description. Throws corrupt,
/// not_found as open_file does.
std::unique_ptr<File> open_linked_file(const OpenDirectory& directory, const LinkedFile& linked);

/// Reads the description of a linked file, which names its writer. Throws corrupt.
FileEntry describe_linked_file(File& file, const std::string& path, const LinkedFile& linked);

/// The content table of a shard file, whose description is in the entry and says that there is one.
/// Throws corrupt.
ContentTable read_content_table(File& file, const std::string& path, const FileEntry& entry);

/// Reads the description of a shard file into its entry, which has the manifest's values; `path` is
/// for messages. Throws corrupt if it is not that of the entry.
void read_file_description(File& file, const std::string& path, FileEntry& entry);

/// The same, with the linked files that it names. Throws corrupt.
void read_linked_files(File& file, const std::string& path, FileEntry& entry);

/// Reads the tables of a shard file: completes its entry in the manifest, and adds its pieces to
/// the tensors. Gives these pieces. Throws corrupt, and has added none.
std::vector<PieceId> read_file_pieces(File& file, const std::filesystem::path& directory,
                                      Manifest& manifest, std::size_t number);

/// The error if a writer should have stored a box of a tensor, but has no file.
Error no_file_of(std::int64_t writer, const TensorEntry& tensor, const Box& box,
                 const std::filesystem::path& directory);

/// Requires that the pieces of all files were read. Throws corrupt if the shardings give a
/// writer something to write that has no file.
void check_no_file_missing(const Manifest& manifest, const std::filesystem::path& directory);

/// Reads a file's chunk table and decoded hashes and checks them against its pieces. Throws
/// corrupt.
ChunkTable read_chunk_table(File& file, const std::filesystem::path& directory,
                            const Manifest& manifest, std::size_t number,
                            std::span<const PieceId> pieces);

/// Does all of the above, as a reader must before it trusts a checkpoint. Reads the manifest alone
/// with more files than kMostFilesReadAtOnce, or `as_needed`. The file system must outlive it.
StoredCheckpoint open_checkpoint(FileSystem& file_system, const std::filesystem::path& directory,
                                 bool as_needed = false);

/// Opens the checkpoint and all shard files that open_checkpoint has not read, and gives its step.
/// Throws if anything is wrong with it; reads no data.
std::int64_t check_readable(FileSystem& file_system, const std::filesystem::path& directory);

/// The tables of a shard file and of its chunks, read but not yet compared with the manifest.
struct FileTables {
  FileEntry entry;                   ///< completed by the file's description
  std::vector<std::uint64_t> words;  ///< of its piece table
  ChunkTable table;
};

/// Reads the tables of a shard file and compares their hashes. No checkpoint need be held while a
/// disk answers. Throws corrupt.
FileTables read_file_tables(File& file, const std::filesystem::path& directory,
                            const FileEntry& entry);

/// Checks the tables of a file against the manifest and adds them. Throws corrupt, and has changed
/// nothing.
void add_file_tables(StoredCheckpoint& checkpoint, std::size_t number, FileTables tables);

/// A checkpoint with those of its shard files loaded that can be; `why_not` gets the error of each
/// other one. Throws as opening the directory and its manifest does.
StoredCheckpoint open_what_is_readable(
    FileSystem& file_system, const std::filesystem::path& directory,
    const std::function<void(std::size_t file, const Error& error)>& why_not = nullptr);

/// Makes the linked files of a file, whose tables are read, files of the checkpoint.
void add_linked_files(StoredCheckpoint& checkpoint, std::size_t number);

/// Both. Throws as opening does, and has changed nothing.
void load_file(StoredCheckpoint& checkpoint, std::size_t number);

/// The TensorInfo of each tensor, in the manifest's order.
std::vector<TensorInfo> tensor_infos(const StoredCheckpoint& checkpoint);

/// To be called when something is found wrong: throws not_found if the checkpoint was removed or
/// replaced in between, so that nothing is corrupt.
void check_still_there(const std::filesystem::path& directory);

/// Takes the seal from the file that the chunk is in: no later save links it (File::unseal).
void note_damage(const StoredCheckpoint& checkpoint, const ChunkId& id) noexcept;

/// Compares the hash of a chunk's stored bytes with its record's. Throws corrupt naming file,
/// tensor, chunk and box.
void check_chunk_hash(const StoredCheckpoint& checkpoint, const ChunkId& id, std::uint64_t hash);

/// The same of a chunk's decoded bytes, which checks the decoder: they must be the saved bytes.
/// Throws corrupt naming file, tensor, chunk and box.
void check_decoded_hash(const StoredCheckpoint& checkpoint, const ChunkId& id, std::uint64_t hash);

/// The decoded chunk, still shuffled, valid until the decoder's next call. Requires a chunk that is
/// not stored raw. Throws corrupt naming file, tensor, chunk and box.
std::span<const std::byte> decompress_chunk(const StoredCheckpoint& checkpoint, const ChunkId& id,
                                            std::span<const std::byte> stored, Decoder& decoder);

/// True if the stored bytes are the chunk's elements as they are.
bool stored_raw(const StoredCheckpoint& checkpoint, const ChunkId& id);

}  // namespace shardwise::detail
