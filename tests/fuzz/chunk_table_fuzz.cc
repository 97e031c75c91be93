// Checkpoints in memory: any manifest that parses, with any shard file. What opens is read without
// leaving any bounds, and reading and verifying find the same damage.
//
// The input: one byte that says what to leave wrong, a manifest (none: a fixed one), a NUL, and the
// bytes of the shard file, which lists its own pieces. Sizes and hashes are
// made right, up to those of each chunk, because a flipped bit would get no further; then the code
// after these checks reads the rest.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/codec/decoded.h"
#include "fuzz/require.h"
#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/shard/error.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/memory_files.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using detail::ChunkRecord;
using detail::FileEntry;
using detail::Manifest;
using detail::StoredCodec;

// More would only make it slow. Nothing is refused for its size: a stated size may be anything.
constexpr std::size_t kFileBytes = std::size_t{1} << 18;
constexpr std::size_t kDecodedBytes = std::size_t{1} << 20;

// Bits of the first byte.
constexpr unsigned kWrongSize = 1, kWrongChunks = 2, kWrongTable = 4, kWrongStructure = 8,
                   kSmallBudget = 16, kWrongDecoded = 32, kWrongDescription = 64;

const Manifest& fixed_manifest() {
  static const Manifest manifest =
      HandMadeCheckpoint({{.name = "raw",
                           .shape = {4, 4},
                           .pieces = {Box({0, 0}, {4, 3}), Box({0, 3}, {4, 4})},
                           .data = counting_values(DType::f32, {4, 4}),
                           .chunk = {2, 2}},
                          {.name = "whole",
                           .dtype = DType::i64,
                           .pieces = {Box()},
                           .data = counting_values(DType::i64, {})},
                          {.name = "zstd",
                           .dtype = DType::u16,
                           .shape = {150},
                           .pieces = {Box({0}, {150})},
                           .data = counting_values(DType::u16, {150}),
                           .chunk = {100},
                           .codec = StoredCodec::zstd}})
          .manifest;
  return manifest;
}

/// The hash of a chunk's decoded bytes; that of no bytes if it does not decode.
std::uint64_t decoded_hash(const ChunkRecord& record, const detail::PieceEntry& piece, DType dtype,
                           std::span<const std::byte> bytes) {
  if (is_raw(piece.codec, record)) return record.hash;
  if (record.address > bytes.size() || record.stored_bytes > bytes.size() - record.address) {
    return 0;
  }
  std::vector<std::byte> out(chunk_bytes(piece, dtype));
  try {
    detail::Decoder decoder;
    detail::decode(decoder,
                   bytes.subspan(record.address, static_cast<std::size_t>(record.stored_bytes)),
                   size_bytes(dtype), out);
  } catch (const Error&) {
    return 0;
  }
  return hash64(out.data(), out.size());
}

/// The decoded hashes of a file whose chunk table is `table`.
std::vector<std::uint64_t> decoded_hashes(const Manifest& manifest, std::size_t file,
                                          std::span<const std::byte> table,
                                          std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> hashes(table.size() / sizeof(ChunkRecord));
  for (const detail::TensorEntry& tensor : manifest.tensors) {
    for (const detail::PieceEntry& piece : tensor.pieces) {
      if (piece.file != static_cast<std::int64_t>(file)) continue;
      for (std::int64_t c = 0; c < num_chunks(piece); ++c) {
        const auto number = static_cast<std::size_t>(piece.first_chunk + c);
        ChunkRecord record;
        std::memcpy(&record, table.data() + number * sizeof(record), sizeof(record));
        hashes[number] = decoded_hash(record, piece, tensor.dtype, bytes);
      }
    }
  }
  return hashes;
}

bool small_enough(const Manifest& manifest) {
  std::size_t chunks = 0, bytes = 0;
  if (manifest.writers.num_writers() > 64) return false;
  for (const detail::TensorEntry& tensor : manifest.tensors) {
    if (tensor.sharding && tensor.sharding->mesh().size() > 1000) return false;
    for (const detail::PieceEntry& piece : tensor.pieces) {
      const auto count = static_cast<std::size_t>(num_chunks(piece));
      const std::size_t each = chunk_bytes(piece, tensor.dtype);
      if (count > kFileBytes || each > kDecodedBytes) return false;
      chunks += count;
      bytes += count * each;
    }
  }
  return chunks <= kFileBytes / sizeof(ChunkRecord) && bytes <= kDecodedBytes;
}

/// Reads a file's own description, the hash of its piece table made right. False
/// where that cannot be: opening is to say why.
bool read_pieces(Manifest& manifest, std::size_t file, std::span<const std::byte> bytes) {
  FileEntry& entry = manifest.files[file];
  std::vector<std::uint64_t> words(detail::kDescriptionWords);
  std::memcpy(words.data(), bytes.data() + entry.data_end - detail::kDescriptionBytes,
              detail::kDescriptionBytes);
  try {
    read_description(words, entry, "input");
    words.resize(static_cast<std::size_t>(entry.pieces_words));
    const std::span<std::byte> table = std::as_writable_bytes(std::span(words));
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(entry.pieces_address), table.size(),
                table.begin());
    entry.pieces_hash = hash64(table.data(), table.size());
    const std::size_t added = add_file_pieces(words, manifest, file, "input").size();
    // A save reads a file like this if it has no manifest for it.
    require(detail::read_pieces(words, entry, "input").size() == added, "pieces", "input");
  } catch (const Error&) {
    try {
      static_cast<void>(detail::read_pieces(words, entry, "input"));
    } catch (const Error&) {
    }
    return false;
  }
  return small_enough(manifest);
}

/// A shard file that others may link, and the record that they link it by.
struct Linkable {
  detail::LinkedFile linked;
  std::vector<std::byte> bytes;
};

const Linkable& linkable() {
  static const Linkable made = [] {
    const HandMadeCheckpoint checkpoint({{.name = "w",
                                          .shape = {64},
                                          .pieces = {Box({0}, {64})},
                                          .data = counting_values(DType::f32, {64})}});
    const FileEntry& entry = checkpoint.manifest.files.front();
    return Linkable{{entry.description_hash, entry.bytes, entry.data_end},
                    checkpoint.files.front().bytes};
  }();
  return made;
}

/// Lets the first linked file of a content table be one that is there, and makes the table's hash
/// right.
void seal_content(FileEntry& entry, std::span<std::byte> bytes) {
  if (entry.content_address < entry.data_end || entry.content_address > bytes.size()) return;
  const std::span<std::byte> rest = bytes.subspan(entry.content_address);
  std::array<std::uint64_t, 6> words{};
  if (rest.size() < sizeof words) return;
  std::memcpy(words.data(), rest.data(), sizeof words);
  if (words[0] > 0) {
    const detail::LinkedFile& linked = linkable().linked;
    words[2] = linked.description_hash.high;
    words[3] = linked.description_hash.low;
    words[4] = linked.bytes;
    words[5] = linked.data_end;
    std::memcpy(rest.data(), words.data(), sizeof words);
  }
  try {
    const std::size_t size =
        sizeof(std::uint64_t) * detail::content_words(std::span(words).first<2>(), entry, "input");
    if (size <= rest.size()) entry.content_hash = hash64(rest.data(), size);
  } catch (const Error&) {
  }
}

void write_description(FileEntry& entry, std::span<std::byte> bytes) {
  const auto words = detail::describe_file(entry);
  const auto description = std::as_bytes(std::span(words));
  std::copy(
      description.begin(), description.end(),
      bytes.begin() + static_cast<std::ptrdiff_t>(entry.data_end - detail::kDescriptionBytes));
  entry.description_hash = hash128(description.data(), description.size());
}

/// States the sizes and hashes of these bytes, or of their changed form, in the file's entry.
std::vector<std::byte> seal(Manifest& manifest, std::size_t file, std::span<const std::byte> given,
                            unsigned wrong) {
  FileEntry& entry = manifest.files[file];
  std::vector<std::byte> bytes(given.begin(), given.end());
  if ((wrong & kWrongSize) == 0 && entry.bytes <= kFileBytes) {
    bytes.resize(static_cast<std::size_t>(entry.bytes));
  }
  if (bytes.size() != entry.bytes) return bytes;
  if (!read_pieces(manifest, file, bytes)) return bytes;
  seal_content(entry, bytes);
  // The description is valid: the tables are in the file.
  const auto table =
      std::span(bytes).subspan(entry.table_address, static_cast<std::size_t>(entry.chunks) * 32);
  for (std::size_t at = 0; (wrong & kWrongChunks) == 0 && at < table.size(); at += 32) {
    ChunkRecord record;
    std::memcpy(&record, table.data() + at, sizeof(record));
    if (record.address > bytes.size() || record.stored_bytes > bytes.size() - record.address) {
      continue;
    }
    record.hash =
        hash64(bytes.data() + record.address, static_cast<std::size_t>(record.stored_bytes));
    std::memcpy(table.data() + at, &record, sizeof(record));
  }
  if ((wrong & kWrongTable) == 0) entry.table_hash = hash64(table.data(), table.size());
  const auto hashes = decoded_hashes(manifest, file, table, bytes);
  const auto stated = std::as_bytes(std::span(hashes));
  std::byte* const decoded = bytes.data() + entry.decoded_address;
  if ((wrong & kWrongDecoded) == 0 && !stated.empty()) {
    std::memcpy(decoded, stated.data(), stated.size());
  }
  entry.decoded_hash = hash64(decoded, stated.size());
  if ((wrong & kWrongStructure) == 0) {
    Hasher128 structure;
    structure.update(bytes.data(), entry.data_begin);
    structure.update(bytes.data() + entry.data_end, entry.bytes - entry.data_end);
    entry.structure_hash = structure.digest();
  }
  if ((wrong & kWrongDescription) == 0) write_description(entry, bytes);
  return bytes;
}

/// The elements of the box; nothing where the checkpoint is damaged there.
std::optional<std::vector<std::byte>> read(const CheckpointReader& reader, const TensorInfo& tensor,
                                           const Box& box) {
  std::vector<std::byte> out(num_bytes(box.shape(), size_bytes(tensor.dtype)));
  try {
    reader.read(tensor.name, box, out);
    return out;
  } catch (const Error& e) {
    require(e.code() == ErrorCode::corrupt, "read", e.what());
    return std::nullopt;
  }
}

/// Reads all of it and its last row, and compares what that says with what verify said.
void check_tensor(const CheckpointReader& reader, const TensorInfo& tensor, bool damaged) {
  const Box all = Box::whole(tensor.shape);
  const auto whole = read(reader, tensor, all);
  require(whole.has_value() != damaged, "read and verify disagree", tensor.name);
  if (all.rank() == 0 || all.empty()) return;
  Index begin = all.begin();
  begin[0] = all.end(0) - 1;
  const auto row = read(reader, tensor, Box(begin, all.end()));
  require(row.has_value() || damaged, "last row", tensor.name);
  if (!whole || !row) return;
  require(std::equal(row->rbegin(), row->rend(), whole->rbegin()), "last row differs", tensor.name);
}

void check(const std::filesystem::path& directory, const MemoryFiles& files, bool has_index,
           bool small_budget) {
  ReadOptions options{
      .threads = 1, .pin = false, .file_system = std::make_shared<MemoryFileSystem>(files)};
  if (small_budget) options.memory_budget_bytes = 100;
  const VerifyReport report = verify_checkpoint(directory, options);
  std::set<std::string> tensors, damaged_files;
  for (const Damage& damage : report.damage) {
    if (!damage.tensor.empty()) tensors.insert(damage.tensor);
    damaged_files.insert(damage.file);
  }
  try {
    const CheckpointReader reader(directory, options);
    for (const TensorInfo& tensor : reader.tensors()) {
      check_tensor(reader, tensor, tensors.contains(tensor.name));
    }
  } catch (const Error& e) {
    require(e.code() == ErrorCode::corrupt, "open", e.what());
    // An index, where the manifest has one, is always missing here.
    require(damaged_files.size() > (has_index ? 1u : 0u), "open fails, verify finds nothing",
            e.what());
  }
}

void run(std::string_view input) {
  static const TempDir root;
  static const std::filesystem::path directory = [] {
    // Opening asks the system whether the directory is there, and takes the step from its name.
    std::filesystem::create_directory(root / "step-00000100");
    return root / "step-00000100";
  }();
  const auto wrong = static_cast<unsigned char>(input.front());
  const std::size_t end = std::min(input.find('\0', 1), input.size());
  const std::string_view text = input.substr(1, end - 1);
  const auto bytes = std::as_bytes(std::span(input.substr(std::min(end + 1, input.size()))));

  Manifest manifest = fixed_manifest();
  try {
    if (!text.empty()) manifest = detail::parse_manifest(with_checksum(std::string(text)), "input");
  } catch (const Error&) {  // as most are: manifest_fuzz.cc has more to say about them
    return;
  }
  if (!small_enough(manifest)) return;
  manifest.step = 100;
  MemoryFiles files;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    files[manifest.files[f].name] = seal(manifest, f, bytes, wrong);
    if (manifest.files[f].has_linked) files[linkable().linked.name()] = linkable().bytes;
  }
  if (!small_enough(manifest)) return;
  const auto printed = print_manifest(manifest);
  const auto stored = std::as_bytes(std::span(printed));
  files[detail::kManifestName].assign(stored.begin(), stored.end());
  check(directory, files, manifest.has_index(), (wrong & kSmallBudget) != 0);
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size != 0) shardwise::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
