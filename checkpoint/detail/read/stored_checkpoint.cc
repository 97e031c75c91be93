#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <system_error>
#include <utility>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/format/tombstone.h"
#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/listing.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/known_format.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

// Chunk tables and stored values are little-endian, and so is every machine this runs on.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(std::size_t) == 8);  // sizes in files are 64 bits

constexpr int kMostOpenings = 3, kMostReplacements = 100;

[[noreturn]] void not_found(const fs::path& directory, const std::string& message) {
  throw Error(ErrorCode::not_found,
              fmt::format("open checkpoint {}: {}", directory.string(), message));
}

/// The directory's own name, whatever links or dots lead to it.
std::string own_name(const fs::path& directory) {
  return real_directory(directory).filename().string();
}

void read_table(File& file, const std::string& path, std::span<std::byte> bytes,
                std::uint64_t address, std::uint64_t must_be, const char* what) {
  file.read_at(address, bytes.data(), bytes.size());
  const std::uint64_t hash = hash64(bytes.data(), bytes.size());
  if (hash == must_be) return;
  throw Error(ErrorCode::corrupt, fmt::format("read {} of {}: its hash is {}, needed is {}", what,
                                              path, to_hex(hash), to_hex(must_be)));
}

/// The words of a file's piece table. Completes the entry by the file's description, and by its
/// list of linked files.
std::vector<std::uint64_t> read_piece_table(File& file, const std::string& path, FileEntry& entry) {
  read_linked_files(file, path, entry);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(entry.pieces_words));
  read_table(file, path, std::as_writable_bytes(std::span(words)), entry.pieces_address,
             entry.pieces_hash, "piece table");
  return words;
}

/// The chunk table and decoded hashes of a file whose size has been compared: the number of records
/// in its entry fits into it.
ChunkTable read_records(File& file, const std::string& path, const FileEntry& entry) {
  ChunkTable table;
  table.records.resize(static_cast<std::size_t>(entry.chunks));
  read_table(file, path, std::as_writable_bytes(std::span(table.records)), entry.table_address,
             entry.table_hash, "chunk table");
  table.decoded_hashes.resize(table.records.size());
  read_table(file, path, std::as_writable_bytes(std::span(table.decoded_hashes)),
             entry.decoded_address, entry.decoded_hash, "table of decoded hashes");
  return table;
}

StoredCheckpoint open_once(FileSystem& file_system, const fs::path& directory, bool as_needed) {
  const OpenDirectory opened = open_directory(file_system, directory);
  StoredCheckpoint checkpoint = unread_checkpoint(opened, read_manifest(opened));
  const std::size_t files = checkpoint.manifest.files.size();
  if (as_needed || files > kMostFilesReadAtOnce) return checkpoint;
  for (std::size_t f = 0; f < files; ++f) load_file(checkpoint, f);
  for (std::size_t i = 0; i < checkpoint.linked.size(); ++i) {
    static_cast<void>(checkpoint.files->at(files + i));
  }
  check_no_file_missing(checkpoint.manifest, directory);
  checkpoint.is_loaded.clear();
  return checkpoint;
}

}  // namespace

fs::path real_directory(const fs::path& directory) {
  if (in_bucket(directory)) return directory;  // it has no links, and no call tells if it is there
  std::error_code error;
  fs::path real = fs::canonical(directory, error);
  const bool is_directory = !error && fs::is_directory(real, error);
  if (is_directory) return real;
  if (!error || error == std::errc::no_such_file_or_directory ||
      error == std::errc::not_a_directory) {
    not_found(directory, "there is no such directory");
  }
  throw Error(ErrorCode::io,
              fmt::format("open checkpoint {}: {}", directory.string(), error.message()));
}

std::size_t StoredCheckpoint::file_of(const ChunkId& id) const {
  return file_of(static_cast<std::size_t>(tensor(id).pieces.file(id.piece)), record(id));
}

std::string StoredCheckpoint::file_name(std::size_t number) const {
  const std::size_t own = manifest.files.size();
  return number < own ? manifest.files[number].name : linked[number - own].name();
}

std::uint64_t StoredCheckpoint::file_bytes(std::size_t number) const {
  const std::size_t own = manifest.files.size();
  return number < own ? manifest.files[number].bytes : linked[number - own].bytes;
}

const ChunkRecord& StoredCheckpoint::record(const ChunkId& id) const {
  const PieceList& pieces = tensor(id).pieces;
  return tables[static_cast<std::size_t>(pieces.file(id.piece))]
      .records[static_cast<std::size_t>(pieces.first_chunk(id.piece) + id.chunk)];
}

std::uint64_t StoredCheckpoint::decoded_hash(const ChunkId& id) const {
  const PieceList& pieces = tensor(id).pieces;
  return tables[static_cast<std::size_t>(pieces.file(id.piece))]
      .decoded_hashes[static_cast<std::size_t>(pieces.first_chunk(id.piece) + id.chunk)];
}

std::string StoredCheckpoint::describe(const ChunkId& id) const {
  return fmt::format("{}: tensor {:?} chunk {} {}", (directory / file_name(file_of(id))).string(),
                     tensor(id).name, piece(id).first_chunk + id.chunk, to_string(box(id)));
}

OpenDirectory open_directory(FileSystem& file_system, const fs::path& path) {
  const std::string name = own_name(path);
  if (parse_hidden_name(name)) not_found(path, "it was not committed");
  const auto step = parse_step_name(name);
  const fs::path found = in_bucket(path) ? newest_generation(file_system, path) : path;
  return {found, step ? step->step : kNoStep, file_system.open_directory(found)};
}

std::string read_manifest_text(const OpenDirectory& directory) {
  const fs::path path = directory.path / kManifestName;
  std::unique_ptr<File> file;
  try {
    file = directory.directory->open(kManifestName);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    const KnownFormat found = known_format(directory.path);
    if (found.name == "shardwise" && !found.steps.empty()) {
      not_found(directory.path,
                fmt::format("found a folder of {}, needed one of them: the newest is {}, as "
                            "latest() of a CheckpointManager says",
                            to_string(found), found.steps.back()));
    }
    if (found.name == "dcp" || found.name == "orbax" || found.name == "safetensors" ||
        found.name == "torch") {
      not_found(directory.path,
                fmt::format("found {}, needed a checkpoint of Shardwise", to_string(found)));
    }
    not_found(directory.path, fmt::format("it was not committed: it has no {}", kManifestName));
  }
  const std::uint64_t bytes = file->size();
  if (bytes > kMaxManifestBytes) {
    throw Error(ErrorCode::corrupt, fmt::format("read manifest {}: it has {} bytes, needed is at "
                                                "most {}",
                                                path.string(), bytes, kMaxManifestBytes));
  }
  std::string text(bytes, '\0');
  file->read_at(0, reinterpret_cast<std::byte*>(text.data()), text.size());
  if (is_tombstone(text)) not_found(directory.path, "it was removed");
  return text;
}

Manifest read_manifest(const OpenDirectory& directory) {
  Manifest manifest =
      parse_manifest(read_manifest_text(directory), (directory.path / kManifestName).string());
  if (manifest.step == kNoStep) manifest.step = directory.step;
  return manifest;
}

namespace {

// Opens a file that must be in the checkpoint and have this size.
std::unique_ptr<File> open_named(const OpenDirectory& directory, const std::string& name,
                                 std::uint64_t must_have) {
  const fs::path path = directory.path / name;
  std::unique_ptr<File> file;
  try {
    file = directory.directory->open(name);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    if (!directory.directory->is_in_place()) {
      not_found(directory.path, "it was removed or replaced since it was opened");
    }
    throw Error(ErrorCode::corrupt,
                fmt::format("open shard file {}: it is missing", path.string()));
  }
  const std::uint64_t bytes = file->size();
  if (bytes != must_have) {
    throw Error(ErrorCode::corrupt,
                fmt::format("open shard file {}: it has {} bytes, needed are {}", path.string(),
                            bytes, must_have));
  }
  return file;
}

}  // namespace

std::unique_ptr<File> open_file(const OpenDirectory& directory, const FileEntry& entry) {
  return open_named(directory, entry.name, entry.bytes);
}

std::unique_ptr<File> open_linked_file(const OpenDirectory& directory, const LinkedFile& linked) {
  std::unique_ptr<File> file = open_named(directory, linked.name(), linked.bytes);
  static_cast<void>(describe_linked_file(*file, (directory.path / linked.name()).string(), linked));
  return file;
}

StoredCheckpoint unread_checkpoint(const OpenDirectory& directory, Manifest manifest) {
  StoredCheckpoint checkpoint;
  checkpoint.directory = directory.path;
  checkpoint.manifest = std::move(manifest);
  const std::vector<FileEntry>& files = checkpoint.manifest.files;
  checkpoint.files = std::make_unique<OpenFiles>(
      files.size(),
      [directory, files](std::size_t number) { return open_file(directory, files[number]); });
  checkpoint.linked_of.resize(files.size());
  checkpoint.open_linked = [directory](const LinkedFile& linked) {
    return open_linked_file(directory, linked);
  };
  checkpoint.tables.resize(files.size());
  checkpoint.is_loaded.resize(files.size(), false);
  return checkpoint;
}

namespace {

std::array<std::uint64_t, kDescriptionWords> description_words(File& file, const std::string& path,
                                                               std::uint64_t data_end,
                                                               const Hash128& must_be) {
  std::array<std::uint64_t, kDescriptionWords> words{};
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(words));
  file.read_at(data_end - kDescriptionBytes, bytes.data(), bytes.size());
  const Hash128 hash = hash128(bytes.data(), bytes.size());
  if (hash == must_be) return words;
  throw Error(ErrorCode::corrupt,
              fmt::format("read description of {}: its hash is {}, needed is {}", path,
                          to_hex(hash), to_hex(must_be)));
}

}  // namespace

void read_file_description(File& file, const std::string& path, FileEntry& entry) {
  read_description(description_words(file, path, entry.data_end, entry.description_hash), entry,
                   path);
}

void read_linked_files(File& file, const std::string& path, FileEntry& entry) {
  read_file_description(file, path, entry);
  if (entry.has_linked) entry.linked = read_content_table(file, path, entry).linked;
}

FileEntry describe_linked_file(File& file, const std::string& path, const LinkedFile& linked) {
  FileEntry entry{.name = linked.name(),
                  .bytes = linked.bytes,
                  .data_end = linked.data_end,
                  .description_hash = linked.description_hash};
  const auto words = description_words(file, path, linked.data_end, linked.description_hash);
  entry.writer = static_cast<std::int64_t>(words[1]);
  read_description(words, entry, path);
  return entry;
}

ContentTable read_content_table(File& file, const std::string& path, const FileEntry& entry) {
  std::array<std::uint64_t, 2> begin{};
  const auto check_room = [&](std::size_t words) {
    if (entry.content_address >= entry.data_end && entry.content_address <= entry.bytes &&
        words <= (entry.bytes - entry.content_address) / sizeof(std::uint64_t)) {
      return;
    }
    throw Error(ErrorCode::corrupt,
                fmt::format("read shard file {}: the {} words of its content table, at {}, are not "
                            "after the data, in [{}, {})",
                            path, words, entry.content_address, entry.data_end, entry.bytes));
  };
  check_room(begin.size());
  const std::span<std::byte> first = std::as_writable_bytes(std::span(begin));
  file.read_at(entry.content_address, first.data(), first.size());
  const std::size_t count = content_words(begin, entry, path);
  check_room(count);
  std::vector<std::uint64_t> words(count);
  read_table(file, path, std::as_writable_bytes(std::span(words)), entry.content_address,
             entry.content_hash, "content table");
  return read_content(words, entry, path);
}

std::vector<PieceId> read_file_pieces(File& file, const fs::path& directory, Manifest& manifest,
                                      std::size_t number) {
  const std::string path = (directory / manifest.files[number].name).string();
  const std::vector<std::uint64_t> words = read_piece_table(file, path, manifest.files[number]);
  return add_file_pieces(words, manifest, number, path);
}

Error no_file_of(std::int64_t writer, const TensorEntry& tensor, const Box& box,
                 const fs::path& directory) {
  return {ErrorCode::corrupt, fmt::format("open checkpoint {}: the manifest has no shard file of "
                                          "writer {}, which has {} of tensor {:?}",
                                          directory.string(), writer, to_string(box), tensor.name)};
}

void check_no_file_missing(const Manifest& manifest, const fs::path& directory) {
  std::vector<bool> is_there(static_cast<std::size_t>(manifest.writers.num_writers()), false);
  for (const FileEntry& file : manifest.files)
    is_there[static_cast<std::size_t>(file.writer)] = true;
  std::vector<Box> boxes;
  for (std::size_t writer = 0; writer < is_there.size(); ++writer) {
    if (is_there[writer]) continue;
    for (const TensorEntry& tensor : manifest.tensors) {
      add_pieces_of(static_cast<std::int64_t>(writer), manifest.writers, tensor, boxes);
      if (boxes.empty()) continue;
      throw no_file_of(static_cast<std::int64_t>(writer), tensor, boxes.front(), directory);
    }
  }
}

ChunkTable read_chunk_table(File& file, const fs::path& directory, const Manifest& manifest,
                            std::size_t number, std::span<const PieceId> pieces) {
  const FileEntry& entry = manifest.files[number];
  const std::string path = (directory / entry.name).string();
  ChunkTable table = read_records(file, path, entry);
  check_chunk_table(manifest.tensors, entry, pieces, table, path);
  return table;
}

FileTables read_file_tables(File& file, const fs::path& directory, const FileEntry& entry) {
  const std::string path = (directory / entry.name).string();
  FileTables tables;
  tables.entry = entry;
  tables.words = read_piece_table(file, path, tables.entry);
  tables.table = read_records(file, path, tables.entry);
  return tables;
}

void add_linked_files(StoredCheckpoint& checkpoint, std::size_t number) {
  std::vector<std::size_t>& numbers = checkpoint.linked_of[number];
  numbers.clear();
  for (const LinkedFile& linked : checkpoint.manifest.files[number].linked) {
    const auto at = std::ranges::find(checkpoint.linked, linked);
    if (at != checkpoint.linked.end()) {
      numbers.push_back(checkpoint.manifest.files.size() +
                        static_cast<std::size_t>(at - checkpoint.linked.begin()));
      continue;
    }
    numbers.push_back(
        checkpoint.files->add([open = checkpoint.open_linked, linked] { return open(linked); }));
    checkpoint.linked.push_back(linked);
  }
}

void add_file_tables(StoredCheckpoint& checkpoint, std::size_t number, FileTables tables) {
  Manifest& manifest = checkpoint.manifest;
  const std::string path = (checkpoint.directory / tables.entry.name).string();
  const FileEntry before = std::exchange(manifest.files[number], std::move(tables.entry));
  std::vector<PieceId> added;
  try {
    added = add_file_pieces(tables.words, manifest, number, path);
    check_chunk_table(manifest.tensors, manifest.files[number], added, tables.table, path);
  } catch (...) {
    for (const PieceId& id : added) manifest.tensors[id.tensor].pieces.pop_back();
    manifest.files[number] = before;
    throw;
  }
  checkpoint.tables[number] = std::move(tables.table);
  checkpoint.is_loaded[number] = true;
  add_linked_files(checkpoint, number);
}

void load_file(StoredCheckpoint& checkpoint, std::size_t number) {
  const std::shared_ptr<File> file = checkpoint.files->at(number);
  add_file_tables(checkpoint, number,
                  read_file_tables(*file, checkpoint.directory, checkpoint.manifest.files[number]));
}

StoredCheckpoint open_checkpoint(FileSystem& file_system, const fs::path& directory,
                                 bool as_needed) {
  for (int openings = 1;; ++openings) {
    const DirectoryState before(directory);
    try {
      return open_once(file_system, directory, as_needed);
    } catch (const Error& e) {
      check_still_there(directory);
      // Another process may have removed it and saved it again: the files were of both. Retention
      // that sees a pin late takes its name away for a moment.
      const bool replaced = DirectoryState(directory) != before;
      const bool again =
          e.code() == ErrorCode::corrupt || (e.code() == ErrorCode::not_found && replaced);
      if (!again || openings >= (replaced ? kMostReplacements : kMostOpenings)) throw;
    }
  }
}

std::int64_t check_readable(FileSystem& file_system, const fs::path& directory) {
  const StoredCheckpoint checkpoint = open_checkpoint(file_system, directory);
  for (std::size_t f = 0; f < checkpoint.is_loaded.size(); ++f) checkpoint.files->at(f);
  return checkpoint.manifest.step;
}

StoredCheckpoint open_what_is_readable(
    FileSystem& file_system, const fs::path& directory,
    const std::function<void(std::size_t file, const Error& error)>& why_not) {
  const OpenDirectory opened = open_directory(file_system, directory);
  StoredCheckpoint checkpoint = unread_checkpoint(opened, read_manifest(opened));
  for (std::size_t f = 0; f < checkpoint.manifest.files.size(); ++f) {
    try {
      load_file(checkpoint, f);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::corrupt && e.code() != ErrorCode::io) throw;
      if (why_not) why_not(f, e);
    }
  }
  if (std::ranges::find(checkpoint.is_loaded, false) == checkpoint.is_loaded.end()) {
    checkpoint.is_loaded.clear();
  }
  return checkpoint;
}

std::vector<TensorInfo> tensor_infos(const StoredCheckpoint& checkpoint) {
  std::vector<TensorInfo> infos;
  infos.reserve(checkpoint.manifest.tensors.size());
  for (const TensorEntry& tensor : checkpoint.manifest.tensors) {
    TensorInfo info{.name = tensor.name,
                    .dtype = tensor.dtype,
                    .shape = tensor.shape,
                    .sharding = tensor.sharding};
    info.logical_bytes = num_bytes(tensor.shape, size_bytes(tensor.dtype));
    if (checkpoint.is_complete()) info.pieces = static_cast<std::int64_t>(tensor.pieces.size());
    for (const PieceEntry& piece : tensor.pieces) {
      if (!checkpoint.is_complete()) break;
      const auto& records = checkpoint.tables[static_cast<std::size_t>(piece.file)].records;
      const std::int64_t chunks = num_chunks(piece);
      info.chunks += chunks;
      for (std::int64_t c = 0; c < chunks; ++c) {
        info.stored_bytes += static_cast<std::size_t>(
            records[static_cast<std::size_t>(piece.first_chunk + c)].stored_bytes);
      }
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

void check_still_there(const fs::path& directory) { own_name(directory); }

void note_damage(const StoredCheckpoint& checkpoint, const ChunkId& id) noexcept {
  try {
    checkpoint.files->at(checkpoint.file_of(id))->unseal();
  } catch (...) {
    // A save may then link it once more.
  }
}

void check_chunk_hash(const StoredCheckpoint& checkpoint, const ChunkId& id, std::uint64_t hash) {
  const ChunkRecord& record = checkpoint.record(id);
  if (hash == record.hash) return;
  note_damage(checkpoint, id);
  throw Error(ErrorCode::corrupt,
              fmt::format("read {}: the hash of its bytes is {}, needed is {}",
                          checkpoint.describe(id), to_hex(hash), to_hex(record.hash)));
}

void check_decoded_hash(const StoredCheckpoint& checkpoint, const ChunkId& id, std::uint64_t hash) {
  const std::uint64_t must_be = checkpoint.decoded_hash(id);
  if (hash == must_be) return;
  note_damage(checkpoint, id);
  throw Error(ErrorCode::corrupt,
              fmt::format("read {}: its stored bytes are as they were written, but they decode to "
                          "bytes with the hash {}, needed is {}",
                          checkpoint.describe(id), to_hex(hash), to_hex(must_be)));
}

bool stored_raw(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  return is_raw(checkpoint.tensor(id).pieces.codec(id.piece), checkpoint.record(id));
}

std::span<const std::byte> decompress_chunk(const StoredCheckpoint& checkpoint, const ChunkId& id,
                                            std::span<const std::byte> stored, Decoder& decoder) {
  try {
    return decoder.decompress(stored, checkpoint.decoded_bytes(id));
  } catch (const Error& e) {
    throw Error(e, fmt::format("read {}: {}", checkpoint.describe(id), e.what()));
  }
}

}  // namespace shardwise::detail
