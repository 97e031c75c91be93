// latest() while another process changes the root.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/fault_model.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::IsEmpty;

void expect_only_model(const std::filesystem::path& directory,
                       std::span<const HostTensor> tensors) {
  const CheckpointReader reader(directory);
  EXPECT_EQ(reader.tensors().size(), tensors.size());
  EXPECT_TRUE(holds(reader, tensors));
}

// Another process replaces the newest step at any moment while this one looks for it: it is never
// overlooked, and nothing is called corrupt.
TEST(CheckpointManagerLatest, LatestSeesAStepThatIsReplacedWhileItLooks) {
  for (const bool only : {false, true}) {
    // 0: it is left alone; then before list, manifest, shard file, list; 5: not any more.
    for (int at = 0; at <= 5; ++at) {
      SCOPED_TRACE(testing::Message() << "operation " << at << (only ? ", only step" : ""));
      const TempDir dir;
      CheckpointManager writer(dir.path());
      if (!only) writer.save(1, sources_of(fault_model(1)));
      writer.save(2, sources_of(fault_model(2)));
      int operations = 0;
      const auto files =
          std::make_shared<HookedFileSystem>([&](std::string_view, const std::filesystem::path&) {
            if (++operations == at) {
              writer.save(2, sources_of(fault_model(3)), {.existing = Existing::replace});
            }
          });
      const CheckpointManager manager(dir.path(), {.collect_garbage = false, .file_system = files});
      operations = 0;
      const auto latest = manager.latest();
      ASSERT_TRUE(latest);
      EXPECT_EQ(latest->step.step, 2);
      EXPECT_THAT(latest->rejected, IsEmpty());
      const bool replaced = at > 0 && at < 5;
      expect_only_model(latest->step.directory, fault_model(replaced ? 3 : 2));
      EXPECT_EQ(operations == 4, at < 2 || at == 5) << operations;
    }
  }
}

// The same with a step that is removed and saved again under its name.
TEST(CheckpointManagerLatest, LatestSeesAStepThatIsSavedAnewWhileItLooks) {
  for (int at = 1; at <= 12; ++at) {
    SCOPED_TRACE(at);
    const TempDir dir;
    CheckpointManager writer(dir.path());
    writer.save(1, sources_of(fault_model(1)));
    writer.save(2, sources_of(fault_model(2)));
    int operations = -1;  // there is one more when the root is opened
    const auto files =
        std::make_shared<HookedFileSystem>([&](std::string_view, const std::filesystem::path&) {
          ++operations;
          if (operations == at) writer.remove(2);
          // At once, or after an operation that finds nothing.
          if (operations == at + at % 2) writer.save(2, sources_of(fault_model(3)));
        });
    const CheckpointManager manager(dir.path(), {.collect_garbage = false, .file_system = files});
    ASSERT_EQ(operations, 0);
    const auto latest = manager.latest();
    ASSERT_TRUE(latest);
    if (operations < at + at % 2 && operations >= at) continue;  // there was none at the end
    EXPECT_EQ(latest->step.step, 2);
    EXPECT_THAT(latest->rejected, IsEmpty());
    expect_only_model(latest->step.directory, fault_model(operations >= at ? 3 : 2));
  }
}

}  // namespace
}  // namespace shardwise
