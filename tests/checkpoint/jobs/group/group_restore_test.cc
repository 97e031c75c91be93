// Arrays over the devices of several processes, which are threads here, saved and restored.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/faulty_file_system.h"
#include "testing/host_tensor.h"
#include "testing/random_shardings.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::Each;

constexpr std::int64_t kDevices = 12;

std::vector<HostTensor> model(RandomShardings& random, const Mesh& mesh) {
  std::vector<HostTensor> tensors;
  for (int t = 0; t < 3; ++t) {
    const Shape shape{random.draw(1, 200), random.draw(1, 90)};
    tensors.push_back(host_tensor("t" + std::to_string(t), t == 1 ? DType::bf16 : DType::f32, shape,
                                  mesh.to_string(), random.spec_with_parts(mesh, 2).to_string(),
                                  Values::noise, static_cast<std::uint64_t>(t)));
  }
  return tensors;
}

Mesh mesh_within(RandomShardings& random) {
  for (;;) {
    Mesh mesh = random.mesh();
    bool fits = mesh.size() <= kDevices;
    for (std::int64_t p = 0; fits && p < mesh.size(); ++p) fits = mesh.device_at(p) < kDevices;
    if (fits) return mesh;
  }
}

/// Runs on every rank, with devices and a manager of the same group.
void on_ranks(int ranks, const std::filesystem::path& root,
              const std::function<void(Devices&, CheckpointManager&)>& run) {
  const auto errors = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const ProcessGroup group(std::move(transport));
    Devices devices(kDevices, {.threads = 1, .group = group});
    CheckpointManager manager(root, {.write = {.threads = 1}, .group = group, .devices = kDevices});
    run(devices, manager);
  });
  EXPECT_THAT(errors, Each(""));
}

// Any number of processes, mesh and sharding to any other: each process saves and restores the
// shards of its own devices.
TEST(GroupRestore, OntoAnyOtherNumberOfProcesses) {
  RandomShardings random(31);
  for (int round = 0; round < 25; ++round) {
    const TempDir dir;
    const Mesh mesh = mesh_within(random);
    const std::vector<HostTensor> tensors = model(random, mesh);
    const int savers = static_cast<int>(random.draw(1, 4)),
              readers = static_cast<int>(random.draw(1, 4));
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << savers << " to " << readers);
    on_ranks(savers, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
      manager.save(1, addressable_sources(devices, tensors));
    });
    EXPECT_TRUE(verify_checkpoint(dir / "root/step-00000001").ok());
    const Mesh other = mesh_within(random);
    std::vector<TensorRequest> requests;
    for (const HostTensor& tensor : tensors) {
      const Sharding to(other, random.spec_with_parts(other, 2));
      requests.push_back({tensor.name, {tensor.spec.dtype, tensor.spec.shape, to}});
    }
    on_ranks(readers, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
      const CheckpointReader reader(manager.latest()->step.directory, {.threads = 1});
      const std::vector<ShardedArray> arrays = reader.restore(devices, requests);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        EXPECT_TRUE(holds_addressable(arrays[t], tensors[t])) << tensors[t].name;
      }
    });
  }
}

// Training that goes on over another number of processes, with programs in between.
TEST(GroupRestore, ReadsNoMoreThanTheDevicesOfTheProcessHold) {
  const TempDir dir;
  const HostTensor rows = host_tensor("w", DType::f32, {1200, 64}, "12", "0,-");
  on_ranks(4, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
    const auto w = ShardedArray::from_host(devices, rows.spec, *rows.data);
    manager.save(1, {tensor_source("w", w)}, {.codec = Codec::none});
  });
  on_ranks(4, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
    const CheckpointReader reader(manager.latest()->step.directory, {.threads = 1});
    const ShardedArray w = reader.restore(devices, "w", rows.spec.sharding);
    EXPECT_TRUE(holds_addressable(w, rows));
    EXPECT_EQ(reader.stats().decoded_bytes, 1200u * 64 * 4 / 4);
  });
}

}  // namespace
}  // namespace shardwise
