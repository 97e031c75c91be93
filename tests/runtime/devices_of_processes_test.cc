// Devices that are spread over processes, which are threads here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "shardwise/runtime/manual.h"
#include "shardwise/runtime/sharded_array.h"
#include "testing/errors.h"
#include "testing/every_collective.h"
#include "testing/random_shardings.h"
#include "testing/same_shards.h"
#include "testing/socket_transport.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// Runs on every rank, with its part of `devices` devices; expects that none fails.
void on_ranks(int ranks, std::int64_t devices, const std::function<void(Devices&)>& run) {
  const auto errors = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    Devices own(devices, {.threads = 1, .group = ProcessGroup(std::move(transport))});
    run(own);
  });
  EXPECT_THAT(errors, Each(""));
}

std::vector<std::int32_t> counting(const Shape& shape) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(num_elements(shape)));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST(DevicesOfProcesses, AreConsecutive) {
  on_ranks(3, 8, [](Devices& devices) {
    EXPECT_EQ(devices.size(), 8);
    const std::vector<std::vector<DeviceId>> of = {{0, 1, 2}, {3, 4, 5}, {6, 7}};
    const int rank = devices.group().rank();
    EXPECT_EQ(std::vector(devices.addressable().begin(), devices.addressable().end()),
              of[static_cast<std::size_t>(rank)]);
    for (DeviceId id = 0; id < 8; ++id) {
      EXPECT_EQ(devices.process_of(id), static_cast<int>(id / 3));
      if (devices.is_addressable(id)) {
        EXPECT_EQ(devices.at(id).id(), id);
        EXPECT_EQ(devices.at(id).process(), rank);
      } else {
        EXPECT_EQ(message_of(ErrorCode::not_found, [&] { devices.at(id); }),
                  "find a device: device " + std::to_string(id) + " is of process " +
                      std::to_string(id / 3) + ", this is process " + std::to_string(rank));
      }
    }
    EXPECT_THAT(message_of(ErrorCode::not_found, [&] { devices.process_of(8); }),
                HasSubstr("not among the 8 devices"));
  });
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    Devices(2, {.group = ProcessGroup(std::move(transport))});
  });
  EXPECT_THAT(errors, Each(HasSubstr("found 2 devices for 3 processes, needed one for each")));
}

TEST(DevicesOfProcesses, HoldTheShardsOfTheirOwn) {
  on_ranks(2, 4, [](Devices& devices) {
    const Sharding rows(Mesh::parse("4"), PartitionSpec::parse("0,-"));
    const auto values = counting({8, 3});
    const auto x = ShardedArray::from_host(devices, {DType::i32, {8, 3}, rows},
                                           std::as_bytes(std::span(values)));
    const std::int64_t first = 2 * devices.group().rank(), other = 2 - first;
    for (std::int64_t p = 0; p < 4; ++p) EXPECT_EQ(x.is_addressable(p), p / 2 == first / 2);
    EXPECT_EQ(reinterpret_cast<const std::int32_t*>(x.shard(first).data)[0], 1 + first * 6);
    EXPECT_EQ(x.buffer(other), nullptr);
    EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { x.shard(other); }),
              "look at a shard: position " + std::to_string(other) +
                  " of the i32 [8, 3] array, on device " + std::to_string(other) +
                  ", is in another process");
    std::vector<std::int32_t> part(6);
    x.read(Box({2 * first, 0}, {2 * first + 2, 3}), std::as_writable_bytes(std::span(part)));
    EXPECT_EQ(part[5], 6 + first * 6);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { x.to_host(); }),
                AllOf(HasSubstr("is in other processes alone"), HasSubstr("redistribute")));
    // A buffer where another process's belongs, and none where one belongs.
    std::vector<std::shared_ptr<Buffer>> shards(4);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { ShardedArray::from_shards(devices, x.spec(), shards); }),
                HasSubstr("no shard at position " + std::to_string(first)));
  });
}

TEST(DevicesOfProcesses, CallbacksAreAskedForTheirBoxesAlone) {
  on_ranks(2, 4, [](Devices& devices) {
    const Sharding columns(Mesh::parse("a=2,b=2"), PartitionSpec::parse("-,b"));
    std::atomic<int> calls = 0;
    const auto x = ShardedArray::from_callback(
        devices, {DType::i32, {2, 4}, columns}, [&](const BoxView& view) {
          ++calls;
          for (std::int64_t i = 0; i < 4; ++i) {
            reinterpret_cast<std::int32_t*>(view.data)[i] =
                static_cast<std::int32_t>(10 * view.box.begin(1) + i);
          }
        });
    EXPECT_EQ(calls, 2);  // both boxes: each process holds a replica of each
    std::vector<std::int32_t> all(8);
    x.read(Box::whole({2, 4}), std::as_writable_bytes(std::span(all)));
    EXPECT_THAT(all, ElementsAre(0, 1, 20, 21, 2, 3, 22, 23));
  });
}

// Any sharding to any other: each device gets the same as in one process, and the traffic is the
// plan's.
TEST(DevicesOfProcesses, RedistributeAsOneProcessDoes) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, 8, [](Devices& devices) {
      RandomShardings random(17);  // the same on every rank
      Devices alone(8, {.threads = 1});
      int moved = 0;
      for (int round = 0; round < 1500; ++round) {
        const Mesh a = random.mesh(), b = random.mesh();
        if (a.size() > 8 || b.size() > 8) continue;
        const Shape shape{random.draw(0, 9), random.draw(1, 9)};
        const Sharding from(a, random.spec_with_parts(a, 2)), to(b, random.spec_with_parts(b, 2));
        bool fits = true;
        for (const Mesh& mesh : {a, b}) {
          for (std::int64_t p = 0; p < mesh.size(); ++p) fits = fits && mesh.device_at(p) < 8;
        }
        if (!fits) continue;
        const auto values = counting(shape);
        const auto bytes = std::as_bytes(std::span(values));
        const auto x = ShardedArray::from_host(devices, {DType::i32, shape, from}, bytes);
        const auto expected = ShardedArray::from_host(alone, {DType::i32, shape, from}, bytes)
                                  .redistribute(alone, to);
        const auto y = x.redistribute(devices, to);
        ++moved;
        for (std::int64_t p = 0; p < b.size(); ++p) {
          if (!y.is_addressable(p)) continue;
          const ConstBoxView found = y.shard(p), needed = expected.shard(p);
          ASSERT_TRUE(
              std::equal(found.data, found.data + num_bytes(found.box.shape(), 4), needed.data))
              << from.to_string() << " to " << to.to_string() << " at " << p;
        }
      }
      EXPECT_GT(moved, 300);
      for (const DeviceId id : devices.addressable()) {
        EXPECT_EQ(devices.at(id).traffic().sent_bytes, alone.at(id).traffic().sent_bytes);
        EXPECT_EQ(devices.at(id).traffic().received_bytes, alone.at(id).traffic().received_bytes);
      }
    });
  }
}

TEST(DevicesOfProcesses, CollectivesGiveTheBitsOfOneProcess) {
  Devices alone(6);
  const std::vector<ShardedArray> expected = run_every_collective(alone);
  for (const int ranks : {2, 3, 4, 5, 6}) {
    on_ranks(ranks, 6, [&](Devices& devices) {
      const std::vector<ShardedArray> found = run_every_collective(devices);
      for (std::size_t v = 0; v < found.size(); ++v) {
        EXPECT_TRUE(same_shards(found[v], expected[v])) << "value " << v;
      }
    });
  }
}

// A process whose device has no room; one whose step throws.
TEST(DevicesOfProcesses, WhatFailsInOneProcessFailsInAll) {
  for (const bool has_room : {false, true}) {
    const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const bool is_small = !has_room && transport->rank() == 1;
      Devices devices(6, {.capacity_bytes = is_small ? std::size_t{300} : SIZE_MAX,
                          .threads = 1,
                          .group = ProcessGroup(std::move(transport))});
      const Mesh mesh = Mesh::line(6, "a");
      const ArraySpec spec{DType::f32, {6, 50}, Sharding(mesh, PartitionSpec::parse("a,-"))};
      const std::vector<float> values(300, 1.0f);
      const auto x = ShardedArray::from_host(devices, spec, std::as_bytes(std::span(values)));
      ManualRegion region(devices, mesh);
      const auto y =
          region.map("step", {region.input(x)}, {{DType::f32, {6, 50}, spec.sharding.spec()}},
                     [](const LocalContext& context) {
                       if (context.device == 3) throw std::runtime_error("too hot");
                     })[0];
      region.all_gather(y, "a", 0);
      region.run();
    });
    EXPECT_THAT(errors, Each(HasSubstr(has_room ? "too hot" : "device ")));
    EXPECT_THAT(errors[0], HasSubstr("rank 1: "));
    EXPECT_THAT(errors[2], HasSubstr("rank 1: "));
  }
}

TEST(DevicesOfProcesses, ThatMoveDifferentArraysSaySo) {
  const auto errors = run_ranks(2, {}, [&](std::shared_ptr<SocketTransport> transport) {
    Devices devices(2, {.threads = 1, .group = ProcessGroup(std::move(transport))});
    const Shape shape{4 + 4 * devices.group().rank()};
    const Sharding cut(Mesh::parse("2"), PartitionSpec::parse("0"));
    const auto values = counting(shape);
    ShardedArray::from_host(devices, {DType::i32, shape, cut}, std::as_bytes(std::span(values)))
        .redistribute(devices, Sharding(Mesh::parse("2"), PartitionSpec::parse("-")));
  });
  EXPECT_THAT(errors, Each(HasSubstr("found the number of elements 8 on rank 1")));
}

}  // namespace
}  // namespace shardwise
