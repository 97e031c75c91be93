#include "shardwise/loader/detail/batch_array.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shardwise::detail {

BatchArray::BatchArray(Devices& devices, ArraySpec array, std::string label)
    : array_(std::move(array)), label_(std::move(label)) {
  const std::size_t element_bytes = size_bytes(array_.dtype);
  num_bytes(array_.shape, element_bytes);  // throws where the whole batch has no size
  const Mesh& mesh = array_.sharding.mesh();
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const Shape shape = array_.sharding.box_at(position, array_.shape).shape();
    const DeviceId id = mesh.device_at(position);
    homes_.push_back(
        {devices.is_addressable(id) ? &devices.at(id) : nullptr, num_bytes(shape, element_bytes)});
  }
  for (DistinctPiece& piece : array_.sharding.distinct_pieces(array_.shape)) {
    std::erase_if(piece.positions, [&](std::int64_t position) {
      return homes_[static_cast<std::size_t>(position)].device == nullptr;
    });
    if (piece.positions.empty()) continue;
    Index begin, end;
    for (std::size_t dim = 1; dim < piece.box.rank(); ++dim) {
      begin.push_back(piece.box.begin(dim));
      end.push_back(piece.box.end(dim));
    }
    const Box record(begin, end);
    const std::size_t row_bytes = num_bytes(record.shape(), element_bytes);
    pieces_.push_back(
        {piece.box.begin(0), piece.box.end(0), record, row_bytes, std::move(piece.positions)});
  }
}

void BatchArray::Target::advance(std::int64_t rows) {
  next_row += rows;
  record.data += static_cast<std::size_t>(rows) * row_bytes;
}

std::size_t BatchArray::Target::rest_bytes() const {
  return static_cast<std::size_t>(end_row - next_row) * row_bytes;
}

std::size_t BatchArray::bytes() const {
  std::size_t sum = 0;
  for (const Home& home : homes_) sum += home.device == nullptr ? 0 : home.size_bytes;
  return sum;
}

std::vector<std::shared_ptr<Buffer>> BatchArray::allocate() const {
  std::vector<std::shared_ptr<Buffer>> buffers;
  buffers.reserve(homes_.size());
  for (const Home& home : homes_) {
    std::shared_ptr<Buffer>& buffer = buffers.emplace_back();
    if (home.device == nullptr) continue;
    buffer = home.device->allocate(home.size_bytes, MemoryKind::loader, label_);
  }
  return buffers;
}

std::vector<BatchArray::Target> BatchArray::targets(
    std::span<const std::shared_ptr<Buffer>> buffers, std::int64_t begin_row,
    std::int64_t end_row) const {
  std::vector<Target> targets;
  for (const Piece& piece : pieces_) {
    const std::int64_t begin = std::max(begin_row, piece.begin_row);
    const std::int64_t end = std::min(end_row, piece.end_row);
    if (begin >= end) continue;
    std::byte* const data = buffers[static_cast<std::size_t>(piece.positions[0])]->data() +
                            static_cast<std::size_t>(begin - piece.begin_row) * piece.row_bytes;
    targets.push_back({begin, end, {data, piece.record}, piece.row_bytes});
  }
  return targets;
}

void BatchArray::copy_to_replicas(std::span<const std::shared_ptr<Buffer>> buffers,
                                  std::int64_t begin_row, std::int64_t end_row) const {
  for (const Piece& piece : pieces_) {
    const std::int64_t begin = std::max(begin_row, piece.begin_row);
    const std::int64_t end = std::min(end_row, piece.end_row);
    if (begin >= end) continue;
    const std::size_t offset = static_cast<std::size_t>(begin - piece.begin_row) * piece.row_bytes;
    const std::size_t size = static_cast<std::size_t>(end - begin) * piece.row_bytes;
    const auto data = [&](std::size_t replica) {
      return buffers[static_cast<std::size_t>(piece.positions[replica])]->data() + offset;
    };
    for (std::size_t replica = 1; replica < piece.positions.size(); ++replica) {
      std::memcpy(data(replica), data(0), size);
    }
  }
}

}  // namespace shardwise::detail
