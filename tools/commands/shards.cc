#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/sharding.h"
#include "shardwise/shard/xla_sharding.h"

namespace shardwise::tools {

int run_shards(const ShardsOptions& options) {
  const Mesh mesh = parse_mesh(options.mesh, options.devices);
  const Sharding sharding(mesh, PartitionSpec::parse(options.spec));
  const Shape shape = parse_shape(options.shape);
  const DType dtype = parse_dtype(options.dtype);
  const Shape block = sharding.shard_shape(shape);
  num_bytes(shape, size_bytes(dtype));  // throws where the whole tensor cannot be addressed

  nlohmann::ordered_json devices = nlohmann::ordered_json::object();
  Table table({"device", "mesh position", "box", "shape", "elements", "bytes", "replica"});
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const DeviceId device = mesh.device_at(position);
    const Box box = sharding.box_at(position, shape);
    const std::size_t bytes = num_bytes(box.shape(), size_bytes(dtype));
    if (options.json) {
      devices[std::to_string(device)] = {{"box", box_json(box)},
                                         {"padded_shape", dims_json(block)},
                                         {"replica_id",
                                          {{"xla", xla_replica_id(sharding, position)},
                                           {"jax", jax_replica_id(sharding, position, shape)}}},
                                         {"bytes", bytes}};
      continue;
    }
    std::string coordinates;
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      coordinates += fmt::format("{}{}={}", axis == 0 ? "" : " ", mesh.axes()[axis].name,
                                 mesh.coordinate(position, axis));
    }
    table.add({std::to_string(device), coordinates, to_string(box), to_string(box.shape()),
               std::to_string(box.num_elements()), human_bytes(bytes),
               fmt::format("{} of {}", sharding.replica_id(position), sharding.num_replicas())});
  }
  if (options.json) {
    const nlohmann::ordered_json result = {{"mesh", mesh.to_string()},
                                           {"spec", sharding.spec().to_string()},
                                           {"shape", dims_json(shape)},
                                           {"dtype", name(dtype)},
                                           {"shard_shape", dims_json(block)},
                                           {"fully_replicated", sharding.is_fully_replicated()},
                                           {"num_replicas", sharding.num_replicas()},
                                           {"devices", std::move(devices)}};
    print_json(result);
    return 0;
  }
  fmt::print("{} {} cut as {}: blocks of {}, {} {} each\n\n", name(dtype), to_string(shape),
             sharding.to_string(), to_string(block), sharding.num_replicas(),
             sharding.num_replicas() == 1 ? "copy" : "copies");
  table.print();
  return 0;
}

}  // namespace shardwise::tools
