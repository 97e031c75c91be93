#include "shardwise/reshape/detail/edits/edited_tensor.h"

#include <gtest/gtest.h>

namespace shardwise {
namespace {

using reshape_detail::EditedPart;
using reshape_detail::EditedTensor;
using reshape_detail::kNewDim;

TEST(EditedTensor, BoxesGoToTheSourceAndBack) {
  // Two parts of 3 and 4 rows; the second is columns 10 .. 14 of its source, transposed.
  const EditedPart first{.source = 0, .source_rank = 2, .begin = 0, .end = 3};
  const EditedPart second{
      .source = 1, .source_rank = 2, .order = {1, 0}, .from = 10, .begin = 3, .end = 7};
  const EditedTensor both{.info = {}, .dim = 0, .parts = {first, second}};
  EXPECT_TRUE(first.keeps_order());
  EXPECT_FALSE(second.keeps_order());
  const Box box({2, 1}, {5, 6});
  EXPECT_EQ(both.common(first, box), Box({2, 1}, {3, 6}));
  const Box common = both.common(second, box);
  EXPECT_EQ(common, Box({3, 1}, {5, 6}));
  EXPECT_EQ(both.in_source(second, common), Box({1, 10}, {6, 12}));
  EXPECT_EQ(both.from_source(second, Box({1, 10}, {6, 12})), common);
}

TEST(EditedTensor, ANewDimIsOneIndexOfAPart) {
  const EditedPart row{.source = 0, .source_rank = 1, .order = {kNewDim, 0}, .begin = 4, .end = 5};
  const EditedTensor rows{.info = {}, .dim = 0, .parts = {row}};
  EXPECT_EQ(rows.in_source(row, Box({4, 2}, {5, 3})), Box({2}, {3}));
  EXPECT_EQ(rows.from_source(row, Box({2}, {3})), Box({4, 2}, {5, 3}));
}

}  // namespace
}  // namespace shardwise
