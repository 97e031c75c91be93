// Arrays over the devices of several processes, which are threads here, saved and restored.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/verify.h"
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
    CheckpointManager manager(root, {.threads = 1, .group = group, .devices = kDevices});
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
    const RestoreOptions options{.processes_per_read = static_cast<int>(random.draw(1, readers))};
    on_ranks(readers, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
      const CheckpointReader reader(manager.latest()->step.directory, {.threads = 1});
      const std::vector<ShardedArray> arrays = reader.restore(devices, requests, options);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        EXPECT_TRUE(holds_addressable(arrays[t], tensors[t])) << tensors[t].name;
      }
    });
  }
}

// What replicas hold is read once for each of them, for each host, or for the job.
TEST(GroupRestore, ReadsWhatSeveralProcessesHoldAsOftenAsItIsTold) {
  const TempDir dir;
  const HostTensor all = host_tensor("all", DType::f32, {1200, 64}, "12", "-,-"),
                   some = host_tensor("some", DType::f32, {3, 50000}, "data=4,model=3", "model,-"),
                   one = host_tensor("one", DType::f32, {1200, 64}, "12", "0,-");
  const std::vector<HostTensor> tensors{all, some, one};
  CheckpointManager(dir / "root").save(1, sources_of(tensors), {.codec = Codec::none});
  std::vector<TensorRequest> requests;
  for (const HostTensor& tensor : tensors) requests.push_back({tensor.name, tensor.spec});
  struct Case {
    int processes_per_read;
    std::size_t times;  // that "all" and "some", of which each process holds all, are read
    const char* text;
  };
  for (const Case& test :
       {Case{1, 4,
             "each process reads for itself: 3.8 MiB read, at most 0.9 MiB by one process, "
             "nothing sent"},
        Case{2, 2,
             "one of 2 processes reads: 2.0 MiB read, at most 0.6 MiB by one process, 1.7 MiB "
             "sent"},
        Case{9, 1,
             "one of 4 processes reads: 1.2 MiB read, at most 0.4 MiB by one process, 2.6 MiB "
             "sent"}}) {
    const RestoreOptions options{.processes_per_read = test.processes_per_read};
    std::atomic<std::size_t> read = 0;
    on_ranks(4, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
      const CheckpointReader reader(manager.latest()->step.directory, {.threads = 1});
      const std::vector<ShardedArray> arrays = reader.restore(devices, requests, options);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        EXPECT_TRUE(holds_addressable(arrays[t], tensors[t])) << tensors[t].name;
      }
      const RestoreTraffic traffic = restore_traffic(requests, kDevices, 4, options);
      EXPECT_EQ(traffic.read_bytes,
                test.times * (all.data->size() + some.data->size()) + one.data->size());
      EXPECT_EQ(traffic.sent_bytes, (4 - test.times) * (all.data->size() + some.data->size()));
      EXPECT_LE(reader.stats().decoded_bytes, traffic.most_read_bytes);
      EXPECT_EQ(traffic.to_string(), test.text);
      read += reader.stats().decoded_bytes;
    });
    EXPECT_EQ(read, test.times * (all.data->size() + some.data->size()) + one.data->size());
  }
}

// A box that is larger than a round of messages.
TEST(GroupRestore, SendsALargeBoxInParts) {
  const TempDir dir;
  const HostTensor w = host_tensor("w", DType::u8, {40, 1 << 20}, "12", "-,-", Values::ramp);
  CheckpointManager(dir / "root").save(1, {w.source()});
  on_ranks(3, dir / "root", [&](Devices& devices, CheckpointManager& manager) {
    const CheckpointReader reader(manager.latest()->step.directory, {.threads = 1});
    const auto arrays = reader.restore(devices, std::vector<TensorRequest>{{"w", w.spec}},
                                       {.processes_per_read = 3});
    EXPECT_TRUE(holds_addressable(arrays[0], w));
  });
}

TEST(GroupRestore, WhatFailsInOneProcessFailsInThoseThatItReadsFor) {
  const TempDir dir;
  const HostTensor w = host_tensor("w", DType::f32, {300, 64}, "12", "-,-");
  CheckpointManager(dir / "root").save(1, {w.source()}, {.codec = Codec::none});
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const bool fails = transport->rank() == 0;
    const ProcessGroup group(std::move(transport));
    Devices devices(kDevices, {.threads = 1, .group = group});
    const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
    ReadOptions options{.threads = 1};
    if (fails) options.file_system = files;
    const CheckpointReader reader(dir / "root/step-00000001", options);
    files->restart(1);
    reader.restore(devices, std::vector<TensorRequest>{{"w", w.spec}}, {.processes_per_read = 3});
  });
  EXPECT_THAT(errors[0], testing::HasSubstr("injected"));
  EXPECT_THAT(errors[1], testing::HasSubstr(errors[0]));
  EXPECT_THAT(errors[2], testing::HasSubstr(errors[0]));
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
