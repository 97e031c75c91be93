#include "shardwise/shard/notation/xla_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "shardwise/shard/detail/axis_ref.h"
#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/detail/spec_axes.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

void check_expressible(const Sharding& sharding) {
  const UnevenPolicy::Kind kind = sharding.policy().kind();
  if (kind == UnevenPolicy::Kind::ceil || kind == UnevenPolicy::Kind::strict) return;
  if (sharding.is_fully_replicated()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("XLA text of \"{}\": XLA cuts by the policy ceil; needed is a sharding "
                          "under it",
                          sharding.to_string()));
}

/// Mesh positions in order of tiles, the replicas of a tile in mesh order.
DeviceOrder positions_by_tile(const Sharding& sharding) {
  std::vector<detail::SpecAxis> parts = detail::resolve(sharding.mesh(), sharding.spec());
  const std::vector<detail::SpecAxis> rest = detail::unused(sharding.mesh(), parts);
  parts.insert(parts.end(), rest.begin(), rest.end());
  std::erase_if(parts, [](const detail::SpecAxis& part) { return part.size == 1; });
  std::vector<std::size_t> by_stride(parts.size());
  std::iota(by_stride.begin(), by_stride.end(), std::size_t{0});
  std::sort(by_stride.begin(), by_stride.end(),
            [&parts](std::size_t a, std::size_t b) { return parts[a].stride > parts[b].stride; });
  std::vector<std::int64_t> dims(parts.size()), perm(parts.size());
  for (std::size_t i = 0; i < by_stride.size(); ++i) {
    dims[i] = parts[by_stride[i]].size;
    perm[by_stride[i]] = static_cast<std::int64_t>(i);
  }
  return DeviceOrder::transposed(dims, perm);
}

/// "{devices=[2,1,4]" and " last_tile_dim_replicate}" around the devices.
std::string with_dims(const Sharding& sharding, const std::string& devices) {
  std::string text = "{devices=[";
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
    text += fmt::format("{}{}", dim == 0 ? "" : ",", sharding.tiles(dim));
  }
  const std::int64_t replicas = sharding.num_replicas();
  if (replicas > 1) text += fmt::format(",{}", replicas);
  return text + "]" + devices + (replicas > 1 ? " last_tile_dim_replicate}" : "}");
}

/// The text of a kind that is written as a word; else empty.
std::string text_of_kind(const XlaSharding& sharding) {
  if (sharding.type == ShardingType::manual) return "{manual}";
  if (sharding.type == ShardingType::unknown) return "{unknown}";
  if (sharding.type != ShardingType::maximal) return "";
  return fmt::format("{{maximal device={}}}", sharding.placement->mesh().device_at(0));
}

}  // namespace

std::string to_xla_v1(const Sharding& sharding) {
  check_expressible(sharding);
  if (sharding.is_fully_replicated()) return "{replicated}";
  const DeviceOrder order = positions_by_tile(sharding);
  std::vector<DeviceId> ids;
  ids.reserve(detail::list_size(order.size(), "the devices of an XLA text"));
  for (std::int64_t i = 0; i < order.size(); ++i) {
    ids.push_back(sharding.mesh().device_at(order.device_at(i)));
  }
  const std::ptrdiff_t group = sharding.num_replicas();
  for (auto first = ids.begin(); first != ids.end(); first += group) {
    std::sort(first, first + group);
  }
  return with_dims(sharding, fmt::format("{}", fmt::join(ids, ",")));
}

std::string to_xla_v2(const Sharding& sharding) {
  check_expressible(sharding);
  if (sharding.is_fully_replicated()) return "{replicated}";
  return with_dims(sharding, "<=" + positions_by_tile(sharding).to_string());
}

std::string to_xla_v1(const XlaSharding& sharding) {
  const std::string kind = text_of_kind(sharding);
  return kind.empty() ? to_xla_v1(*sharding.placement) : kind;
}

std::string to_xla_v2(const XlaSharding& sharding) {
  const std::string kind = text_of_kind(sharding);
  return kind.empty() ? to_xla_v2(*sharding.placement) : kind;
}

std::string to_xla_v3(const Sharding& sharding) {
  check_expressible(sharding);
  std::string text = "{mesh[";
  const Mesh& mesh = sharding.mesh();
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    text += fmt::format("{}'{}'={}", axis == 0 ? "" : ",", mesh.axes()[axis].name,
                        mesh.axes()[axis].size);
  }
  text += "], ";
  // A mesh without axes has one device. Without device ids its text would stand for any mesh.
  if (!mesh.is_abstract() && (mesh.rank() == 0 || !mesh.devices().is_iota())) {
    text += fmt::format("device_ids=({}), ", mesh.devices().to_string());
  }
  text += "[";
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
    text += dim == 0 ? "{" : ", {";
    for (std::size_t i = 0; i < sharding.spec()[dim].size(); ++i) {
      const detail::AxisRef ref = detail::parse_axis_ref(sharding.spec()[dim][i], "axis");
      const std::string& name = mesh.axes()[mesh.axis_index(ref.axis)].name;
      text += fmt::format("{}'{}'", i == 0 ? "" : ", ", name);
      if (ref.size > 0) text += fmt::format(":({}){}", ref.pre, ref.size);
    }
    text += "}";
  }
  return text + "]}";
}

}  // namespace shardwise
