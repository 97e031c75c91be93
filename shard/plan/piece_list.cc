#include "shardwise/shard/plan/piece_list.h"

#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/shard_boxes.h"

namespace shardwise {

PieceList::PieceList(std::span<const Piece> pieces, std::size_t rank) : boxes_(rank) {
  places_.reserve(pieces.size());
  boxes_.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    places_.push_back(piece.place);
    boxes_.push_back(piece.box);
  }
}

PieceList::PieceList(const Sharding& sharding, const Shape& shape) : boxes_(shape.size()) {
  const Mesh& mesh = sharding.mesh();
  const std::size_t pieces = detail::list_size(mesh.size(), "the pieces of a mesh");
  places_.reserve(pieces);
  boxes_.reserve(pieces);
  for (const Box& box : ShardBoxes(sharding, shape)) boxes_.push_back(box);
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    places_.push_back(mesh.is_abstract() ? p : mesh.device_at(p));
  }
}

}  // namespace shardwise
