// A matrix product with the contracted dim cut over "model": each device multiplies its own parts,
// and an all-reduce adds the products.
#include <iostream>
#include <vector>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/manual.h"

namespace sw = shardwise;

int main() {
  sw::Devices devices(4);
  const sw::Mesh mesh = sw::Mesh::parse("data=2,model=2");
  const auto place = [&](const sw::Shape& shape, const char* spec,
                         const std::vector<float>& values) {
    return sw::ShardedArray::from_host(
        devices, {sw::DType::f32, shape, sw::Sharding(mesh, sw::PartitionSpec::parse(spec))},
        std::as_bytes(std::span(values)));
  };
  const auto x = place({2, 4}, "data,model", {1, 2, 3, 4, 5, 6, 7, 8});
  const auto w = place({4, 2}, "model,-", {1, 0, 0, 1, 1, 0, 0, 1});

  sw::ManualRegion region(devices, mesh);
  const auto partial = region.map(
      "x w", {region.input(x), region.input(w)},
      {{sw::DType::f32, {2, 2}, sw::PartitionSpec::parse("data,-")}},
      [](const sw::LocalContext& c) {
        const auto matrix = [](const auto& view) {
          return sw::ConstMatrix{reinterpret_cast<const float*>(view.data), view.box.extent(0),
                                 view.box.extent(1)};
        };
        sw::gemm(
            matrix(c.inputs[0]), matrix(c.inputs[1]),
            sw::Matrix{reinterpret_cast<float*>(c.outputs[0].data), c.outputs[0].box.extent(0), 2});
      });
  const auto product = region.all_reduce(partial[0], {"model"}, sw::Reduction::sum);
  region.run();

  const auto result = region.output(product).to_host();
  const auto* y = reinterpret_cast<const float*>(result.data());
  std::cout << y[0] << ' ' << y[1] << '\n' << y[2] << ' ' << y[3] << '\n';
  std::cout << "device 0 received " << devices.at(0).traffic().received_bytes << " bytes\n";
}
