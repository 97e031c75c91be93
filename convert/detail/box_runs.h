#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "shardwise/shard/box.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Fills `out` with a box of the row-major tensor that begins at `offset` of the file. Runs that
/// are near each other are read together, with what is between them; that takes up to 512 KiB.
void read_box(File& file, std::uint64_t offset, const Shape& shape, std::size_t element_bytes,
              const Box& box, std::span<std::byte> out);

/// Calls body(box) for boxes that are the elements of `whole` in row-major order, each of at most
/// `most_bytes`. Requires room for one element. Nothing for a box without elements.
template <class Body>
void for_each_slab(const Box& whole, std::size_t element_bytes, std::size_t most_bytes,
                   Body&& body) {
  if (whole.empty()) return;
  // A slab is whole in the dims after `cut`, a range in that one, and one index in those before.
  std::size_t cut = whole.rank(), inner_bytes = element_bytes;
  while (cut > 0 && inner_bytes * as_size(whole.extent(cut - 1)) <= most_bytes) {
    --cut;
    inner_bytes *= as_size(whole.extent(cut));
  }
  if (cut == 0) {
    body(whole);
    return;
  }
  const std::size_t dim = cut - 1;
  const auto step = static_cast<std::int64_t>(most_bytes / inner_bytes);
  Box outer;
  for (std::size_t d = 0; d < dim; ++d) outer.push_back(whole.begin(d), whole.end(d));
  for_each_index(outer, [&](const Index& at) {
    Box slab = whole;
    for (std::size_t d = 0; d < dim; ++d) slab.set(d, at[d], at[d] + 1);
    for (std::int64_t begin = whole.begin(dim); begin < whole.end(dim); begin += step) {
      slab.set(dim, begin, std::min(begin + step, whole.end(dim)));
      body(std::as_const(slab));
    }
  });
}

}  // namespace shardwise::detail
