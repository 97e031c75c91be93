#include "shardwise/loader/detail/engine/batch_array.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

BatchArray::BatchArray(const Options& options, const Sharding& sharding, const IsHere& is_here)
    : dtype_(options.dtype), shape_(options.shape), sharding_(sharding) {
  const std::size_t element_bytes = size_bytes(dtype_);
  num_bytes(shape_, element_bytes);  // throws if the size of the whole batch overflows
  for (std::size_t dim = 1; dim < shape_.size(); ++dim) {
    record_.push_back(0, std::min(shape_[dim], options.available[dim - 1]));
  }
  const Mesh& mesh = sharding_.mesh();
  bytes_at_.reserve(static_cast<std::size_t>(mesh.size()));
  is_here_.reserve(bytes_at_.capacity());
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const Shape shape = sharding_.box_at(position, shape_).shape();
    is_here_.push_back(is_here(position));
    bytes_at_.push_back(is_here_.back() ? num_bytes(shape, element_bytes) : 0);
  }
  std::map<std::int64_t, std::int64_t> elements;  // of one record, per first row
  for (DistinctPiece& distinct : sharding_.distinct_pieces(shape_)) {
    std::erase_if(distinct.positions, [&](std::int64_t position) { return !is_here(position); });
    if (distinct.positions.empty()) continue;
    pieces_.push_back(make_piece(distinct));
    elements[pieces_.back().begin_row] += pieces_.back().valid.num_elements();
  }
  covers_records_ = std::ranges::all_of(
      elements, [&](const auto& of_rows) { return of_rows.second == record_.num_elements(); });
}

BatchArray::Piece BatchArray::make_piece(const DistinctPiece& distinct) const {
  const std::size_t element_bytes = size_bytes(dtype_);
  Box block, valid;
  for (std::size_t dim = 1; dim < distinct.box.rank(); ++dim) {
    const std::int64_t begin = distinct.box.begin(dim), end = distinct.box.end(dim);
    block.push_back(begin, end);
    const std::int64_t most = record_.end(dim - 1);
    valid.push_back(std::min(begin, most), std::min(end, most));
  }
  const std::size_t row_bytes = num_bytes(block.shape(), element_bytes);
  Piece piece{distinct.box.begin(0), distinct.box.end(0), block, valid, row_bytes, true,
              distinct.positions};
  if (valid.empty()) return piece;
  piece.is_direct = walk_runs(valid, block, valid).run_elements == valid.num_elements();
  return piece;
}

std::size_t BatchArray::bytes() const {
  std::size_t sum = 0;
  for (const std::size_t bytes : bytes_at_) sum += bytes;
  return sum;
}

void BatchArray::copy_to_replicas(std::span<const OwnedBytes> slabs, std::int64_t begin_row,
                                  std::int64_t end_row) const {
  for (const Piece& piece : pieces_) {
    const std::int64_t begin = std::max(begin_row, piece.begin_row);
    const std::int64_t end = std::min(end_row, piece.end_row);
    if (begin >= end) continue;
    const std::size_t offset = static_cast<std::size_t>(begin - piece.begin_row) * piece.row_bytes;
    const std::size_t size = static_cast<std::size_t>(end - begin) * piece.row_bytes;
    const auto data = [&](std::size_t replica) {
      return slabs[static_cast<std::size_t>(piece.positions[replica])].data + offset;
    };
    for (std::size_t replica = 1; replica < piece.positions.size(); ++replica) {
      std::memcpy(data(replica), data(0), size);
    }
  }
}

}  // namespace shardwise::detail
