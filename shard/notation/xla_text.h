#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/xla_sharding.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// A sharding as XLA writes it: its kind and, if the kind has one, its placement.
struct XlaSharding {
  ShardingType type;
  std::optional<Sharding> placement;  ///< absent for manual
};

/// Reads XLA's sharding text for a tensor of this rank over the devices of a mesh:
///
/// - "{replicated}", "{maximal device=3}", "{manual}", "{unknown}" (taken as replicated);
/// - V1, a list of device ids: "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}";
/// - V2, compact, over positions of the mesh: "{devices=[2,1,4]<=[4,2]T(1,0)
/// last_tile_dim_replicate}";
/// - V3, over a mesh of its own: "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'},
/// {'b':(1)2}]}",
///   with "replicated={..}" and "manual={..}".
///
/// `last_tile_dims={..}` of kinds replicated and manual is read, `metadata={..}` skipped. Throws
/// invalid_argument if the text has another form or another rank, if the numbers of tiles and
/// devices differ, or if a device repeats or is not in the mesh; unsupported for tuples, unreduced
/// and shard_as.
XlaSharding parse_xla_text(std::string_view text, const Mesh& mesh, std::size_t rank);

/// "{replicated}" or "{devices=[2,1,4]0,2,.. last_tile_dim_replicate}" with the device ids, each
/// group of replicas ascending, as PyTorch/XLA prints. "{replicated}" names no devices: read over
/// the sharding's own mesh it gives the same sharding. O(devices). Throws unsupported under
/// policies that XLA does not have; as Mesh::devices() for an abstract mesh.
std::string to_xla_v1(const Sharding& sharding);

/// The same over mesh positions in compact, canonical form, "{devices=[2,1,4]<=[4,2]T(1,0) ..}", as
/// JAX prints. O(rank). Throws unsupported as above.
std::string to_xla_v2(const Sharding& sharding);

/// As above; "{maximal device=3}", "{manual}" or "{unknown}" if the kind is one of these.
std::string to_xla_v1(const XlaSharding& sharding);
std::string to_xla_v2(const XlaSharding& sharding);

/// The named form: "{mesh['a'=2,'b'=4], [{'a'}, {}]}". Throws unsupported as above.
std::string to_xla_v3(const Sharding& sharding);

/// "P('data', None, ('a', 'b'))", as JAX prints a spec. Sub-axes, for which JAX has no notation,
/// are written as names: 'x:(2)4'.
std::string to_jax_text(const PartitionSpec& spec);

/// Reads JAX's form, also as "PartitionSpec(..)" and as PyTorch/XLA's bare tuple
/// "(0, None, ('a', 1))": None and () leave a dim whole, numbers are axis numbers. Throws
/// invalid_argument, unsupported for UNCONSTRAINED and for unreduced or reduced axes, which place
/// nothing.
PartitionSpec parse_jax_text(std::string_view text);

}  // namespace shardwise
