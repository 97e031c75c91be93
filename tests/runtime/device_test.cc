#include "shardwise/runtime/device.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Devices, NumbersItsDevicesFromZero) {
  const Devices devices(3, {.threads = 1});
  EXPECT_EQ(devices.size(), 3);
  EXPECT_THAT(devices.addressable(), ElementsAre(0, 1, 2));
  EXPECT_EQ(devices.at(2).id(), 2);
  EXPECT_EQ(devices.at(2).process(), 0);
  EXPECT_EQ(devices.executor().threads(), 1);
}

TEST(Devices, RefusesWhatIsNotThere) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { Devices(0); }), HasSubstr("0 devices"));
  const Devices devices(3);
  for (const DeviceId id : {DeviceId{-1}, DeviceId{3}}) {
    EXPECT_THAT(message_of(ErrorCode::not_found, [&] { devices.at(id); }),
                AllOf(HasSubstr(std::to_string(id)), HasSubstr("3 devices")));
  }
}

TEST(Device, CountsWhatIsInUseByKindAndThePeak) {
  Devices devices(2, {.capacity_bytes = 1000});
  Device& device = devices.at(1);
  auto a = device.allocate(300, MemoryKind::array, "a");
  auto b = device.allocate(500, MemoryKind::loader, "b");
  auto c = device.allocate(7, MemoryKind::array, "c");
  MemoryStats stats = device.memory();
  EXPECT_EQ(stats.capacity_bytes, 1000u);
  EXPECT_EQ(stats.in_use_bytes, 807u);
  EXPECT_EQ(stats.peak_bytes, 807u);
  EXPECT_THAT(stats.in_use_by_kind, ElementsAre(307, 500, 0, 0, 0, 0, 0));
  b.reset();
  auto d = device.allocate(100, MemoryKind::loader, "d");
  stats = device.memory();
  EXPECT_EQ(stats.in_use_bytes, 407u);
  EXPECT_EQ(stats.peak_bytes, 807u);
  EXPECT_THAT(stats.in_use_by_kind, ElementsAre(307, 100, 0, 0, 0, 0, 0));
  device.reset_peak();
  EXPECT_EQ(device.memory().peak_bytes, 407u);
  EXPECT_EQ(devices.at(0).memory().peak_bytes, 0u);
}

TEST(Device, GivesAlignedWritableMemoryThatKnowsItsDevice) {
  Devices devices(2);
  for (const std::size_t size :
       {0u, 1u, 63u, 64u, 65u, 65'535u, 65'536u, 100'000u, 2u << 20, 5'000'000u}) {
    const auto buffer = devices.at(1).allocate(size, MemoryKind::array, "x");
    const std::size_t alignment = size < 65'536 ? 64 : 4096;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % alignment, 0u) << size;
    EXPECT_EQ(buffer->size_bytes(), size);
    EXPECT_EQ(buffer->device(), 1);
    if (size > 0) std::memset(buffer->data(), 5, size);
  }
  EXPECT_EQ(devices.at(1).memory().in_use_bytes, 0u);
}

TEST(Device, FillsToTheLastByteAndNotOneMore) {
  Devices devices(4, {.capacity_bytes = 1 << 20});
  Device& device = devices.at(3);
  std::vector<std::shared_ptr<Buffer>> held;
  const auto hold = [&](std::size_t bytes, MemoryKind kind, const char* label) {
    held.push_back(device.allocate(bytes, kind, label));
  };
  hold(500'000, MemoryKind::array, "w1");
  hold(300'000, MemoryKind::loader, "batch");
  for (const char* label : {"b", "c", "d", "e"}) hold(1000, MemoryKind::array, label);
  hold(0, MemoryKind::array, "nothing");
  const std::size_t rest = (1 << 20) - 804'000;
  EXPECT_EQ(
      message_of(ErrorCode::resource_exhausted,
                 [&] { hold(rest + 1, MemoryKind::array, "grad w1"); }),
      "allocate \"grad w1\" (array): device 3: found 244576 bytes free, needed 244577; in use "
      "are 804000 of 1048576; largest: \"w1\" (array, 500000 bytes), \"batch\" (loader, 300000 "
      "bytes), "
      "\"b\" (array, 1000 bytes), \"c\" (array, 1000 bytes), \"d\" (array, 1000 bytes)");
  EXPECT_EQ(device.memory().in_use_bytes, 804'000u);
  hold(rest, MemoryKind::array, "grad w1");
  EXPECT_EQ(device.memory().in_use_bytes, device.memory().capacity_bytes);
  hold(0, MemoryKind::array, "nothing either");
}

// Dropped in any order, also between refusals: the message has all held buffers and nothing
// else, the older of equal ones first.
TEST(Device, NamesWhatIsHeldWhateverTheOrderOfDropping) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Devices devices(1, {.capacity_bytes = 4});
    std::vector<std::pair<std::string, std::shared_ptr<Buffer>>> held;
    for (int number = 0; number < 12; ++number) {
      if (held.size() == 4 || (!held.empty() && random() % 2 == 0)) {
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
      }
      const std::string label = fmt::format("b{}", number);
      held.emplace_back(label, devices.at(0).allocate(1, MemoryKind::array, label));
      std::string largest;
      for (const auto& [name, buffer] : held) {
        largest += fmt::format("{}\"{}\" (array, 1 bytes)", largest.empty() ? "" : ", ", name);
      }
      EXPECT_THAT(message_of(ErrorCode::resource_exhausted,
                             [&] { devices.at(0).allocate(5, MemoryKind::array, "x"); }),
                  EndsWith("; largest: " + largest));
    }
  }
}

TEST(Device, ABufferTooLargeForAnythingIsRefusedToo) {
  Devices devices(1, {.capacity_bytes = 10});
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted,
                         [&] { devices.at(0).allocate(SIZE_MAX, MemoryKind::array, "x"); }),
              AllOf(HasSubstr("in use are 0 of 10"), Not(HasSubstr("largest"))));
}

TEST(Device, TakesBuffersBackFromAnyThreadAndAfterItsEnd) {
  std::shared_ptr<Buffer> survivor;
  {
    Devices devices(1, {.capacity_bytes = 64'000});
    Device& device = devices.at(0);
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&device] {
          for (int i = 0; i < 500; ++i) {
            const auto buffer = device.allocate(16'000, MemoryKind::array, "x");
            buffer->data()[0] = std::byte{1};
            std::jthread([held = buffer] {}).join();
          }
        });
      }
    }
    EXPECT_EQ(device.memory().in_use_bytes, 0u);
    EXPECT_LE(device.memory().peak_bytes, 64'000u);
    survivor = device.allocate(100, MemoryKind::array, "survivor");
  }
  survivor->data()[99] = std::byte{1};
  EXPECT_EQ(survivor->device(), 0);
}

// Buffers of random sizes, announced or not, are apart, counted alone and dropped in any order.
TEST(BufferBatch, MakesBuffersThatAreApartAndCounted) {
  std::mt19937 random(5);
  for (const bool announced : {true, false}) {
    Devices devices(2);
    BufferBatch batch(devices.at(1));
    std::vector<std::size_t> sizes;
    for (int i = 0; i < 3000; ++i) sizes.push_back(random() % (i % 100 == 0 ? 100'000 : 5000));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (announced || i % 3 == 0) batch.expect(sizes[i]);
    }
    std::vector<std::shared_ptr<Buffer>> buffers;
    std::size_t sum = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      buffers.push_back(batch.allocate(sizes[i], MemoryKind::array, "x"));
      const Buffer& made = *buffers.back();
      EXPECT_EQ(made.size_bytes(), sizes[i]);
      EXPECT_EQ(made.device(), 1);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made.data()) % 64, 0u);
      std::fill_n(buffers.back()->data(), sizes[i], static_cast<std::byte>(i % 251));
      sum += sizes[i];
      ASSERT_EQ(devices.at(1).memory().in_use_bytes, sum);
    }
    EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      const auto value = static_cast<std::byte>(i % 251);
      const std::byte* const data = buffers[i]->data();
      ASSERT_TRUE(std::all_of(data, data + sizes[i], [&](std::byte b) { return b == value; })) << i;
      buffers[i].reset();
      sum -= sizes[i];
      ASSERT_EQ(devices.at(1).memory().in_use_bytes, sum);
    }
  }
}

TEST(BufferBatch, SmallBuffersLieSideBySideAndTheirBlockIsUsedAgain) {
  Devices devices(1);
  const auto make = [&] {
    BufferBatch batch(devices.at(0));
    for (int i = 0; i < 1000; ++i) batch.expect(1000);
    std::vector<std::shared_ptr<Buffer>> buffers;
    for (int i = 0; i < 1000; ++i) {
      buffers.push_back(batch.allocate(1000, MemoryKind::array, "x"));
      EXPECT_EQ(buffers.back()->data(), buffers.front()->data() + i * 1024);
    }
    return buffers;
  };
  auto large = devices.at(0).allocate(2'000'000, MemoryKind::array, "peak");
  large.reset();
  auto buffers = make();
  const std::byte* const block = buffers.front()->data();
  buffers.resize(1);
  buffers.clear();
  EXPECT_EQ(make().front()->data(), block);
}

// A large one between them has memory of its own, and costs no block.
TEST(BufferBatch, SmallBuffersStaySideBySideWhateverLiesBetween) {
  constexpr std::size_t kSmall = 16'384, kLarge = 300'000, kInBlock = (2u << 20) / kSmall;
  Devices devices(1);
  BufferBatch batch(devices.at(0));
  for (int i = 0; i < 300; ++i) {
    batch.expect(kSmall);
    batch.expect(kLarge);
  }
  std::vector<std::shared_ptr<Buffer>> small, large;
  for (int i = 0; i < 300; ++i) {
    small.push_back(batch.allocate(kSmall, MemoryKind::array, "x"));
    large.push_back(batch.allocate(kLarge, MemoryKind::array, "y"));
  }
  for (std::size_t i = 1; i < small.size(); ++i) {
    if (i % kInBlock == 0) continue;  // the next block
    EXPECT_EQ(small[i]->data(), small[i - 1]->data() + kSmall) << i;
  }
}

TEST(BufferBatch, TakesNoMoreThanTheCapacityAndOutlivesItsDevices) {
  auto devices = std::make_unique<Devices>(1, DevicesOptions{.capacity_bytes = 2500});
  std::vector<std::shared_ptr<Buffer>> buffers;
  {
    BufferBatch batch(devices->at(0));
    for (int i = 0; i < 3; ++i) batch.expect(1000);
    for (int i = 0; i < 2; ++i) {
      buffers.push_back(batch.allocate(1000, MemoryKind::array, "x"));
    }
    EXPECT_THAT(
        message_of(ErrorCode::resource_exhausted,
                   [&] { batch.allocate(1000, MemoryKind::array, "third"); }),
        testing::HasSubstr("\"third\" (array): device 0: found 500 bytes free, needed 1000; "
                           "in use are 2000 of 2500"));
    EXPECT_EQ(devices->at(0).memory().in_use_bytes, 2000u);
    buffers.push_back(batch.allocate(500, MemoryKind::array, "fits"));
  }
  devices.reset();
  for (const auto& buffer : buffers) std::memset(buffer->data(), 1, buffer->size_bytes());
}

TEST(Device, CountsTraffic) {
  Devices devices(2);
  devices.at(0).count_sent(10);
  devices.at(0).count_sent(5);
  devices.at(0).count_received(3);
  EXPECT_EQ(devices.at(0).traffic().sent_bytes, 15u);
  EXPECT_EQ(devices.at(0).traffic().received_bytes, 3u);
  EXPECT_EQ(devices.at(1).traffic().sent_bytes, 0u);
}

}  // namespace
}  // namespace shardwise
