#include "shardwise/runtime/memory/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string_view>

#include "shardwise/runtime/device.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Block, HoldsBuffersAtOffsetsAndOnlyTheyAreCounted) {
  Devices devices(2);
  Device& device = devices.at(1);
  auto block = device.make_block(1000);
  EXPECT_EQ(block->size_bytes(), 1000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->data()) % 64, 0u);
  EXPECT_EQ(device.memory().in_use_bytes, 0u);
  auto first = device.place(block, 0, 600, MemoryKind::activation, "first");
  auto second = device.place(block, 600, 400, MemoryKind::parameter, "second");
  EXPECT_EQ(first->data(), block->data());
  EXPECT_EQ(second->data(), block->data() + 600);
  EXPECT_EQ(second->size_bytes(), 400u);
  EXPECT_EQ(second->device(), 1);
  const MemoryStats stats = device.memory();
  EXPECT_EQ(stats.in_use_bytes, 1000u);
  EXPECT_EQ(stats.in_use_by_kind[static_cast<std::size_t>(MemoryKind::activation)], 600u);
  EXPECT_EQ(stats.in_use_by_kind[static_cast<std::size_t>(MemoryKind::parameter)], 400u);
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);

  // As a plan does it: the bytes of a buffer that is gone serve the next one.
  first.reset();
  auto third = device.place(block, 100, 500, MemoryKind::activation, "third");
  EXPECT_EQ(third->data(), block->data() + 100);
  EXPECT_EQ(device.memory().in_use_bytes, 900u);
  EXPECT_EQ(device.memory().peak_bytes, 1000u);
}

TEST(Block, LivesAsLongAsItsBuffers) {
  std::shared_ptr<Buffer> survivor;
  {
    Devices devices(1);
    survivor =
        devices.at(0).place(devices.at(0).make_block(4096), 96, 4000, MemoryKind::array, "x");
  }
  std::memset(survivor->data(), 1, survivor->size_bytes());
}

// Fresh memory of this size comes from the system and is zero: other content shows a kept block.
TEST(Block, IsKeptForTheNextOneOfItsSizeUpToWhatBlocksTook) {
  constexpr std::size_t kSize = std::size_t{64} << 20;
  Devices devices(1);
  Device& device = devices.at(0);
  const auto take_and_give_back = [&] {
    const auto block = device.make_block(kSize);
    const auto input = device.allocate(9000, MemoryKind::loader, "input");
    const bool is_kept = block->data()[kSize - 1] == std::byte{1};
    block->data()[kSize - 1] = std::byte{1};
    return is_kept;
  };
  EXPECT_FALSE(take_and_give_back());
  // As in steps: each begins a peak, and a loss that is read takes a little during the next.
  device.reset_peak();
  const auto loss = device.allocate(4, MemoryKind::array, "loss");
  EXPECT_TRUE(take_and_give_back());

  // A block of another size takes its place.
  device.make_block(kSize / 2);
  EXPECT_FALSE(take_and_give_back());
}

TEST(Block, RefusesWhatItDoesNotHold) {
  Devices devices(2, {.capacity_bytes = 500});
  Device& device = devices.at(0);
  const auto block = device.make_block(1000);
  const auto place = [&](Device& on, std::size_t offset, std::size_t size) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { on.place(block, offset, size, MemoryKind::array, "w"); });
  };
  EXPECT_THAT(place(device, 990, 11),
              AllOf(HasSubstr("\"w\""), HasSubstr("11 bytes at offset 990"), HasSubstr("1000")));
  place(device, 1001, 0);
  place(device, 8, SIZE_MAX);
  EXPECT_THAT(place(devices.at(1), 0, 10), HasSubstr("on device 0, needed"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { device.place(nullptr, 0, 0, MemoryKind::array, "w"); }),
              HasSubstr("\"w\""));
  // The capacity limits counted bytes only.
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted,
                         [&] { device.place(block, 0, 501, MemoryKind::array, "w"); }),
              HasSubstr("device 0: found 500 bytes free, needed 501;"));
  EXPECT_EQ(device.memory().in_use_bytes, 0u);
  device.place(block, 500, 500, MemoryKind::array, "fits");
}

TEST(MemoryKind, HasNames) {
  EXPECT_EQ(name(MemoryKind::array), "array");
  EXPECT_EQ(name(MemoryKind::loader), "loader");
  std::set<std::string_view> names;
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    names.insert(name(static_cast<MemoryKind>(kind)));
  }
  EXPECT_EQ(names.size(), kMemoryKinds);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace shardwise
