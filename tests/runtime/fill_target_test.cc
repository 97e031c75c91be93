#include "shardwise/runtime/program/detail/fill_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace shardwise {
namespace {

using detail::fill_target;
using ::testing::ElementsAre;

std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

detail::SourceMemory memory(std::vector<ConstBoxView> views) {
  return [views](const Copy& copy) { return views[static_cast<std::size_t>(copy.source)]; };
}

TEST(FillTarget, CopiesFillOneTarget) {
  std::vector<float> left{1, 2, 3, 4}, right{5, 6}, out{0, 0, 0, 0};
  const Box low({0}, {4}), high({4}, {6}), wanted({2}, {6});
  const TransferPlan plan({{0, low}, {1, high}}, {{1, wanted}});
  fill_target(plan, 0, DType::f32, memory({{bytes(left), low}, {bytes(right), high}}),
              {bytes(out), wanted});
  EXPECT_THAT(out, ElementsAre(3, 4, 5, 6));
}

// Two tiles with two replicas each; the target straddles them. So it is in a reduce_scatter over
// blocks that do not divide.
TEST(FillTarget, AReductionMayTakeItsTargetInDisjointParts) {
  const Box low({0, 0}, {3, 2}), high({3, 0}, {5, 2}), wanted({2, 1}, {5, 2});
  std::vector<float> a{1, 2, 3, 4, 5, 6}, b{10, 20, 30, 40, 50, 60}, c{7, 8, 9, 10},
      d{70, 80, 90, 100}, out{0, 0, 0};
  const TransferPlan plan({{0, low}, {1, high}, {2, low}, {3, high}}, {{0, wanted}},
                          {.reduction = Reduction::sum});
  fill_target(plan, 0, DType::f32,
              memory({{bytes(a), low}, {bytes(c), high}, {bytes(b), low}, {bytes(d), high}}),
              {bytes(out), wanted});
  EXPECT_THAT(out, ElementsAre(66, 88, 110));
}

TEST(FillTarget, LeavesWhatIsInPlaceAndWritesOnlyItsTarget) {
  std::vector<float> own{1, 2, -1, -1}, other{-2, -2, 3, 4};
  const Box whole({0}, {4}), low({0}, {2}), high({2}, {4});
  const TransferPlan plan({{0, low}, {1, high}}, {{0, whole}, {1, whole}});
  const auto sources = memory({{bytes(own), whole}, {bytes(other), whole}});
  fill_target(plan, 0, DType::f32, sources, {bytes(own), whole});
  EXPECT_THAT(own, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(other, ElementsAre(-2, -2, 3, 4));
  fill_target(plan, 1, DType::f32, sources, {bytes(other), whole});
  EXPECT_THAT(other, ElementsAre(1, 2, 3, 4));
}

TEST(FillTarget, AnEmptyTargetNeedsNothing) {
  const Box whole({0}, {2}), none({2}, {2});
  const TransferPlan plan({{0, whole}}, {{1, none}});
  fill_target(plan, 0, DType::f32, [](const Copy&) -> ConstBoxView { throw 1; }, {nullptr, none});
}

}  // namespace
}  // namespace shardwise
