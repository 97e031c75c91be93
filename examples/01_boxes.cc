// Which box of a tensor does each device hold, and what has to move to hold it otherwise?
#include <iostream>

#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/sharding.h"

namespace sw = shardwise;

int main() {
  const sw::Mesh mesh = sw::Mesh::parse("data=2,model=3");
  const sw::Shape shape{6, 8};

  // Rows over "data", columns over "model": 8 columns over 3 devices are 3, 3 and 2.
  const sw::Sharding by_both(mesh, sw::PartitionSpec::parse("data,model"));
  for (sw::DeviceId device = 0; device < mesh.size(); ++device) {
    std::cout << "device " << device << " holds " << sw::to_string(by_both.box(device, shape))
              << '\n';
  }

  // The same tensor, cut by rows over all six devices.
  const sw::Sharding by_rows(mesh, sw::PartitionSpec::parse("data+model,-"));
  const auto plan = sw::TransferPlan::reshard(by_both, by_rows, shape);
  std::cout << plan.copies().size() << " copies, " << plan.moved_elements() << " of "
            << sw::num_elements(shape) << " elements change place (" << sw::name(plan.classify())
            << ")\n";
  for (const sw::Copy& copy : plan.copies_to(3)) {
    std::cout << "device 3 takes " << to_string(copy.box) << " from device "
              << plan.sources().place(static_cast<std::size_t>(copy.source)) << '\n';
  }
}
