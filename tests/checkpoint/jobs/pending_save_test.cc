#include "shardwise/jobs/pending_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

TEST(PendingSave, AloneIsDoneAndSavedNothing) {
  const PendingSave none;
  EXPECT_TRUE(none.done());
  EXPECT_EQ(none.wait().chunks, 0);
}

TEST(PendingSave, CopiesReferToOneSave) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
  const PendingSave first = manager.save_async(1, {tensor.source()});
  const PendingSave copy = first;
  EXPECT_EQ(first.wait().directory, dir / "step-00000001");
  EXPECT_TRUE(copy.done());
  EXPECT_EQ(copy.wait().file_bytes, first.wait().file_bytes);
}

TEST(PendingSave, ThrowsWhatTheSaveThrewEachTime) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
  const PendingSave pending = manager.save_async(
      1, {tensor.source()},
      {.progress = [](const Progress&) { throw Error(ErrorCode::cancelled, "enough"); }});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { pending.wait(); }),
                testing::HasSubstr("enough"));
  }
  EXPECT_TRUE(manager.steps().empty());
}

}  // namespace
}  // namespace shardwise
