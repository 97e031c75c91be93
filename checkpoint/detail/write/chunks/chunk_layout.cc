#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"

#include <algorithm>

#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {
namespace {

// Shorter runs cost a reader of rows more than the chunks' number.
constexpr std::size_t kLeastRunBytes = 8192;

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

std::size_t align(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

Shape cut(const Shape& piece, const Shape& cuts) {
  Shape chunk = piece;
  for (std::size_t d = 0; d < piece.size(); ++d) chunk[d] = divide_up(piece[d], cuts[d]);
  return chunk;
}

// Bytes of a chunk that are side by side in the piece as well.
std::size_t run_bytes(const Shape& piece, const Shape& chunk, std::size_t element_bytes) {
  std::size_t run = element_bytes;
  for (std::size_t d = piece.size(); d-- > 0;) {
    run *= static_cast<std::size_t>(chunk[d]);
    if (chunk[d] < piece[d]) break;
  }
  return run;
}

// The dim to halve next: of those that leave runs long enough (else of all) the one with the fewest
// cuts so far, the outermost among equals.
std::size_t next_dim(const Shape& piece, const Shape& cuts, std::size_t element_bytes) {
  const Shape chunk = cut(piece, cuts);
  std::size_t best = piece.size();
  bool best_runs = false;
  for (std::size_t d = 0; d < piece.size(); ++d) {
    if (chunk[d] == 1) continue;
    Shape halved = chunk;
    halved[d] = divide_up(chunk[d], 2);
    const bool runs = run_bytes(piece, halved, element_bytes) >= kLeastRunBytes;
    if (best == piece.size() || (runs && !best_runs) ||
        (runs == best_runs && cuts[d] < cuts[best])) {
      best = d;
      best_runs = runs;
    }
  }
  return best;
}

}  // namespace

Shape chunk_shape(const Shape& piece, std::size_t element_bytes) {
  Shape cuts = Shape::filled(piece.size(), 1);
  std::size_t last = 0;
  while (num_bytes(cut(piece, cuts), element_bytes) > kChunkBytes) {
    last = next_dim(piece, cuts, element_bytes);
    cuts[last] = std::min(2 * cuts[last], piece[last]);
  }
  // The last doubling may have cut further than needed.
  Shape chunk = cut(piece, cuts);
  if (cuts.empty() || cuts[last] == 1) return chunk;
  const std::size_t row = num_bytes(chunk, element_bytes) / static_cast<std::size_t>(chunk[last]);
  const auto rows = static_cast<std::int64_t>(kChunkBytes / row);
  cuts[last] = divide_up(piece[last], rows);
  return cut(piece, cuts);
}

std::vector<ChunkLayout> ChunkLayout::of_files(std::span<const TensorEntry> tensors,
                                               std::int64_t files) {
  std::vector<ChunkLayout> layouts(static_cast<std::size_t>(files), ChunkLayout(tensors));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::size_t p = 0; p < tensors[t].pieces.size(); ++p) {
      layouts[static_cast<std::size_t>(tensors[t].pieces.file(p))].add({t, p});
    }
  }
  for (ChunkLayout& layout : layouts) layout.close_group();
  return layouts;
}

void ChunkLayout::add(const PieceId& id) {
  const PieceEntry piece = tensors_[id.tensor].pieces[id.piece];
  const DType dtype = tensors_[id.tensor].dtype;
  const std::size_t bytes = chunk_bytes(piece, dtype), room = align(bytes, kAlignment);
  const std::int64_t end = piece.first_chunk + detail::num_chunks(piece);
  for (std::int64_t number = piece.first_chunk; number < end; ++number) {
    if (open_bytes_ > 0 && open_bytes_ + room > kChunkBytes) close_group();
    if (open_bytes_ == 0) groups_.push_back({number, most_bytes()});
    open_bytes_ += room;
    groups_.back().end = number + 1;
    if (piece.codec == StoredCodec::none) raw_bytes_ += bytes;
  }
  pieces_.push_back({id, end});
  logical_bytes_ += num_bytes(piece.box.shape(), size_bytes(dtype));
}

void ChunkLayout::close_group() {
  if (open_bytes_ == 0) return;
  groups_.back().end_bytes += align(open_bytes_, kPageBytes);
  open_bytes_ = 0;
}

FileChunk ChunkLayout::chunk(std::int64_t number) const {
  const FilePiece& at = *std::upper_bound(
      pieces_.begin(), pieces_.end(), number,
      [](std::int64_t wanted, const FilePiece& piece) { return wanted < piece.end_chunk; });
  const TensorEntry& tensor = tensors_[at.id.tensor];
  const PieceEntry piece = tensor.pieces[at.id.piece];
  return {.tensor = at.id.tensor,
          .piece = piece,
          .box = chunk_box(piece, number - piece.first_chunk),
          .element_bytes = size_bytes(tensor.dtype),
          .bytes = chunk_bytes(piece, tensor.dtype)};
}

std::size_t ChunkLayout::least_bytes() const { return align(raw_bytes_, kPageBytes); }

bool ChunkLayout::begins_group(std::int64_t number) const {
  return number == 0 ||
         std::binary_search(groups_.begin(), groups_.end(), Group{number, 0},
                            [](const Group& a, const Group& b) { return a.end < b.end; });
}

std::vector<Slab> ChunkLayout::slabs(std::size_t buffer_bytes) const {
  std::vector<Slab> slabs;
  std::int64_t first = 0;
  std::size_t before = 0;  // of this group
  for (const Group& group : groups_) {
    if (slabs.empty() || group.end_bytes - slabs.back().bytes_before > buffer_bytes) {
      slabs.push_back({first, first, before});
    }
    slabs.back().end = first = group.end;
    before = group.end_bytes;
  }
  return slabs;
}

}  // namespace shardwise::detail
