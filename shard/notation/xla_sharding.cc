#include "shardwise/shard/notation/xla_sharding.h"

#include <algorithm>

#include "shardwise/shard/detail/dim_cut.h"
#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/detail/spec_axes.h"

namespace shardwise {
namespace {

/// The axes in the order of a tile assignment, and the dims that they form.
struct Order {
  std::vector<std::int64_t> dims;
  std::size_t tile_dims = 0;  // the first dims: those that tile the tensor
  detail::Digits devices;     // position digits, the first dim's most significant
};

Order order_of(const Sharding& sharding) {
  const std::vector<detail::SpecAxis> used = detail::resolve(sharding.mesh(), sharding.spec());
  Order order;
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
    if (!sharding.spec()[dim].empty()) order.dims.push_back(sharding.tiles(dim));
  }
  order.tile_dims = order.dims.size();
  for (const detail::SpecAxis& part : used) order.devices.append(part.stride, part.size, true);
  const std::vector<detail::SpecAxis> rest = detail::unused(sharding.mesh(), used);
  std::size_t next = 0;
  for (std::size_t axis = 0; axis < sharding.mesh().rank(); ++axis) {
    // An axis of size 1 that the spec does not name also is a dim.
    const bool named = std::any_of(used.begin(), used.end(),
                                   [axis](const detail::SpecAxis& u) { return u.axis == axis; });
    if (!named && sharding.mesh().axes()[axis].size == 1) order.dims.push_back(1);
    for (; next < rest.size() && rest[next].axis == axis; ++next) {
      order.dims.push_back(rest[next].size);
      order.devices.append(rest[next].stride, rest[next].size, true);
    }
  }
  return order;
}

}  // namespace

std::string_view name(ShardingType type) {
  switch (type) {
    case ShardingType::replicated:
      return "REPLICATED";
    case ShardingType::maximal:
      return "MAXIMAL";
    case ShardingType::tuple:
      return "TUPLE";
    case ShardingType::tiled:
      return "TILED";
    case ShardingType::manual:
      return "MANUAL";
    case ShardingType::partial:
      return "PARTIAL";
    case ShardingType::unknown:
      return "UNKNOWN";
  }
  return "UNKNOWN";
}

ShardingType declared_type(const Sharding& sharding) {
  if (sharding.rank() == 0) return ShardingType::replicated;
  std::size_t whole = 0;
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) whole += sharding.spec()[dim].empty();
  if (order_of(sharding).dims.size() > sharding.rank()) return ShardingType::partial;
  if (sharding.mesh().size() == 1) return ShardingType::maximal;
  if (whole == sharding.rank()) return ShardingType::replicated;
  return whole > 0 ? ShardingType::partial : ShardingType::tiled;
}

ShardingType sharding_type(const Sharding& sharding) {
  if (sharding.is_fully_replicated()) return ShardingType::replicated;
  return sharding.num_replicas() > 1 ? ShardingType::partial : ShardingType::tiled;
}

TileAssignment tile_assignment(const Sharding& sharding) {
  Order order = order_of(sharding);
  TileAssignment assignment{std::move(order.dims), {}};
  assignment.devices.reserve(
      detail::list_size(sharding.mesh().size(), "the devices of a tile assignment"));
  for (std::int64_t i = 0; i < sharding.mesh().size(); ++i) {
    assignment.devices.push_back(sharding.mesh().device_at(order.devices.offset_of(i)));
  }
  return assignment;
}

std::vector<std::int64_t> group_assignment_dims(const Sharding& sharding) {
  if (declared_type(sharding) != ShardingType::partial) return {};
  std::vector<std::int64_t> dims;
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) dims.push_back(sharding.tiles(dim));
  return dims;
}

std::vector<std::vector<DeviceId>> replication_groups(const Sharding& sharding) {
  if (declared_type(sharding) != ShardingType::partial) return {};
  const std::vector<DeviceId> devices = tile_assignment(sharding).devices;
  std::vector<std::vector<DeviceId>> groups;
  const std::ptrdiff_t size = sharding.num_replicas();
  for (auto first = devices.begin(); first != devices.end(); first += size) {
    groups.emplace_back(first, first + size);
  }
  return groups;
}

std::int64_t xla_replica_id(const Sharding& sharding, std::int64_t position) {
  const Mesh& mesh = sharding.mesh();
  const std::int64_t id = sharding.replica_id(position);
  if (mesh.is_abstract() || mesh.devices().is_iota() || sharding.num_replicas() == 1) return id;
  const DeviceId device = mesh.device_at(position);
  Index tile = Index::filled(sharding.rank(), 0);
  for (std::size_t dim = 0; dim < tile.size(); ++dim) {
    tile[dim] = sharding.tile_index(position, dim);
  }
  std::int64_t smaller = 0;
  for (std::int64_t replica = 0; replica < sharding.num_replicas(); ++replica) {
    smaller += mesh.device_at(sharding.position_of(tile, replica)) < device;
  }
  return smaller;
}

std::int64_t jax_replica_id(const Sharding& sharding, std::int64_t position, const Shape& shape) {
  sharding.shard_shape(shape);  // checks the shape
  // The digits of the position that do not distinguish slices count the replicas, in mesh order.
  std::vector<detail::SpecAxis> telling;
  for (const detail::SpecAxis& part : detail::resolve(sharding.mesh(), sharding.spec())) {
    if (shape[part.dim] > 0) telling.push_back(part);
  }
  detail::Digits digits;
  for (const detail::SpecAxis& part : detail::unused(sharding.mesh(), telling)) {
    digits.append(part.stride, part.size, true);
  }
  return digits.at(position);
}

}  // namespace shardwise
