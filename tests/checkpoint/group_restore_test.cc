// Arrays over the devices of several processes, which are threads here, saved and restored.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
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

/// What each of two ranks has restored, or its error; each asks for its own list, over a line of
/// two devices that both hold all.
std::vector<std::string> restore_each(const std::filesystem::path& step,
                                      std::span<const std::vector<TensorRequest>> lists,
                                      std::span<const HostTensor> tensors) {
  return run_ranks(
      static_cast<int>(lists.size()), {}, [&](std::shared_ptr<SocketTransport> transport) {
        const std::size_t rank = static_cast<std::size_t>(transport->rank());
        const ProcessGroup group(std::move(transport));
        Devices devices(kDevices, {.threads = 1, .group = group});
        const CheckpointReader reader(step, {.threads = 1});
        const auto arrays = reader.restore(devices, lists[rank], {.processes_per_read = 2});
        for (std::size_t i = 0; i < arrays.size(); ++i) {
          const auto tensor = std::ranges::find(tensors, lists[rank][i].name, &HostTensor::name);
          EXPECT_TRUE(holds_addressable(arrays[i], *tensor)) << tensor->name;
        }
      });
}

// Processes that read for each other find each other's boxes by name and place, not by counting.
TEST(GroupRestore, ListsInAnotherOrderGiveEachTensorItsOwnValues) {
  const TempDir dir;
  std::vector<HostTensor> tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors.push_back(host_tensor(name, DType::f32, {300, 64}, "12", "-,-", Values::noise,
                                  static_cast<std::uint64_t>(name[0])));
  }
  CheckpointManager(dir / "root").save(1, sources_of(tensors));
  const auto request = [&](std::size_t t) {
    return TensorRequest{tensors[t].name, tensors[t].spec};
  };
  const std::vector<TensorRequest> lists[] = {
      {request(0), request(1), request(2), request(3)},
      {request(3), request(0), request(2), request(1)},
      {request(1), request(3), request(2), request(0)},
  };
  EXPECT_THAT(restore_each(dir / "root/step-00000001", lists, tensors), Each(""));
  // A tensor twice, under two shardings.
  TensorRequest cut = request(1);
  cut.spec.sharding = Sharding(Mesh::line(12), PartitionSpec::parse("-,0"));
  const std::vector<TensorRequest> twice[] = {{request(1), cut, request(0)},
                                              {cut, request(0), request(1)}};
  EXPECT_THAT(restore_each(dir / "root/step-00000001", twice, tensors), Each(""));
}

TEST(GroupRestore, ListsThatDifferAreOneErrorOnAll) {
  const TempDir dir;
  std::vector<HostTensor> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back(host_tensor(name, DType::f32, {300, 64}, "12", "-,-"));
  }
  CheckpointManager(dir / "root").save(1, sources_of(tensors));
  const auto request = [&](std::size_t t) {
    return TensorRequest{tensors[t].name, tensors[t].spec};
  };
  TensorRequest cut = request(1), missing = request(1), large = request(1);
  cut.spec.sharding = Sharding(Mesh::line(12), PartitionSpec::parse("0,-"));
  missing.name = "none";
  large.spec.shape = {301, 64};
  struct Case {
    const char* name;
    std::vector<TensorRequest> rank_0, rank_1;
    const char* needed;
  };
  const std::string all = "\"c\" f32 [300, 64], -,- on 12";
  const std::string longer =
      "found 2 requests on rank 0 and 3 on rank 1, needed are the same on all; rank 1 alone asks "
      "for " +
      all;
  const std::string shorter =
      "found 3 requests on rank 0 and 2 on rank 1, needed are the same on all; rank 0 alone asks "
      "for " +
      all;
  for (const Case& test : {
           Case{"longer",
                {request(0), request(1)},
                {request(0), request(1), request(2)},
                longer.c_str()},
           Case{"shorter",
                {request(0), request(1), request(2)},
                {request(0), request(1)},
                shorter.c_str()},
           Case{"other boxes",
                {request(1)},
                {cut},
                "rank 1 alone asks for \"b\" f32 [300, 64], 0,- on devices=12"},
           Case{"other tensors", {request(0)}, {request(1)}, "rank 0 alone asks for \"a\""},
           Case{"one twice", {request(0), request(0)}, {request(0)}, "found 2 requests on rank 0"},
           Case{"not there", {request(0)}, {missing}, "there is no tensor \"none\""},
           Case{"another shape", {large}, {request(1)}, "wanted is f32 [301, 64]"},
       }) {
    SCOPED_TRACE(test.name);
    const std::vector<TensorRequest> lists[] = {test.rank_0, test.rank_1};
    const auto errors = restore_each(dir / "root/step-00000001", lists, tensors);
    EXPECT_THAT(errors, Each(testing::HasSubstr(test.needed)));
    EXPECT_EQ(errors[0], errors[1]);
  }
}

// Both steps have the same tensors.
TEST(GroupRestore, AnotherCheckpointOrAnotherNumberIsOneErrorOnAll) {
  const TempDir dir;
  const HostTensor w = host_tensor("w", DType::f32, {300, 64}, "12", "-,-");
  CheckpointManager manager(dir / "root");
  manager.save(1, {w.source()});
  manager.save(2, {w.source()});
  const auto restore = [&](bool other_step, bool other_number) {
    return run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const bool is_last = transport->rank() == 2;
      const ProcessGroup group(std::move(transport));
      Devices devices(kDevices, {.threads = 1, .group = group});
      const CheckpointReader reader(
          dir / (is_last && other_step ? "root/step-00000002" : "root/step-00000001"),
          {.threads = 1});
      reader.restore(devices, std::vector<TensorRequest>{{"w", w.spec}},
                     {.processes_per_read = is_last && other_number ? 2 : 3});
    });
  };
  EXPECT_THAT(restore(false, false), Each(""));
  EXPECT_THAT(restore(true, false), Each(testing::HasSubstr("on rank 0 and ")));
  EXPECT_THAT(restore(false, true),
              Each(testing::HasSubstr("found processes_per_read 3 on rank 0 and 2 on rank 2")));
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
