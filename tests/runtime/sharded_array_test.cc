#include "shardwise/runtime/sharded_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/values.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "testing/errors.h"
#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMostDevices = 48;  // RandomShardings uses ids below this

/// Every element of every shard is the global array's, looked up one by one.
void expect_holds(const ShardedArray& array, const std::vector<std::byte>& global) {
  const std::size_t bytes = size_bytes(array.dtype());
  const Box whole = Box::whole(array.shape());
  const Mesh& mesh = array.sharding().mesh();
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const ConstBoxView shard = array.shard(position);
    ASSERT_EQ(shard.box, array.sharding().box_at(position, array.shape()));
    ASSERT_EQ(array.buffer(position)->device(), mesh.device_at(position));
    for (const Index& at : indices_of(shard.box)) {
      ASSERT_EQ(std::memcmp(shard.data + offset_in(shard.box, at) * bytes,
                            global.data() + offset_in(whole, at) * bytes, bytes),
                0)
          << "position " << position << " element " << to_string(at);
    }
  }
}

TEST(ShardedArray, RandomArraysGoToTheDevicesAndBack) {
  RandomShardings random(11);
  Devices one(kMostDevices, {.threads = 1}), four(kMostDevices, {.threads = 4});
  for (int round = 0; round < 600; ++round) {
    Devices& devices = round % 2 == 0 ? one : four;
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const DType dtype = all_dtypes()[static_cast<std::size_t>(round) % all_dtypes().size()];
    const ArraySpec spec{dtype, random.shape(rank), random.sharding(rank)};
    SCOPED_TRACE(spec.sharding.to_string() + " " + to_string(spec.shape));
    const auto global = random_bytes(num_bytes(spec.shape, size_bytes(dtype)), random.engine());
    const auto array = ShardedArray::from_host(devices, spec, global);
    expect_holds(array, global);
    EXPECT_EQ(array.to_host(), global);

    const Box box = random_box(Box::whole(spec.shape), random);
    std::vector<std::byte> part(num_bytes(box.shape(), size_bytes(dtype)));
    array.read(box, part);
    for (const Index& at : indices_of(box)) {
      ASSERT_EQ(
          std::memcmp(part.data() + offset_in(box, at) * size_bytes(dtype),
                      global.data() + offset_in(Box::whole(spec.shape), at) * size_bytes(dtype),
                      size_bytes(dtype)),
          0);
    }
    if (const std::byte* const held = array.contiguous(box)) {
      ASSERT_EQ(std::memcmp(held, part.data(), part.size()), 0);
    }
  }
  EXPECT_EQ(in_use(one) + in_use(four), 0u);
}

TEST(ShardedArray, ContiguousIsWhatOneShardHoldsSideBySide) {
  Devices devices(4);
  const Sharding sharding(Mesh::parse("data=2,model=2"), PartitionSpec::parse("data,model"));
  const auto array =
      ShardedArray::from_callback(devices, {DType::f32, {8, 8}, sharding}, [](const BoxView&) {});
  EXPECT_EQ(array.contiguous(Box({4, 4}, {8, 8})), array.shard(3).data);
  EXPECT_EQ(array.contiguous(Box({1, 0}, {3, 4})), array.shard(0).data + 4 * 4);
  EXPECT_EQ(array.contiguous(Box({2, 5}, {3, 7})), array.shard(1).data + (2 * 4 + 1) * 4);
  EXPECT_EQ(array.contiguous(Box({0, 0}, {2, 3})), nullptr) << "two runs";
  EXPECT_EQ(array.contiguous(Box({0, 0}, {1, 5})), nullptr) << "two shards";
  EXPECT_EQ(array.contiguous(Box({0, 0}, {0, 4})), nullptr) << "nothing";
}

TEST(ShardedArray, RandomRedistributionsKeepEveryElementAndCountTheTraffic) {
  RandomShardings random(12);
  for (int round = 0; round < 600; ++round) {
    Devices devices(kMostDevices, {.threads = round % 2 == 0 ? 1 : 4});
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const DType dtype = all_dtypes()[static_cast<std::size_t>(round) % all_dtypes().size()];
    const Shape shape = random.shape(rank);
    const Sharding from = random.sharding(rank), to = random.sharding(rank);
    SCOPED_TRACE(to_string(shape) + " " + from.to_string() + " to " + to.to_string());
    const auto global = random_bytes(num_bytes(shape, size_bytes(dtype)), random.engine());
    const auto array = ShardedArray::from_host(devices, {dtype, shape, from}, global);
    const auto moved = array.redistribute(devices, to);
    expect_holds(moved, global);
    EXPECT_EQ(moved.redistribute(devices, from).to_host(), global);

    const auto there = TransferPlan::reshard(from, to, shape);
    const auto back = TransferPlan::reshard(to, from, shape);
    const std::size_t bytes =
        static_cast<std::size_t>(there.moved_elements() + back.moved_elements()) *
        size_bytes(dtype);
    std::size_t sent = 0, received = 0;
    for (const DeviceId id : devices.addressable()) {
      sent += devices.at(id).traffic().sent_bytes;
      received += devices.at(id).traffic().received_bytes;
    }
    EXPECT_EQ(sent, bytes);
    EXPECT_EQ(received, bytes);
  }
}

TEST(ShardedArray, DevicesThatHoldTheirNewBoxShareTheBuffer) {
  Devices devices(8);
  const Mesh mesh = Mesh::parse("data=4,model=2");
  const std::vector<std::byte> global(64);
  const auto array = ShardedArray::from_host(
      devices, {DType::u8, {64}, Sharding(mesh, PartitionSpec::parse("data"))}, global);
  // The same halves of the mesh swap places: four devices keep their box, the others do not.
  const Sharding swapped(Mesh::parse("data=4,model=2@0,2,1,3,4,6,5,7"),
                         PartitionSpec::parse("data"));
  const auto moved = array.redistribute(devices, swapped);
  for (std::int64_t position = 0; position < 8; ++position) {
    const auto old = mesh.position_of(swapped.mesh().device_at(position));
    const bool same = array.shard(*old).box == moved.shard(position).box;
    EXPECT_EQ(array.buffer(*old) == moved.buffer(position), same) << position;
  }
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 16u);
  EXPECT_EQ(devices.at(1).memory().in_use_bytes, 32u);
}

TEST(ShardedArray, CallbackIsCalledOncePerDistinctBox) {
  RandomShardings random(13);
  Devices devices(kMostDevices, {.threads = 4});
  for (int round = 0; round < 200; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const ArraySpec spec{DType::i32, random.shape(rank), random.sharding(rank)};
    const auto global = random_bytes(num_bytes(spec.shape, 4), random.engine());
    std::atomic<std::size_t> calls{0};
    const auto array = ShardedArray::from_callback(devices, spec, [&](const BoxView& view) {
      ++calls;
      copy_box(view.box, 4, {global.data(), Box::whole(spec.shape)}, view);
    });
    expect_holds(array, global);
    EXPECT_EQ(calls, spec.sharding.distinct_pieces(spec.shape).size());
  }
}

TEST(ShardedArray, AThrowingCallbackReachesTheCallerAndLeavesNoMemory) {
  Devices devices(8, {.threads = 4});
  const ArraySpec spec{
      DType::f32, {100, 100}, Sharding(Mesh::line(8), PartitionSpec::parse("devices,-"))};
  const auto fill = [](const BoxView& view) {
    if (view.box.begin(0) == 39) throw std::out_of_range("39");
  };
  EXPECT_THROW(ShardedArray::from_callback(devices, spec, fill), std::out_of_range);
  EXPECT_EQ(in_use(devices), 0u);
}

TEST(ShardedArray, TakesMemoryForExactlyItsBoxes) {
  Devices devices(8);
  const ArraySpec spec{
      DType::f16, {10, 3}, Sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,-"))};
  const std::vector<std::byte> data(60);
  const auto array = ShardedArray::from_host(devices, spec, data, "x");
  const std::size_t expected[] = {18, 18, 18, 18, 18, 18, 6, 6};  // 10 rows in blocks of 3
  for (std::int64_t id = 0; id < 8; ++id) {
    EXPECT_EQ(devices.at(id).memory().in_use_bytes, expected[id]);
    EXPECT_EQ(devices.at(id).memory().peak_bytes, expected[id]);
  }
}

TEST(ShardedArray, FromShardsSharesTheBuffers) {
  Devices devices(2);
  const ArraySpec spec{DType::u8, {5}, Sharding(Mesh::line(2), PartitionSpec::parse("devices"))};
  std::vector<std::shared_ptr<Buffer>> shards{devices.at(0).allocate(3, MemoryKind::loader, "x"),
                                              devices.at(1).allocate(2, MemoryKind::loader, "x")};
  for (int i = 0; i < 5; ++i) {
    shards[static_cast<std::size_t>(i / 3)]->data()[i % 3] = static_cast<std::byte>(i);
  }
  const auto array = ShardedArray::from_shards(spec, shards);
  EXPECT_EQ(array.buffer(1), shards[1]);
  EXPECT_EQ(array.to_host(), (std::vector<std::byte>{std::byte{0}, std::byte{1}, std::byte{2},
                                                     std::byte{3}, std::byte{4}}));
}

TEST(ShardedArray, FromShardsNamesThePositionAtFault) {
  Devices devices(3);
  const ArraySpec spec{DType::u8, {5}, Sharding(Mesh::line(2), PartitionSpec::parse("devices"))};
  const auto buffer = [&](DeviceId id, std::size_t bytes) {
    return devices.at(id).allocate(bytes, MemoryKind::array, "x");
  };
  struct Case {
    const char* name;
    std::vector<std::shared_ptr<Buffer>> shards;
    const char* message;
  };
  const Case cases[] = {
      {"too few", {buffer(0, 3)}, "1 shards for a mesh of 2"},
      {"null", {buffer(0, 3), nullptr}, "no shard at position 1"},
      {"wrong size", {buffer(0, 3), buffer(1, 3)}, "position 1 has 3 bytes on device 1, needed 2"},
      {"wrong device",
       {buffer(2, 3), buffer(1, 2)},
       "position 0 has 3 bytes on device 2, needed 3"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument, [&] { ShardedArray::from_shards(spec, c.shards); }),
        HasSubstr(c.message));
  }
}

TEST(ShardedArray, RefusesWrongSizesBoxesAndDevices) {
  Devices devices(4);
  const Sharding rows(Mesh::line(4), PartitionSpec::parse("devices,-"));
  const ArraySpec spec{DType::f32, {10, 3}, rows};
  const std::vector<std::byte> data(120);
  const auto array = ShardedArray::from_host(devices, spec, data);
  std::vector<std::byte> out(12);
  const auto refused = [](ErrorCode code, const std::function<void()>& body, const char* part) {
    EXPECT_THAT(message_of(code, body), HasSubstr(part));
  };
  refused(
      ErrorCode::invalid_argument,
      [&] { ShardedArray::from_host(devices, spec, std::span(data).first(119)); },
      "119 bytes for f32 [10, 3], needed 120");
  refused(
      ErrorCode::invalid_argument,
      [&] {
        ShardedArray::from_host(devices, {DType::f32, {30}, rows}, data);
      },
      "shape [30]");
  refused(
      ErrorCode::invalid_argument,
      [&] {
        array.read(Box({0, 1}, {1, 4}), out);
      },
      "[0:1, 1:4] is not inside the f32 [10, 3] array");
  refused(
      ErrorCode::invalid_argument, [&] { array.read(Box({0}, {1}), out); }, "[0:1] is not inside");
  refused(
      ErrorCode::invalid_argument,
      [&] {
        array.read(Box({0, 0}, {1, 2}), out);
      },
      "12 bytes for [0:1, 0:2] of f32 [10, 3], needed 8");
  const Sharding beyond(Mesh::line(5), PartitionSpec::parse("devices,-"));
  refused(
      ErrorCode::not_found,
      [&] {
        ShardedArray::from_host(devices, {DType::f32, {10, 3}, beyond}, data);
      },
      "device 4");
  refused(
      ErrorCode::not_found, [&] { array.redistribute(devices, beyond); }, "device 4");
  refused(
      ErrorCode::invalid_argument,
      [&] { array.redistribute(devices, Sharding::replicated(Mesh::line(4), 1)); },
      "shape [10, 3]");
}

TEST(ShardedArray, AnArrayThatDoesNotFitIsNamedAndLeavesNothing) {
  Devices devices(4, {.capacity_bytes = 100});
  const Sharding rows(Mesh::line(4), PartitionSpec::parse("devices,-"));
  const std::vector<std::byte> data(240);
  const auto array = ShardedArray::from_host(devices, {DType::f32, {20, 3}, rows}, data, "weights");
  EXPECT_THAT(
      message_of(
          ErrorCode::resource_exhausted,
          [&] { array.redistribute(devices, Sharding::replicated(Mesh::line(4), 2), "gathered"); }),
      AllOf(HasSubstr("\"gathered\""), HasSubstr("device 0: found 40 bytes free, needed 240;"),
            HasSubstr("\"weights\" (array, 60 bytes)")));
  EXPECT_EQ(in_use(devices), 240u);
}

TEST(ShardedArray, CopiesAreSnapshotsThatOutliveTheDevices) {
  std::vector<std::byte> data(30);
  for (std::size_t i = 0; i < 30; ++i) data[i] = static_cast<std::byte>(i);
  std::vector<ShardedArray> kept;
  {
    Devices devices(3);
    const ArraySpec spec{DType::u8, {30}, Sharding(Mesh::line(3), PartitionSpec::parse("devices"))};
    const auto array = ShardedArray::from_host(devices, spec, data);
    kept.push_back(array);
    EXPECT_EQ(array.buffer(2), kept[0].buffer(2));
  }
  EXPECT_EQ(kept[0].to_host(), data);
}

TEST(ShardedArray, TakesAndGivesElements) {
  Devices devices(4);
  const Sharding sharding(Mesh::parse("data=4"), PartitionSpec::parse("data,-"));
  const std::vector<std::int32_t> values{1, 2, 3, 4, 5, 6};
  const auto array = ShardedArray::from_host(devices, {DType::i32, {3, 2}, sharding}, values);
  EXPECT_EQ(array.to_vector<std::int32_t>(), values);
  EXPECT_EQ(array.shard(2).box, Box({2, 0}, {3, 2}));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { array.to_vector<float>(); }),
              HasSubstr("read an array: found i32, needed f32"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           ShardedArray::from_host(devices, {DType::f32, {3, 2}, sharding}, values);
                         }),
              HasSubstr("make an array from host memory: found i32, needed f32"));
  const bool flags[] = {true, false};
  EXPECT_EQ(ShardedArray::from_host(devices, {DType::boolean, {2}}, flags).to_vector<bool>(),
            (std::vector<bool>{true, false}));
}

TEST(ShardedArray, IsOnOneDeviceWithoutASharding) {
  Devices devices(4);
  const auto array = ShardedArray::from_host(devices, {DType::f32, {2, 2}}, std::vector<float>(4));
  EXPECT_EQ(array.sharding(), Sharding::replicated(Mesh::line(1), 2));
  EXPECT_EQ(array.shard(0).box, Box::whole({2, 2}));
  const ArraySpec scalar{.dtype = DType::f64, .shape = {}};
  EXPECT_EQ(scalar.sharding.rank(), 0u);
}

}  // namespace
}  // namespace shardwise
