#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/shard_boxes.h"
#include "shardwise/shard/sharding.h"
#include "shardwise/shard/xla_text.h"

namespace shardwise::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The numbers from `next` on as nested lists of this shape.
template <class Number>
Json nested(std::span<const std::int64_t> dims, const Number*& next) {
  if (dims.empty()) return *next++;
  Json list = Json::array();
  for (std::int64_t i = 0; i < dims[0]; ++i) list.push_back(nested(dims.subspan(1), next));
  return list;
}

Json tile_assignment_json(const Sharding& sharding) {
  const TileAssignment assignment = tile_assignment(sharding);
  const DeviceId* next = assignment.devices.data();
  return nested(std::span(assignment.dims), next);
}

Json group_assignment_json(const Sharding& sharding, std::size_t groups) {
  if (groups == 0) return Json::array();
  std::vector<std::int64_t> numbers(groups);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::int64_t* next = numbers.data();
  return nested(std::span<const std::int64_t>(group_assignment_dims(sharding)), next);
}

/// Null where XLA has no text for the sharding.
template <class Print>
Json text_or_null(const Print& print) {
  try {
    return print();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return nullptr;
  }
}

/// What the options say, on one mesh: its kind, and where the tensor lies, if it says so.
XlaSharding requested(const ShardsOptions& options, const Shape& shape) {
  const Mesh mesh = parse_mesh(options.mesh, options.devices);
  const UnevenPolicy policy = UnevenPolicy::parse(options.policy);
  if (options.sharding) {
    XlaSharding parsed = parse_xla_text(*options.sharding, mesh, shape.size());
    if (parsed.placement) {
      parsed.placement = Sharding(parsed.placement->mesh(), parsed.placement->spec(), policy);
    }
    return parsed;
  }
  PartitionSpec spec = PartitionSpec::parse(*options.spec);
  if (options.short_spec) spec = spec.padded(shape.size());
  const Sharding sharding(mesh, std::move(spec), policy);
  return {sharding_type(sharding), sharding};
}

Json devices_json(const Sharding& sharding, const Shape& shape, DType dtype) {
  const Json padded = dims_json(sharding.shard_shape(shape));
  Json devices = Json::object();
  const ShardBoxes boxes(sharding, shape);
  for (auto it = boxes.begin(); it != boxes.end(); ++it) {
    Json runs = Json::array();
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      Json& of_dim = runs.emplace_back(Json::array());
      if (it->extent(dim) > 0) of_dim.push_back({it->begin(dim), it->end(dim)});
    }
    devices[std::to_string(sharding.mesh().device_at(it.position()))] = {
        {"box", box_json(*it)},
        {"runs", std::move(runs)},
        {"padded_shape", padded},
        {"replica_id",
         {{"xla", xla_replica_id(sharding, it.position())},
          {"jax", jax_replica_id(sharding, it.position(), shape)}}},
        {"bytes", num_bytes(it->shape(), size_bytes(dtype))}};
  }
  return devices;
}

void print_as_json(const XlaSharding& xla, const Shape& shape, DType dtype) {
  Json result = {{"sharding_type", name(xla.type)}, {"declared_type", name(xla.type)}};
  if (xla.placement) {
    const Sharding& sharding = *xla.placement;
    const auto groups = replication_groups(sharding);
    const bool by_tiles = xla.type == sharding_type(sharding);
    if (by_tiles) result["declared_type"] = name(declared_type(sharding));
    result["shard_shape"] = dims_json(sharding.shard_shape(shape));
    result["tile_assignment"] = tile_assignment_json(sharding);
    result["group_assignment"] = group_assignment_json(sharding, groups.size());
    result["replication_groups"] = groups;
    result["fully_replicated"] = sharding.is_fully_replicated();
    result["num_replicas"] = sharding.num_replicas();
    result["mesh"] = sharding.mesh().to_string();
    result["spec"] = sharding.spec().to_string();
    result["policy"] = sharding.policy().to_string();
  }
  result["shape"] = dims_json(shape);
  result["dtype"] = name(dtype);
  result["v1"] = text_or_null([&] { return to_xla_v1(xla); });
  result["v2"] = text_or_null([&] { return to_xla_v2(xla); });
  result["devices"] =
      xla.placement ? devices_json(*xla.placement, shape, dtype) : Json(Json::object());
  print_json(result);
}

void print_as_table(const Sharding& sharding, const Shape& shape, DType dtype) {
  const Mesh& mesh = sharding.mesh();
  Table table({"device", "mesh position", "box", "shape", "elements", "bytes", "replica"});
  const ShardBoxes boxes(sharding, shape);
  for (auto it = boxes.begin(); it != boxes.end(); ++it) {
    std::string coordinates;
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      coordinates += fmt::format("{}{}={}", axis == 0 ? "" : " ", mesh.axes()[axis].name,
                                 mesh.coordinate(it.position(), axis));
    }
    table.add(
        {std::to_string(mesh.device_at(it.position())), coordinates, to_string(*it),
         to_string(it->shape()), std::to_string(it->num_elements()),
         human_bytes(num_bytes(it->shape(), size_bytes(dtype))),
         fmt::format("{} of {}", sharding.replica_id(it.position()), sharding.num_replicas())});
  }
  fmt::print("{} {} cut as {}: blocks of {}, {} {} each\n\n", name(dtype), to_string(shape),
             sharding.to_string(), to_string(sharding.shard_shape(shape)), sharding.num_replicas(),
             sharding.num_replicas() == 1 ? "copy" : "copies");
  table.print();
}

}  // namespace

int run_shards(const ShardsOptions& options) {
  const Shape shape = parse_shape(options.shape);
  const DType dtype = parse_dtype(options.dtype);
  num_bytes(shape, size_bytes(dtype));  // throws where the whole tensor cannot be addressed
  const XlaSharding xla = requested(options, shape);
  if (options.json) {
    print_as_json(xla, shape, dtype);
  } else if (xla.placement) {
    print_as_table(*xla.placement, shape, dtype);
  } else {
    fmt::print("{}: the program says per device what it holds\n", name(xla.type));
  }
  return 0;
}

}  // namespace shardwise::tools
