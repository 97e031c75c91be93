#include "shardwise/checkpoint/detail/write/part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class Part : public testing::Test {
 protected:
  /// Two files, the first one of both tensors.
  std::vector<WrittenShardFile> write(const AttemptDirectory& directory,
                                      const EncodeOptions& options = {}) {
    operations_.clear();
    const HostTensor tensors[] = {host_tensor("a", DType::f32, {10, 10}, "x=2", "-,-"),
                                  host_tensor("b", DType::f32, {400, 200}, "x=2", "x,-")};
    const SavePlan plan =
        plan_save(sources_of(tensors), Codec::none, executor_, WriterMap::even(2, 2), {0, 2});
    bytes_ = plan.logical_bytes;
    return write_part({files_, executor_, pool_}, directory, plan, options);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  TempDir dir_;
  std::vector<std::string> operations_;  // that make files
  HookedFileSystem files_{[this](std::string_view operation, const std::filesystem::path&) {
    if (operation == "create" || operation == "reuse") operations_.emplace_back(operation);
  }};
  Executor executor_{1};
  std::unique_ptr<StagingPool> pool_;
  std::size_t bytes_ = 0;
};

const char *const kFirst = "shards-00000-of-00002.h5", *const kSecond = "shards-00001-of-00002.h5";

TEST_F(Part, IsOneFileOfEachWriterWhoseSizesItTells) {
  std::vector<std::size_t> done;
  const auto written = write({dir_.path()}, {.progress = [&](const Progress& progress) {
                               EXPECT_EQ(progress.total_bytes, bytes_);
                               done.push_back(progress.done_bytes);
                             }});
  EXPECT_THAT(names(), UnorderedElementsAre(kFirst, kSecond));
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0].entry.name, kFirst);
  for (const WrittenShardFile& file : written) {
    EXPECT_EQ(std::filesystem::file_size(dir_ / file.entry.name), file.entry.bytes);
  }
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.back(), bytes_);
}

TEST_F(Part, InASpareRemovesWhatIsNotItsOwnUnlessOthersWriteThere) {
  for (const char* name : {kFirst, "strange.h5"}) write_file(dir_ / name, "");
  write({.path = dir_.path(), .is_reused = true, .is_shared = true});
  EXPECT_THAT(names(), UnorderedElementsAre(kFirst, kSecond, "strange.h5"));
  write({.path = dir_.path(), .is_reused = true});
  EXPECT_THAT(names(), UnorderedElementsAre(kFirst, kSecond));
}

}  // namespace
}  // namespace shardwise::detail
