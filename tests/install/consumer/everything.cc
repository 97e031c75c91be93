#include <iostream>
#include <vector>

#include "shardwise/shardwise.h"

// One header and one target for every component: a step of training, saved and read.
int main() {
  using namespace shardwise;
  try {
    Devices devices(2);
    Tracer tracer(devices, {.mesh = Mesh::parse("data=2")});
    Tensor x = tracer.tensor({4, 2}, std::vector<float>(8, 1), "x", MemoryKind::loader);
    Tensor w = tracer.tensor({2}, std::vector<float>{1, 2}, "w", MemoryKind::parameter);
    mark_sharding(x, {{"data"}});
    w -= grad(sum(matmul(x, reshape(w, {2, 1}))), {w})[0] * 0.25;
    tracer.mark_step();
    CheckpointManager manager("checkpoints");
    manager.save(1, {tensor_source("w", w.array())}, {.existing = Existing::replace});
    const CheckpointReader reader(manager.latest()->step.directory);
    const bool same = reader.read<float>("w") == std::vector<float>{0, 1};
    export_model(reader, "model.safetensors", {.existing = Existing::replace});
    std::cout << w.shape() << (same ? " is saved\n" : " is another\n");
    return same ? 0 : 1;
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
