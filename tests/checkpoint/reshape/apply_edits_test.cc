#include "shardwise/reshape/detail/edits/apply_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "shardwise/reshape/edits.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

TEST(ApplyEdits, NamesPartsAndPlacesOfNewTensors) {
  const std::vector<TensorInfo> tensors{{.name = "k", .dtype = DType::f32, .shape = {2, 3}},
                                        {.name = "q", .dtype = DType::f32, .shape = {4, 3}},
                                        {.name = "x", .dtype = DType::i8, .shape = {5}}};
  TensorEdits edits;
  edits.joins.push_back(TensorEdits::Join::parse("q,k=qk@0"));
  edits.casts.push_back(TensorEdits::Cast::parse("*=bf16"));
  const auto edited = reshape_detail::apply_edits(tensors, edits, "test");
  ASSERT_EQ(edited.size(), 2u);
  EXPECT_EQ(edited[0].info.name, "qk");
  EXPECT_EQ(edited[0].info.shape, (Shape{6, 3}));
  EXPECT_EQ(edited[0].info.dtype, DType::bf16);
  ASSERT_EQ(edited[0].parts.size(), 2u);
  EXPECT_EQ(edited[0].parts[0].source, 1u);  // "q" comes first in it
  EXPECT_EQ(edited[0].parts[1].begin, 4);
  EXPECT_EQ(edited[1].info.name, "x");
  EXPECT_EQ(edited[1].info.dtype, DType::i8);  // a pattern of many casts floats alone

  edits.casts.push_back(TensorEdits::Cast::parse("y=f32"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { reshape_detail::apply_edits(tensors, edits, "test"); }),
              testing::HasSubstr("matches none of 3 tensors"));
}

}  // namespace
}  // namespace shardwise
