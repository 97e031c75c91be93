// Which box of a tensor does each device hold, and what has to move to hold it otherwise?
#include <iostream>

#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/sharding.h"

using namespace shardwise;

int main() {
  const Mesh mesh = Mesh::parse("data=2,model=3");
  const Shape shape{6, 8};

  // Rows over "data", columns over "model": 8 columns over 3 devices are 3, 3 and 2.
  const Sharding by_both(mesh, PartitionSpec::parse("data,model"));
  for (DeviceId device = 0; device < mesh.size(); ++device) {
    std::cout << "device " << device << " holds " << to_string(by_both.box(device, shape)) << '\n';
  }

  // The same tensor, cut by rows over all six devices.
  const Sharding by_rows(mesh, PartitionSpec::parse("data+model,-"));
  const auto plan = TransferPlan::reshard(by_both, by_rows, shape);
  std::cout << plan.copies().size() << " copies, " << plan.moved_elements() << " of "
            << num_elements(shape) << " elements change place (" << name(plan.classify()) << ")\n";
  for (const Copy& copy : plan.copies_to(3)) {
    std::cout << "device 3 takes " << to_string(copy.box) << " from device "
              << plan.sources().place(static_cast<std::size_t>(copy.source)) << '\n';
  }
}
