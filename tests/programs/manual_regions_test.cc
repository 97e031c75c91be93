#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/error.h"
#include "tensors.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

const std::string kData[] = {"data"};

/// x * x + the sum of all rows, with and without a region where each device has two rows.
TEST(ManualRegionInAProgram, ComputesAndDifferentiatesAsTheProgramWithoutIt) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=4,model=2")});
  const Tensor x = counting(tracer, {8, 6}, "x", MemoryKind::parameter);
  const Tensor manual = [&] {
    const Tensor mine = enable_manual_sharding(x, {{"data"}, {}});
    EXPECT_EQ(mine.shape(), (Shape{2, 6}));
    const Tensor rows = all_reduce(reduce_sum(mine, {0}), kData, Reduction::sum);
    return disable_manual_sharding(mine * mine + broadcast_to(rows, {2, 6}), {{"data"}, {}},
                                   {8, 6});
  }();
  const Tensor automatic = x * x + broadcast_to(reduce_sum(x, {0}), {8, 6});
  const Tensor weights = counting(tracer, {8, 6}, "weights");
  const Tensor gradient = grad(reduce_sum(manual * weights, {0, 1}), {x})[0];
  const Tensor expected = grad(reduce_sum(automatic * weights, {0, 1}), {x})[0];
  tracer.mark_step();
  EXPECT_THAT(floats(manual), ElementsAreArray(floats(automatic)));
  EXPECT_THAT(floats(gradient), ElementsAreArray(floats(expected)));
  EXPECT_EQ(manual.array().sharding().spec().to_string(), "data,-");
}

TEST(ManualRegionInAProgram, DevicesMayDifferBetweenItsBorders) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  const Tensor x = counting(tracer, {4});
  const Tensor largest = disable_manual_sharding(
      all_reduce(enable_manual_sharding(x, {{"data"}}), kData, Reduction::max), {{"data"}}, {4});
  tracer.mark_step();
  EXPECT_THAT(floats(largest), testing::Each(3.0F));
}

TEST(ManualRegionInAProgram, RefusesWhatDoesNotFit) {
  Devices devices(4);
  Tracer none(devices);
  const Tensor early = counting(none, {4});
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { enable_manual_sharding(early, {{"data"}}); }),
      HasSubstr("no mesh"));
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  const Tensor x = counting(tracer, {6}), even = counting(tracer, {8});
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { enable_manual_sharding(x, {{"data"}}); }),
      testing::AllOf(HasSubstr("f32[6]"), HasSubstr("4 ways")));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { all_reduce(x, kData, Reduction::sum); }),
      HasSubstr("no manual region"));
  Tensor mine = enable_manual_sharding(even, {{"data"}});
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { enable_manual_sharding(mine, {{"data"}}); }),
      HasSubstr("manual region"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { mark_sharding(mine, {{"data"}}); }),
              HasSubstr("manual region"));
  const Tensor wrong = disable_manual_sharding(mine, {{"data"}}, {12});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
              testing::AllOf(HasSubstr("[2]"), HasSubstr("[12]")));
}

}  // namespace
}  // namespace shardwise
