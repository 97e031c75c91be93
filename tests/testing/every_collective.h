#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/manual.h"
#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

/// Sums that depend on their order, through every collective, on six devices.
inline std::vector<ShardedArray> run_every_collective(Devices& devices) {
  const Mesh mesh = Mesh::parse("a=2,b=3");
  const Shape shape{7, 9};
  const PartitionSpec rows = PartitionSpec::parse("a,-");
  const auto x = ShardedArray::from_callback(
      devices, {DType::f32, shape, Sharding(mesh, rows)}, [](const BoxView& view) {
        for (std::int64_t i = 0; i < view.box.num_elements(); ++i) {
          reinterpret_cast<float*>(view.data)[i] =
              1.0f / static_cast<float>(1 + i + 7 * view.box.begin(0));
        }
      });
  ManualRegion region(devices, mesh);
  const auto partial = region.map(
      "scale", {region.input(x)}, {{DType::f32, shape, rows}}, [](const LocalContext& context) {
        const ConstBoxView& in = context.inputs[0];
        for (std::int64_t i = 0; i < in.box.num_elements(); ++i) {
          reinterpret_cast<float*>(context.outputs[0].data)[i] =
              reinterpret_cast<const float*>(in.data)[i] / static_cast<float>(3 + context.device);
        }
      })[0];
  const auto sum = region.all_reduce(partial, {"b"}, Reduction::sum);
  const auto part = region.reduce_scatter(partial, "b", 1, Reduction::sum);
  const std::vector<std::int64_t> next{1, 2, -1};
  const ManualRegion::Value values[] = {sum, part, region.all_gather(part, "b", 1),
                                        region.all_to_all(part, "b", 0, 1),
                                        region.permute(partial, "b", next)};
  region.run();
  std::vector<ShardedArray> arrays;
  for (const ManualRegion::Value value : values) arrays.push_back(region.output(value));
  return arrays;
}

}  // namespace shardwise
