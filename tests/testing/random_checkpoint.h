#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/box_copy.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/random_shardings.h"

namespace shardwise {

/// Random tensors as a random writer may have cut them: shardings, or pieces of any sizes; chunks
/// of any extents, both layouts, both codecs, all dtypes.
class RandomCheckpoints : public RandomShardings {
 public:
  using RandomShardings::RandomShardings;

  HandMadeTensor tensor(std::string name) {
    HandMadeTensor tensor{.name = std::move(name)};
    const auto dtypes = all_dtypes();
    tensor.dtype =
        dtypes[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(dtypes.size()) - 1))];
    const auto rank = static_cast<std::size_t>(draw(0, 4));
    tensor.shape = shape(rank);
    tensor.data = draw(0, 1) == 0 ? counting_values(tensor.dtype, tensor.shape)
                                  : scattered_values(tensor.dtype, tensor.shape);
    if (num_elements(tensor.shape) != 0) {
      if (draw(0, 1) == 0) {
        for (const auto& piece : sharding(rank).distinct_pieces(tensor.shape)) {
          tensor.pieces.push_back(piece.box);
        }
      } else {
        cut(Box::whole(tensor.shape), draw(0, 3), tensor.pieces);
        std::shuffle(tensor.pieces.begin(), tensor.pieces.end(), engine());
      }
    }
    if (rank > 0 && draw(0, 3) != 0) {
      for (std::size_t d = 0; d < rank; ++d) {
        tensor.chunk.push_back(draw(1, std::max<std::int64_t>(1, tensor.shape[d])));
      }
      tensor.codec = draw(0, 1) == 0 ? detail::StoredCodec::none : detail::StoredCodec::zstd;
    }
    return tensor;
  }

 private:
  void cut(const Box& box, std::int64_t depth, std::vector<Box>& pieces) {
    if (depth == 0 || box.rank() == 0) {
      pieces.push_back(box);
      return;
    }
    const auto dim = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(box.rank()) - 1));
    if (box.extent(dim) < 2) return cut(box, depth - 1, pieces);
    Index middle_end = box.end(), middle_begin = box.begin();
    middle_end[dim] = middle_begin[dim] = draw(box.begin(dim) + 1, box.end(dim) - 1);
    cut(Box(box.begin(), middle_end), depth - 1, pieces);
    cut(Box(middle_begin, box.end()), depth - 1, pieces);
  }
};

/// The elements of a box, taken one by one from the whole tensor.
inline std::vector<std::byte> elements_of(const HandMadeTensor& tensor, const Box& box) {
  const std::size_t element = size_bytes(tensor.dtype);
  const Dims strides = row_major_strides(tensor.shape);
  std::vector<std::byte> out(num_bytes(box.shape(), element));
  Index at = box.begin();
  for (std::size_t i = 0; i < out.size() / element; ++i) {
    std::int64_t from = 0;
    for (std::size_t d = 0; d < at.size(); ++d) from += at[d] * strides[d];
    std::memcpy(out.data() + i * element,
                tensor.data.data() + static_cast<std::size_t>(from) * element, element);
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < box.end(d)) break;
      at[d] = box.begin(d);
    }
  }
  return out;
}

}  // namespace shardwise
