#include "compare.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/edits.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::tools {
namespace {

/// A step of these tensors.
std::shared_ptr<CheckpointReader> step_of(const TempDir& dir, std::int64_t step,
                                          const std::vector<HostTensor>& tensors) {
  return std::make_shared<CheckpointReader>(
      CheckpointManager(dir.path()).save(step, sources_of(tensors)).directory);
}

TEST(Compare, NamesTheFirstTensorAndElementThatDiffer) {
  const TempDir dir;
  const HostTensor a = host_tensor("a", DType::i32, {3}, "1", "-", Values::ramp);
  HostTensor b = host_tensor("b", DType::f32, {2, 3}, "1", "-,-", Values::ramp);
  const auto source = step_of(dir, 1, {a, b});
  check_equal(*source, *step_of(dir, 2, {a, b}), "x");

  auto data = std::make_shared<std::vector<std::byte>>(*b.data);
  reinterpret_cast<float*>(data->data())[4] = 0.5f;
  b.data = data;
  EXPECT_EQ(
      message_of(ErrorCode::corrupt,
                 [&] {
                   check_equal(*source, *step_of(dir, 3, {a, b}), "out/step-3");
                 }),
      "verify out/step-3: 1 of 2 tensors are not as in the source; tensor \"b\": 1 of 6 elements "
      "differ, first at [1, 1]: found 0.5, needed 2");
  EXPECT_EQ(
      message_of(ErrorCode::corrupt, [&] { check_equal(*source, *step_of(dir, 4, {b}), "x"); }),
      "verify x: 2 of 2 tensors are not as in the source; tensor \"a\": it was not written");
  EXPECT_EQ(
      message_of(ErrorCode::corrupt,
                 [&] {
                   check_equal(EditedTensors(source, {.casts = {{"b", DType::f16}}}),
                               *step_of(dir, 5, {a, b}), "x");
                 }),
      "verify x: 1 of 2 tensors are not as in the source; tensor \"b\": found f32 [2, 3], needed "
      "f16 [2, 3]");
}

}  // namespace
}  // namespace shardwise::tools
