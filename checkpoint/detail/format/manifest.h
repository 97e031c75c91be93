#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/format/piece_list.h"
#include "shardwise/checkpoint/detail/format/piece_rule.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

inline constexpr const char* kFormatName = "shardwise-checkpoint";
inline constexpr int kFormatVersion = 2;  ///< the only one that is written and read
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kIndexName = "index.h5";
inline constexpr std::int64_t kNoStep = -1;          ///< of a checkpoint that is no step
inline constexpr const char* kUsualPolicy = "ceil";  ///< of a tensor whose entry names none

// The structs mirror docs/checkpoint_format.md, headings "Manifest" and "Shard files".

/// The texts of mesh, spec and policy of one sharding after the other: neighbours mostly are cut
/// the same way, so each text is made only if it may differ from the one before. (Not compared as
/// shardings: these are equal if they place the same, however they are spelled.)
class ShardingTexts {
 public:
  /// Says whether one of the texts is another than before.
  bool set(const Sharding& sharding);

  std::string mesh, spec, policy;

 private:
  std::optional<Sharding> last_;
};

struct TensorEntry {
  std::string name = {};
  DType dtype = DType::f32;
  Shape shape = {};
  PieceList pieces = {};

  std::optional<Sharding> sharding = {};

  /// If there is no sharding: the box of each piece and its writer, sorted.
  std::vector<WriterPiece> listed = {};

  bool operator==(const TensorEntry&) const = default;
};

std::vector<TensorEntry> without_pieces(std::span<const TensorEntry> tensors);

/// A shard file of an earlier checkpoint, by its second name in a checkpoint that has chunks in it:
/// docs/checkpoint_format.md, heading "Linked files".
struct LinkedFile {
  Hash128 description_hash = {};
  std::uint64_t bytes = 0, data_end = 0;

  /// "linked-<32 hex digits>.h5"
  std::string name() const;
  bool operator==(const LinkedFile&) const = default;
};

inline constexpr std::string_view kLinkedPrefix = "linked-";
inline constexpr std::size_t kMostLinkedFiles = 16;  ///< of one shard file

/// Follows the name of a shard file, or linked one, in the name of its parity file.
inline constexpr std::string_view kParitySuffix = ".parity";

struct FileEntry {
  std::string name = {};
  std::uint64_t bytes = 0;
  std::uint64_t data_begin = 0, data_end = 0;
  std::uint64_t table_address = 0;
  std::int64_t chunks = 0;
  std::uint64_t table_hash = 0;
  Hash128 structure_hash = {};
  std::uint64_t decoded_address = 0, decoded_hash = 0;

  // The manifest has the name, bytes, data_end and description_hash; all else is in
  // the description, which the file itself holds.
  std::int64_t writer = 0;
  Hash128 description_hash = {};
  std::uint64_t pieces_address = 0, pieces_words = 0, pieces_hash = 0;
  std::uint64_t stored_bytes = 0;  ///< of the chunks that are in it

  /// Address and hash of the content table; 0: the file has no such table.
  std::uint64_t content_address = 0, content_hash = 0;
  bool has_linked = false;              ///< chunks of its pieces are in linked files
  std::vector<LinkedFile> linked = {};  ///< these, as the content table lists them

  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  std::int64_t minor = 0;
  std::string id;
  std::int64_t step = kNoStep;
  std::string user_json = "{}";  ///< byte by byte as it was given
  std::string objects_json;      ///< as well; empty: none

  /// Its PieceRule gives the pieces.
  WriterMap writers = {};

  /// The pieces are those of the files whose pieces have been read.
  std::vector<TensorEntry> tensors;
  std::vector<FileEntry> files;   ///< those that there are: a writer of nothing makes none
  std::uint64_t index_bytes = 0;  ///< 0: there is no index
  Hash128 index_hash;

  bool has_index() const { return index_bytes > 0; }

  bool operator==(const Manifest&) const = default;
};

/// Limits of the format page: they bound a reader's memory for a manifest that lies.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxChunkBytes = std::size_t{64} << 20;
inline constexpr std::int64_t kMaxChunksPerFile = std::int64_t{1} << 25;
inline constexpr int kMaxNesting = 256;
inline constexpr std::size_t kMaxNameBytes = 1024;

/// Why a tensor cannot have this name, or why a text cannot be the manifest's `user`; empty if
/// it can. One clause: "is empty", "is not UTF-8".
std::string name_problem(std::string_view name);
std::string user_json_problem(std::string_view text);

/// "shards-00003-of-00016.h5"
std::string shard_file_name(std::int64_t writer, std::int64_t writers);

/// Numbers the datasets of one shard file: the t-th tensor that has a piece there has the datasets
/// "/tensors/<t>/<p>".
class PieceDatasets {
 public:
  /// Gives the dataset of the next piece; the pieces of a tensor follow one another.
  PieceDataset next(std::size_t tensor);

 private:
  std::size_t last_ = static_cast<std::size_t>(-1);
  PieceDataset next_{.tensor = static_cast<std::uint32_t>(-1), .piece = 0};
};

/// The boxes of a tensor that a writer stores, in the order of their pieces in its
/// file; appended.
void add_pieces_of(std::int64_t writer, const WriterMap& writers, const TensorEntry& tensor,
                   std::vector<Box>& boxes);

/// The pieces of a tensor that share elements with a box inside it; appended.
void add_pieces_in(const Box& box, const WriterMap& writers, const TensorEntry& tensor,
                   std::vector<WriterPiece>& pieces);

/// Adds the boxes, files and datasets of all pieces of a manifest, as its shardings
/// give them, to tensors that have none. Each is one chunk: only its file says how it is cut.
void place_pieces(Manifest& manifest);

/// The whole file, checksum included. Equal manifests give equal bytes; user_json is
/// kept as it is, byte by byte. Requires what parse_manifest checks.
std::string print_manifest(const Manifest& manifest);

/// Checks everything that the format page asks for and that needs no other file: checksum first,
/// then every rule on names, shapes, boxes (inside, covering exactly once), chunks, sizes. Throws
/// corrupt or unsupported; `path` is for messages.
Manifest parse_manifest(std::string_view bytes, const std::string& path);

/// One record of docs/checkpoint_format.md, heading "Chunk table"; 32 bytes, little-endian.
struct ChunkRecord {
  std::uint64_t address = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t hash = 0;
  std::uint32_t filter_mask = 0;
  std::uint32_t linked = 0;  ///< 0: in this file; else in linked file `linked` - 1

  bool operator==(const ChunkRecord&) const = default;
};
static_assert(sizeof(ChunkRecord) == 32);

/// The filter mask of a chunk that did not shrink: both filters skipped.
inline constexpr std::uint32_t kRawMask = 3;

inline bool is_in_linked(const ChunkRecord& record) { return record.linked != 0; }

/// True if the stored bytes are the chunk's elements as they are.
bool is_raw(StoredCodec codec, const ChunkRecord& record);

/// A file's tables about its chunks, in the order of their records.
struct ChunkTable {
  std::vector<ChunkRecord> records;

  /// XXH3-64 of each chunk's decoded bytes.
  std::vector<std::uint64_t> decoded_hashes;

  /// The high half of their XXH3-128; empty if the file has no content table or nobody asked.
  std::vector<std::uint64_t> content_hashes = {};
};

/// A piece by its place in the manifest.
struct PieceId {
  std::size_t tensor = 0;  ///< in Manifest::tensors
  std::size_t piece = 0;   ///< in TensorEntry::pieces
};

/// The pieces of a file, of those that the tensors have. O(pieces of all files).
std::vector<PieceId> pieces_in_file(std::span<const TensorEntry> tensors, std::size_t file);

/// Checks one file's table against its pieces: places inside the data range, distinct, sizes and
/// masks possible, both hashes of a raw chunk equal. Throws corrupt naming tensor and chunk.
void check_chunk_table(std::span<const TensorEntry> tensors, const FileEntry& entry,
                       std::span<const PieceId> pieces, const ChunkTable& table,
                       const std::string& path);

}  // namespace shardwise::detail
