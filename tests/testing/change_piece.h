#pragma once

#include <cstddef>

#include "shardwise/checkpoint/detail/format/manifest.h"

namespace shardwise {

/// Calls change(PieceEntry&) for a piece of a tensor, which is put back.
template <class Change>
void change_piece(detail::TensorEntry& tensor, std::size_t number, const Change& change) {
  detail::PieceEntry piece = tensor.pieces[number];
  change(piece);
  tensor.pieces.set(number, piece);
}

}  // namespace shardwise
