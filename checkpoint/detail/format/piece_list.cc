#include "shardwise/checkpoint/detail/format/piece_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace shardwise::detail {

std::string PieceDataset::path() const { return fmt::format("/tensors/{}/{}", tensor, piece); }

Shape chunk_grid(const PieceEntry& piece) {
  Shape grid = piece.chunk;
  for (std::size_t d = 0; d < grid.size(); ++d) {
    grid[d] = (piece.box.extent(d) - 1) / piece.chunk[d] + 1;
  }
  return grid;
}

std::int64_t num_chunks(const PieceEntry& piece) { return num_elements(chunk_grid(piece)); }

Box chunk_box(const Box& piece, std::span<const std::int64_t> chunk_shape, std::int64_t chunk) {
  Index begin = piece.begin(), end = piece.begin();
  for (std::size_t d = chunk_shape.size(); d-- > 0;) {
    const std::int64_t count = (piece.extent(d) - 1) / chunk_shape[d] + 1;
    begin[d] += chunk % count * chunk_shape[d];
    // Not begin + chunk: that may be beyond 2^63 - 1 at the tensor's edge.
    end[d] = begin[d] + std::min(chunk_shape[d], piece.end(d) - begin[d]);
    chunk /= count;
  }
  return Box(begin, end);
}

std::size_t chunk_bytes(const PieceEntry& piece, DType dtype) {
  return num_bytes(piece.chunk, size_bytes(dtype));
}

PieceList::PieceList(std::initializer_list<PieceEntry> pieces) {
  for (const PieceEntry& piece : pieces) push_back(piece);
}

Box PieceList::box(std::size_t i) const {
  const std::int64_t *begin = at(i) + kDims, *end = begin + rank_;
  Box box;
  for (std::size_t d = 0; d < rank_; ++d) box.push_back(begin[d], end[d]);
  return box;
}

PieceEntry PieceList::operator[](std::size_t i) const {
  const std::int64_t* const from = at(i);
  PieceEntry piece;
  piece.box = box(i);
  for (const std::int64_t extent : chunk(i)) piece.chunk.push_back(extent);
  piece.file = from[kFile];
  piece.first_chunk = from[kFirstChunk];
  const auto dataset = static_cast<std::uint64_t>(from[kDataset]);
  piece.dataset = {static_cast<std::uint32_t>(dataset >> 32), static_cast<std::uint32_t>(dataset)};
  piece.layout = static_cast<Layout>(from[kStored] & 0xFF);
  piece.codec = codec(i);
  return piece;
}

void PieceList::push_back(const PieceEntry& piece) {
  if (empty()) rank_ = piece.box.rank();
  words_.resize(words_.size() + words(rank_));
  set(size() - 1, piece);
}

void PieceList::pop_back() {
  words_.resize(words_.size() - words(rank_));
  if (empty()) rank_ = 0;
}

void PieceList::append(PieceList pieces) {
  if (empty()) {
    *this = std::move(pieces);
    return;
  }
  assert(pieces.empty() || pieces.rank_ == rank_);
  words_.insert(words_.end(), pieces.words_.begin(), pieces.words_.end());
}

void PieceList::set(std::size_t i, const PieceEntry& piece) {
  assert(piece.box.rank() == rank_ && piece.chunk.size() == rank_);
  std::int64_t* const to = words_.data() + i * words(rank_);
  to[kFile] = piece.file;
  to[kFirstChunk] = piece.first_chunk;
  to[kDataset] =
      static_cast<std::int64_t>(std::uint64_t{piece.dataset.tensor} << 32 | piece.dataset.piece);
  to[kStored] = static_cast<std::int64_t>(piece.layout) | static_cast<std::int64_t>(piece.codec)
                                                              << 8;
  std::int64_t* const begin = to + kDims;
  std::ranges::copy(piece.box.begin(), begin);
  std::ranges::copy(piece.box.end(), begin + rank_);
  std::ranges::copy(piece.chunk, begin + 2 * rank_);
}

}  // namespace shardwise::detail
