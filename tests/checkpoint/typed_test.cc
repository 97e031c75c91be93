// Tensors as C++ elements: how they come to a save, and how they are read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T = float>
std::vector<T> counting(std::size_t count) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), T{1});
  return values;
}

class Typed : public testing::Test {
 protected:
  CheckpointReader saved(std::vector<TensorSource> sources) {
    return CheckpointReader(manager_.save(++step_, std::move(sources)).directory);
  }

  TempDir dir_;
  CheckpointManager manager_{dir_.path()};
  std::int64_t step_ = 0;
};

TEST_F(Typed, TensorsThatAreNotCutNeedNoSharding) {
  const std::vector<float> w = counting(48);
  const std::array<std::int32_t, 3> b{7, 8, 9};
  const std::int64_t step = 40;
  const bool flags[] = {true, false, true};
  const std::vector<std::complex<float>> z{{1, 2}};
  const TensorSource sources[] = {host_source("w", {12, 4}, std::span<const float>(w)),
                                  host_source("w2", {12, 4}, w),
                                  host_source("w3", {DType::f32, {12, 4}}, w),
                                  host_source("b", b),
                                  host_source("step", step),
                                  host_source("flags", flags),
                                  host_source("z", z)};
  EXPECT_FALSE(sources[0].sharding);
  const CheckpointReader reader = saved({std::begin(sources), std::end(sources)});
  for (const char* name : {"w", "w2", "w3"}) {
    EXPECT_EQ(reader.tensor(name).shape, (Shape{12, 4})) << name;
    EXPECT_EQ(reader.read<float>(name), w) << name;
  }
  EXPECT_THAT(reader.read<std::int32_t>("b"), ElementsAre(7, 8, 9));
  EXPECT_EQ(reader.tensor("step").shape, Shape{});
  EXPECT_THAT(reader.read<std::int64_t>("step"), ElementsAre(40));
  EXPECT_THAT(reader.read<bool>("flags"), ElementsAre(true, false, true));
  EXPECT_EQ(reader.read<std::complex<float>>("z"), z);
}

TEST_F(Typed, ReadsFillABoxOrAllOfATensor) {
  const std::vector<float> w = counting(48);
  const CheckpointReader reader = saved({host_source("w", {12, 4}, w)});
  std::vector<float> all(w.size());
  reader.read("w", all);
  EXPECT_EQ(all, w);
  std::array<float, 4> row{};
  reader.read("w", Box({2, 0}, {3, 4}), row);
  EXPECT_THAT(row, ElementsAre(9, 10, 11, 12));
  EXPECT_THAT(reader.read<float>("w", Box({2, 1}, {4, 3})), ElementsAre(10, 11, 14, 15));
  std::vector<std::byte> bytes(w.size() * sizeof(float));
  reader.read("w", bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), w.data(), bytes.size()), 0);
}

TEST_F(Typed, AnotherTypeIsRefused) {
  const std::vector<float> w = counting(6);
  const CheckpointReader reader = saved({host_source("w", {2, 3}, w)});
  std::vector<std::int32_t> integers(6);
  const auto refused = [](auto&& work) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, work),
                HasSubstr("tensor \"w\": found f32, needed i32"));
  };
  refused([&] { reader.read("w", integers); });
  refused([&] { reader.read("w", Box({0, 0}, {2, 3}), integers); });
  refused([&] { reader.read<std::int32_t>("w"); });
  refused([&] { reader.read<std::int32_t>("w", Box({0, 0}, {1, 1})); });
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           host_source("w", {DType::i32, {2, 3}}, w);
                         }),
              HasSubstr("save: tensor \"w\": found f32, needed i32"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           host_source("w", {2, 4}, w);
                         }),
              HasSubstr("found 24 bytes, needed 32"));
}

TEST_F(Typed, ABoxThatLeavesTheTensorIsRefusedBeforeMemoryIsTaken) {
  const std::vector<float> w = counting(6);
  const CheckpointReader reader = saved({host_source("w", {2, 3}, w)});
  const Box box({0, 0}, {std::int64_t{1} << 40, 3});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { reader.read<float>("w", box); }),
              HasSubstr("leaves tensor \"w\" of shape [2, 3]"));
  EXPECT_THROW(reader.read<float>("v"), Error);
}

TEST_F(Typed, MemoryThatWouldBeGoneIsNoSource) {
  EXPECT_FALSE((ElementRange<std::vector<float>>));
  EXPECT_TRUE((ElementRange<std::vector<float>&>));
  EXPECT_TRUE((ElementRange<std::span<const float>>));
  EXPECT_FALSE((ElementRange<std::vector<bool>&>));
  EXPECT_FALSE((ElementRange<std::vector<std::byte>&>));
}

// A 4 x 6 tensor whose element [i, j] is 10 i + j.
std::vector<float> part(const Box& box) {
  std::vector<float> values;
  for_each_index(
      box, [&](const Index& at) { values.push_back(static_cast<float>(10 * at[0] + at[1])); });
  return values;
}

TEST_F(Typed, ShardsAreWrittenFromWhereTheyAre) {
  const Box whole = Box::whole({4, 6}), left({0, 0}, {4, 2}), top({0, 2}, {1, 6}),
            rest({1, 2}, {4, 6});
  const std::vector<float> a = part(left), b = part(top), c = part(rest);
  const Mesh mesh = Mesh::parse("data=2,model=3");
  for (const char* spec : {"data,model", "-,-", "model,-", "-,data+model"}) {
    SCOPED_TRACE(spec);
    const TensorSource source =
        shards_source("w", {DType::f32, {4, 6}, Sharding(mesh, PartitionSpec::parse(spec))},
                      {{left, a}, {top, std::as_bytes(std::span(b))}, {rest, c}});
    EXPECT_EQ(saved({source}).read<float>("w"), part(whole));
  }
}

TEST_F(Typed, ShardsMayBeOverwrittenAsSoonAsSaveAsyncReturns) {
  const Box halves[] = {Box({0, 0}, {2, 6}), Box({2, 0}, {4, 6})};
  std::vector<float> a = part(halves[0]), b = part(halves[1]);
  const std::vector<float> expected = part(Box::whole({4, 6}));
  const PendingSave pending = manager_.save_async(
      1, {shards_source("w", {DType::f32, {4, 6}}, {{halves[0], a}, {halves[1], b}})});
  std::ranges::fill(a, -1.0F);
  std::ranges::fill(b, -1.0F);
  EXPECT_EQ(CheckpointReader(pending.wait().directory).read<float>("w"), expected);
}

TEST_F(Typed, ShardsThatDoNotFitAreRefused) {
  const ArraySpec spec{DType::f32, {4, 6}};
  const std::vector<float> twelve(12);
  const std::vector<std::int32_t> integers(12);
  const Box top({0, 0}, {2, 6});
  const auto refused = [&](const std::vector<HostShard>& shards, const char* why) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { shards_source("w", spec, shards); }),
                HasSubstr(why));
  };
  refused({{Box({3, 0}, {5, 6}), twelve}}, "shard [3:5, 0:6]: found a box that leaves the shape");
  refused({{Box({0}, {12}), twelve}}, "needed one inside it");
  refused({{top, integers}}, "shard [0:2, 0:6]: found i32, needed f32");
  refused({{Box({0, 0}, {1, 6}), twelve}}, "found 48 bytes, needed 24");
  refused({{top, twelve}, {Box({1, 0}, {3, 6}), twelve}},
          "shard [1:3, 0:6]: found elements that [0:2, 0:6] has, too");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           saved({shards_source("w", spec, {{top, twelve}})});
                         }),
              HasSubstr("tensor \"w\": found 12 of the 24 elements of [0:4, 0:6] in this "
                        "process's shards, needed all"));
}

}  // namespace
}  // namespace shardwise
