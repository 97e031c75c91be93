#include "shardwise/runtime/detail/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace shardwise {
namespace {

using ::testing::ElementsAre;

std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

TEST(Transfer, CopiesFillOneTargetAndCountWhatPassesBetweenDevices) {
  const Devices devices(3);
  std::vector<float> left{1, 2, 3, 4}, right{5, 6}, out{0, 0, 0, 0};
  const Box low({0}, {4}), high({4}, {6}), wanted({2}, {6});
  const detail::Transfer transfer{TransferPlan({{0, low}, {1, high}}, {{1, wanted}}),
                                  DType::f32,
                                  {{bytes(left), low}, {bytes(right), high}},
                                  {{bytes(out), wanted}}};
  detail::fill_target(transfer, 0, devices);
  EXPECT_THAT(out, ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(devices.at(0).traffic().sent_bytes, 8u);
  EXPECT_EQ(devices.at(1).traffic().received_bytes, 8u);
  EXPECT_EQ(devices.at(1).traffic().sent_bytes, 0u);
}

// Two tiles with two replicas each; the target straddles them. So it is in a reduce_scatter over
// blocks that do not divide.
TEST(Transfer, AReductionMayTakeItsTargetInDisjointParts) {
  const Devices devices(4);
  const Box low({0, 0}, {3, 2}), high({3, 0}, {5, 2}), wanted({2, 1}, {5, 2});
  std::vector<float> a{1, 2, 3, 4, 5, 6}, b{10, 20, 30, 40, 50, 60}, c{7, 8, 9, 10},
      d{70, 80, 90, 100}, out{0, 0, 0};
  const detail::Transfer transfer{
      TransferPlan({{0, low}, {1, high}, {2, low}, {3, high}}, {{0, wanted}}, {.reduction = Reduction::sum}),
      DType::f32,
      {{bytes(a), low}, {bytes(c), high}, {bytes(b), low}, {bytes(d), high}},
      {{bytes(out), wanted}}};
  detail::fill_target(transfer, 0, devices);
  EXPECT_THAT(out, ElementsAre(66, 88, 110));
  EXPECT_EQ(devices.at(0).traffic().received_bytes, 4u * 5);
  EXPECT_EQ(devices.at(3).traffic().sent_bytes, 4u * 2);
}

TEST(Transfer, LeavesWhatIsInPlaceAndWritesOnlyItsTarget) {
  const Devices devices(2);
  std::vector<float> own{1, 2, -1, -1}, other{-2, -2, 3, 4};
  const Box whole({0}, {4}), low({0}, {2}), high({2}, {4});
  const detail::Transfer transfer{TransferPlan({{0, low}, {1, high}}, {{0, whole}, {1, whole}}),
                                  DType::f32,
                                  {{bytes(own), whole}, {bytes(other), whole}},
                                  {{bytes(own), whole}, {bytes(other), whole}}};
  detail::fill_target(transfer, 0, devices);
  EXPECT_THAT(own, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(other, ElementsAre(-2, -2, 3, 4));
  detail::fill_target(transfer, 1, devices);
  EXPECT_THAT(other, ElementsAre(1, 2, 3, 4));
}

TEST(Transfer, AnEmptyTargetNeedsNothing) {
  const Devices devices(2);
  std::vector<float> values{1, 2};
  const Box whole({0}, {2}), none({2}, {2});
  const detail::Transfer transfer{TransferPlan({{0, whole}}, {{1, none}}),
                                  DType::f32,
                                  {{bytes(values), whole}},
                                  {{nullptr, none}}};
  detail::fill_target(transfer, 0, devices);
  EXPECT_EQ(devices.at(0).traffic().sent_bytes, 0u);
}

}  // namespace
}  // namespace shardwise
