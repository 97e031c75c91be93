#pragma once

#include <cstdint>

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise {

// Kernels that read or write by index. Ids are i32 or i64. `extent` is the whole extent of the
// indexed dim: an id outside [0, extent) throws invalid_argument, naming the id, its index and the
// extent, if the shard needs it. Ids inside the dim but outside a shard's box are another device's:
// take and take_along give zeros for them, so that the bitwise or over the devices is the whole;
// the scatters leave them out, so that the sum is.

/// x with dim `dim` replaced by the dims of ids: out[.., i.., ..] = x[.., ids[i..], ..].
void take(const ConstShardView& x, const ConstShardView& ids, std::size_t dim, std::int64_t extent,
          const ShardView& out);

/// The gradient of take: out = 0, then out[.., ids[i..], ..] += updates[.., i.., ..], in the
/// row-major order of ids. f16 and bf16 are summed in f32 and rounded once.
void scatter_add(const ConstShardView& ids, const ConstShardView& updates, std::size_t dim,
                 std::int64_t extent, const ShardView& out);

/// out = x, then out[.., ids[i..], ..] is combined with updates[.., i.., ..], in the row-major
/// order of ids; boxes of x and out agree, and ids are whole. Booleans allow set, min and max. f16
/// and bf16 are computed in f32 and rounded once.
void scatter(const ScatterIntoAttributes& a, std::int64_t extent, const ConstShardView& x,
             const ConstShardView& ids, const ConstShardView& updates, const ShardView& out);

/// out[.., i, ..] = x[.., ids[.., i, ..], ..] along `dim`; all of one rank. In the other dims the
/// boxes of all three agree. (jnp.take_along_axis, torch.gather with those dims equal.)
void take_along(const ConstShardView& x, const ConstShardView& ids, std::size_t dim,
                std::int64_t extent, const ShardView& out);

/// The gradient of take_along: out = 0, then out[.., ids[.., i, ..], ..] += updates[.., i, ..].
void scatter_add_along(const ConstShardView& ids, const ConstShardView& updates, std::size_t dim,
                       std::int64_t extent, const ShardView& out);

/// The stable order of the elements along `dim`, as i32; in all other dims the boxes agree, and
/// along `dim` both are whole. NaN is the largest: last in ascending order,
/// first in descending order.
enum class SortOrder { ascending, descending };
void argsort(const ConstShardView& in, std::size_t dim, SortOrder order, const ShardView& out);

/// Random u32 that depend only on the key and the element's row-major index in the whole tensor:
/// element i is word i % 4 of Philox4x32-10 with counter i / 4 (Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011).
void random_bits(std::uint64_t key, const Shape& shape, const ShardView& out);

}  // namespace shardwise
