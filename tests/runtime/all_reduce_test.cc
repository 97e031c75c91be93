// All-reduces of many devices: level by level, in an order that does not depend on time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "shardwise/runtime/manual.h"
#include "testing/same_shards.h"
#include "testing/socket_transport.h"

namespace shardwise {
namespace {

using Values = std::vector<float>;

/// Such that the order of additions shows.
std::vector<Values> random_values(std::int64_t devices, std::int64_t elements) {
  std::mt19937 random(static_cast<std::uint32_t>(devices));
  std::vector<Values> values(as_size(devices), Values(as_size(elements)));
  for (Values& shard : values) {
    for (float& value : shard) {
      value =
          std::ldexp(static_cast<float>(random() % 4095) - 2047, static_cast<int>(random() % 9));
    }
  }
  return values;
}

float as_held(DType dtype, float value) {
  return dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

/// Neighbours by `levels[0]`, then their sums by `levels[1]`, ..: each sum from left to right.
float summed(DType dtype, std::vector<float> terms, const std::vector<std::size_t>& levels) {
  for (const std::size_t count : levels) {
    std::vector<float> sums;
    for (std::size_t first = 0; first < terms.size(); first += count) {
      float sum = terms[first];
      for (std::size_t i = 1; i < count; ++i) sum += terms[first + i];
      sums.push_back(as_held(dtype, sum));
    }
    terms = sums;
  }
  return terms.front();
}

/// All devices of `devices` along one axis, each with its values, summed.
ShardedArray all_reduced(Devices& devices, DType dtype, const std::vector<Values>& values) {
  const auto elements = static_cast<std::int64_t>(values.front().size());
  ManualRegion region(devices, Mesh::line(devices.size(), "x"));
  const auto mine =
      region.map("values", {}, {{dtype, {elements}, {{}}}}, [&](const LocalContext& local) {
        const Values& shard = values[as_size(local.position)];
        convert(DType::f32, reinterpret_cast<const std::byte*>(shard.data()), dtype,
                local.outputs[0].data, shard.size());
      });
  const auto sum = region.all_reduce(mine[0], {"x"}, Reduction::sum);
  region.run();
  return region.output(sum);
}

struct LevelsOfDevices {
  std::int64_t devices;
  std::vector<std::size_t> levels;
};
const LevelsOfDevices kLevels[] = {{16, {16}},   {17, {17}},    {18, {6, 3}},
                                   {32, {8, 4}}, {34, {17, 2}}, {64, {8, 8}}};

TEST(AllReduceOfManyDevices, AddsInTheOrderOfTheMeshLevelByLevel) {
  for (const LevelsOfDevices& c : kLevels) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t elements : {0, 3, 20'000}) {
        SCOPED_TRACE(std::to_string(c.devices) + " devices, " + std::to_string(elements) +
                     " elements of " + std::string(name(dtype)));
        std::vector<Values> values = random_values(c.devices, elements);
        for (Values& shard : values) {
          for (float& value : shard) value = as_held(dtype, value);
        }
        Devices one(c.devices, {.threads = 1}), four(c.devices, {.threads = 4});
        const ShardedArray found = all_reduced(one, dtype, values);
        EXPECT_TRUE(same_shards(all_reduced(four, dtype, values), found));
        Values expected;
        for (std::size_t i = 0; i < as_size(elements); ++i) {
          std::vector<float> terms;
          for (const Values& shard : values) terms.push_back(shard[i]);
          expected.push_back(summed(dtype, terms, c.levels));
        }
        for (std::int64_t position = 0; position < c.devices; ++position) {
          Values shard(as_size(elements));
          convert(dtype, found.shard(position).data, DType::f32,
                  reinterpret_cast<std::byte*>(shard.data()), shard.size());
          ASSERT_EQ(shard, expected) << "position " << position;
        }
      }
    }
  }
}

TEST(AllReduceOfManyDevices, HasTheSameBitsInSeveralProcesses) {
  constexpr std::int64_t kDevices = 36;
  const std::vector<Values> values = random_values(kDevices, 40'000);
  Devices alone(kDevices, {.threads = 1});
  const ShardedArray needed = all_reduced(alone, DType::f32, values);
  const auto errors = run_ranks(5, {}, [&](std::shared_ptr<SocketTransport> transport) {
    Devices devices(kDevices, {.threads = 2, .group = ProcessGroup(std::move(transport))});
    if (!same_shards(all_reduced(devices, DType::f32, values), needed)) {
      throw std::runtime_error("the bits differ");
    }
  });
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace shardwise
