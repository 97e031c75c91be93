#include "shardwise/mend/detail/chunk_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::mend_detail {
namespace {

/// A tensor of the same name, dtype and shape.
std::optional<std::size_t> same_tensor(const detail::Manifest& manifest,
                                       const detail::TensorEntry& wanted) {
  const auto number = find_tensor(manifest, wanted.name);
  if (!number) return std::nullopt;
  const detail::TensorEntry& found = manifest.tensors[*number];
  return found.dtype == wanted.dtype && found.shape == wanted.shape ? number : std::nullopt;
}

/// The number of the chunk of a piece that has exactly this box.
std::optional<std::int64_t> chunk_with(const detail::PieceEntry& piece, const Box& box) {
  if (piece.box.rank() != box.rank() || !piece.box.contains(box)) return std::nullopt;
  const Shape grid = detail::chunk_grid(piece);
  std::int64_t number = 0;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    number = number * grid[d] + (box.begin(d) - piece.box.begin(d)) / piece.chunk[d];
  }
  return detail::chunk_box(piece, number) == box ? std::optional(number) : std::nullopt;
}

std::vector<std::byte> decoded(const WantedChunk& wanted, std::span<const std::byte> stored) {
  const detail::StoredCheckpoint& checkpoint = wanted.checkpoint;
  std::vector<std::byte> bytes(stored.begin(), stored.end());
  if (detail::stored_raw(checkpoint, wanted.id)) return bytes;
  detail::Decoder decoder;
  bytes.resize(checkpoint.decoded_bytes(wanted.id));
  detail::unshuffle(detail::decompress_chunk(checkpoint, wanted.id, stored, decoder),
                    size_bytes(checkpoint.tensor(wanted.id).dtype), 0, bytes);
  return bytes;
}

bool are_decoded_bytes(const WantedChunk& wanted, std::span<const std::byte> bytes) {
  const detail::StoredCheckpoint& checkpoint = wanted.checkpoint;
  if (hash64(bytes.data(), bytes.size()) != checkpoint.decoded_hash(wanted.id)) return false;
  return !wanted.content_hash || hash128(bytes.data(), bytes.size()).high == *wanted.content_hash;
}

bool have_stored_hash(const WantedChunk& wanted, std::span<const std::byte> bytes) {
  return bytes.size() == wanted.record().stored_bytes &&
         hash64(bytes.data(), bytes.size()) == wanted.record().hash;
}

}  // namespace

std::optional<std::size_t> find_tensor(const detail::Manifest& manifest, std::string_view name) {
  const auto found =
      std::ranges::lower_bound(manifest.tensors, name, {}, &detail::TensorEntry::name);
  if (found == manifest.tensors.end() || found->name != name) return std::nullopt;
  return static_cast<std::size_t>(found - manifest.tensors.begin());
}

std::optional<detail::ChunkId> find_chunk(const detail::StoredCheckpoint& checkpoint,
                                          std::size_t tensor, const Box& box) {
  const detail::PieceList& pieces = checkpoint.manifest.tensors[tensor].pieces;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    if (!checkpoint.is_loaded_file(static_cast<std::size_t>(pieces.file(p)))) continue;
    if (const auto chunk = chunk_with(pieces[p], box)) return detail::ChunkId{tensor, p, *chunk};
  }
  return std::nullopt;
}

bool are_stored_bytes(const WantedChunk& wanted, std::span<const std::byte> bytes) {
  if (!have_stored_hash(wanted, bytes)) return false;
  try {
    return are_decoded_bytes(wanted, decoded(wanted, bytes));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::corrupt) throw;
    return false;
  }
}

ChunkBytes bytes_of(const WantedChunk& wanted) {
  const detail::ChunkRecord& record = wanted.record();
  return {wanted.checkpoint.file_name(wanted.checkpoint.file_of(wanted.id)), record.address,
          record.stored_bytes, record.hash};
}

ChunkFinder::ChunkFinder(FileSystem& file_system, std::vector<std::filesystem::path> checkpoints)
    : file_system_(file_system) {
  for (std::filesystem::path& path : checkpoints) sources_.push_back({.path = std::move(path)});
}

ChunkFinder::Source& ChunkFinder::opened(Source& source) {
  if (source.was_opened) return source;
  source.was_opened = true;
  try {
    detail::StoredCheckpoint checkpoint = detail::open_what_is_readable(file_system_, source.path);
    for (std::size_t f = 0; f < checkpoint.tables.size(); ++f) {
      if (!checkpoint.is_loaded_file(f)) continue;
      const std::vector<detail::ChunkRecord>& records = checkpoint.tables[f].records;
      for (std::size_t r = 0; r < records.size(); ++r) {
        source.chunks.push_back(
            {records[r].hash, static_cast<std::uint32_t>(f), static_cast<std::uint32_t>(r)});
      }
    }
    std::ranges::sort(source.chunks, {}, &Place::hash);
    source.reader =
        std::make_unique<detail::ChunkReader>(std::move(checkpoint), ReadOptions{.threads = 1});
  } catch (const Error&) {
    source.chunks.clear();  // then it is no help
  }
  return source;
}

std::optional<FoundChunk> ChunkFinder::read(Source& source, File& file, std::uint64_t address,
                                            const ChunkBytes& chunk) {
  const std::uint64_t size = file.size();
  if (address > size || chunk.bytes > size - address) return std::nullopt;
  std::vector<std::byte> bytes(static_cast<std::size_t>(chunk.bytes));
  file.read_at(address, bytes.data(), bytes.size());
  if (hash64(bytes.data(), bytes.size()) != chunk.hash) return std::nullopt;
  return FoundChunk{std::move(bytes), source.path};
}

std::optional<FoundChunk> ChunkFinder::find_by_hash(Source& source, const ChunkBytes& chunk) {
  if (!opened(source).reader) return std::nullopt;
  const detail::ChunkReader::View view = source.reader->checkpoint_for({});
  const detail::StoredCheckpoint& checkpoint = *view;
  for (auto place = std::ranges::lower_bound(source.chunks, chunk.hash, {}, &Place::hash);
       place != source.chunks.end() && place->hash == chunk.hash; ++place) {
    const detail::ChunkRecord& record = checkpoint.tables[place->shard_file].records[place->record];
    if (record.stored_bytes != chunk.bytes) continue;
    try {
      File& file = *checkpoint.files->at(checkpoint.file_of(place->shard_file, record));
      if (auto found = read(source, file, record.address, chunk)) return found;
    } catch (const Error&) {
      // Another place may have it.
    }
  }
  return std::nullopt;
}

std::optional<FoundChunk> ChunkFinder::find_stored(const ChunkBytes& chunk) {
  for (Source& source : sources_) {
    if (auto found = find_by_hash(source, chunk)) return found;
  }
  for (Source& source : sources_) {
    try {
      const std::unique_ptr<File> file = file_system_.open(source.path / chunk.file);
      if (auto found = read(source, *file, chunk.address, chunk)) return found;
    } catch (const Error&) {
      // A file that cannot be read is no help.
    }
  }
  return std::nullopt;
}

std::optional<FoundChunk> ChunkFinder::coded_again(Source& source, const WantedChunk& wanted,
                                                   std::string& why_not) {
  const detail::TensorEntry& tensor = wanted.checkpoint.tensor(wanted.id);
  const detail::PieceEntry piece = wanted.checkpoint.piece(wanted.id);
  const Box box = wanted.checkpoint.box(wanted.id);
  const std::size_t element_bytes = size_bytes(tensor.dtype);
  std::optional<std::size_t> number;
  {
    const detail::ChunkReader::View view = source.reader->checkpoint_for({});
    number = same_tensor((*view).manifest, tensor);
  }
  if (!number) return std::nullopt;
  std::vector<std::byte> elements(num_bytes(box.shape(), element_bytes));
  std::byte* const place = elements.data();
  const detail::ReadTarget target{.tensor = *number, .box = &box, .places = {&place, 1}};
  source.reader->fill({&target, 1});

  // A chunk that reaches over the edge of its piece is filled up with zeros.
  std::vector<std::byte> chunk(wanted.checkpoint.decoded_bytes(wanted.id));
  Box whole;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    whole.push_back(box.begin(d), box.begin(d) + piece.chunk[d]);
  }
  copy_box(box, element_bytes, {elements.data(), box}, {chunk.data(), whole});
  if (!are_decoded_bytes(wanted, chunk)) return std::nullopt;
  if (detail::stored_raw(wanted.checkpoint, wanted.id)) {
    if (!are_stored_bytes(wanted, chunk)) return std::nullopt;
    return FoundChunk{std::move(chunk), source.path};
  }
  std::vector<std::byte> coded(chunk.size());
  for (const detail::Effort effort :
       {detail::Effort::huffman_only, detail::Effort::matches, detail::Effort::zstd_huffman}) {
    const std::size_t bytes = encoder_.encode(chunk, element_bytes, effort, coded);
    if (!are_stored_bytes(wanted, std::span(coded).first(bytes))) continue;
    coded.resize(bytes);
    return FoundChunk{std::move(coded), source.path};
  }
  why_not = fmt::format(
      "{} has the same elements, but coded again they are not the bytes that were stored",
      source.path.string());
  return std::nullopt;
}

std::optional<FoundChunk> ChunkFinder::find(const WantedChunk& wanted, std::string& why_not) {
  why_not = sources_.empty()
                ? "there is no other step in its root, and no copy was given"
                : fmt::format("none of the other checkpoints, {}, has it whole", sources_.size());
  auto stored = find_stored(bytes_of(wanted));
  if (stored && are_stored_bytes(wanted, stored->bytes)) return stored;
  for (Source& source : sources_) {
    if (!opened(source).reader) continue;
    try {
      if (auto found = coded_again(source, wanted, why_not)) return found;
    } catch (const Error&) {
      // A chunk that cannot be read there, or is damaged there, too, is no help.
    }
  }
  return std::nullopt;
}

}  // namespace shardwise::mend_detail
