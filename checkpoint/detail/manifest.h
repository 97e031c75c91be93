#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

inline constexpr const char* kFormatName = "shardwise-checkpoint";
inline constexpr int kFormatVersion = 1;
inline constexpr std::int64_t kFormatMinor = 1;  ///< what this build writes
inline constexpr std::int64_t kDecodedHashesMinor = 1;
inline constexpr std::int64_t kExactIndexMinor = 1;  ///< index.h5 is what build_index_file makes
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kIndexName = "index.h5";
inline constexpr const char* kUsualPolicy = "ceil";  ///< of a tensor whose entry names none

enum class Layout { contiguous, chunked };

/// What a chunk went through; Codec::automatic is decided before it gets here.
enum class StoredCodec { none, zstd };

// The structs mirror docs/checkpoint_format.md, heading "Manifest", key by key.

struct PieceEntry {
  Box box = {};
  std::int64_t file = 0;
  std::string dataset = {};
  Layout layout = Layout::contiguous;
  Shape chunk = {};
  StoredCodec codec = StoredCodec::none;
  std::int64_t first_chunk = 0;

  bool operator==(const PieceEntry&) const = default;
};

struct TensorEntry {
  std::string name = {};
  DType dtype = DType::f32;
  Shape shape = {};
  std::string mesh = {}, spec = {}, policy = kUsualPolicy, index = {};
  std::vector<PieceEntry> pieces = {};

  bool operator==(const TensorEntry&) const = default;
};

struct FileEntry {
  std::string name = {};
  std::uint64_t bytes = 0;
  std::uint64_t data_begin = 0, data_end = 0;
  std::uint64_t table_address = 0;
  std::int64_t chunks = 0;
  std::uint64_t table_hash = 0;
  Hash128 structure_hash = {};
  std::uint64_t decoded_address = 0, decoded_hash = 0;  ///< from kDecodedHashesMinor on

  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  std::int64_t minor = 0;  ///< of the format
  std::string id;
  std::int64_t step = 0;
  std::string user_json = "{}";  ///< byte by byte as it was given
  std::vector<TensorEntry> tensors;
  std::vector<FileEntry> files;
  std::uint64_t index_bytes = 0;
  Hash128 index_hash;

  /// Whether each file has the hashes of its chunks' decoded bytes.
  bool has_decoded_hashes() const { return minor >= kDecodedHashesMinor; }

  bool operator==(const Manifest&) const = default;
};

/// Limits of the format page: they bound what a reader allocates for a manifest that lies.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxChunkBytes = std::size_t{64} << 20;
inline constexpr std::int64_t kMaxChunksPerFile = std::int64_t{1} << 25;
inline constexpr int kMaxNesting = 256;
inline constexpr std::size_t kMaxNameBytes = 1024;

/// Why a tensor cannot have this name, or why a text cannot be the manifest's `user`; empty where
/// it can. One clause: "is empty", "is not UTF-8".
std::string name_problem(std::string_view name);
std::string user_json_problem(std::string_view text);

/// The whole file, checksum included. Equal manifests give equal bytes; user_json is kept as it is,
/// byte by byte. Requires what parse_manifest checks.
std::string print_manifest(const Manifest& manifest);

/// Its list of tensors; and the manifest with that list, whatever manifest.tensors is.
std::string print_tensors(std::span<const TensorEntry> tensors);
std::string print_manifest(const Manifest& manifest, std::string_view tensors);

/// Checks everything that the format page asks for and that needs no other file: checksum first,
/// then every rule on names, shapes, boxes (inside, covering exactly once), chunks, sizes. Throws
/// corrupt or unsupported; `path` is for messages.
Manifest parse_manifest(std::string_view bytes, const std::string& path);

/// How a piece is cut into chunks, and where chunk number i (row-major in the grid) lies.
Shape chunk_grid(const PieceEntry& piece);
std::int64_t num_chunks(const PieceEntry& piece);

/// Global box of chunk i, cut off at the piece's edge. Requires 0 <= i < num_chunks(piece).
Box chunk_box(const PieceEntry& piece, std::int64_t chunk);

/// Bytes of one decoded chunk, edge padding included.
std::size_t chunk_bytes(const PieceEntry& piece, DType dtype);

/// One record of docs/checkpoint_format.md, heading "Chunk table"; 32 bytes, little-endian.
struct ChunkRecord {
  std::uint64_t address = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t hash = 0;
  std::uint32_t filter_mask = 0;
  std::uint32_t reserved = 0;

  bool operator==(const ChunkRecord&) const = default;
};
static_assert(sizeof(ChunkRecord) == 32);

/// The filter mask of a chunk that did not shrink: both filters skipped.
inline constexpr std::uint32_t kRawMask = 3;

/// Whether the stored bytes are the chunk's elements as they are.
bool is_raw(const PieceEntry& piece, const ChunkRecord& record);

/// What a file says about its chunks, in the order of their records.
struct ChunkTable {
  std::vector<ChunkRecord> records;

  /// XXH3-64 of each chunk's decoded bytes; empty where the manifest has_decoded_hashes() not.
  std::vector<std::uint64_t> decoded_hashes;
};

/// Checks one file's table against the manifest's pieces in it: places inside the data range,
/// distinct, sizes and masks possible, both hashes of a raw chunk equal. Throws corrupt naming
/// tensor and chunk.
void check_chunk_table(const Manifest& manifest, std::int64_t file, const ChunkTable& table,
                       const std::string& path);

}  // namespace shardwise::detail
