#include "shardwise/jobs/detail/save/save_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::jobs_detail {
namespace {

using testing::HasSubstr;

class SavePlaces : public testing::Test {
 protected:
  void save_step() {
    const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
    CheckpointManager(dir_.path()).save(1, {tensor.source()});
  }

  const TempDir dir_;
  const std::filesystem::path root_ = dir_.path();
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
  const GroupRendezvous alone_{{}, "save step 1"};
  std::vector<std::filesystem::path> leftovers_;
};

TEST_F(SavePlaces, SharedOneIsADirectoryInTheRootUntilItIsCommitted) {
  {
    SharedStep place(*files_, root_, 1, leftovers_, nullptr);
    EXPECT_FALSE(place.find_valid());
    AttemptNotice notice;
    place.begin(notice);
    const AttemptDirectory directory = place.enter(alone_, notice);
    EXPECT_EQ(directory.path, root_ / notice.directory);
    EXPECT_TRUE(std::filesystem::is_directory(directory.path));
    EXPECT_FALSE(directory.is_shared);
    EXPECT_TRUE(place.is_there());
    EXPECT_FALSE(place.find_committed(notice.id));
    std::filesystem::remove_all(directory.path);
    EXPECT_FALSE(place.is_there());
  }
  save_step();
  const SharedStep place(*files_, root_, 1, leftovers_, nullptr);
  EXPECT_EQ(place.find_valid(), "step-00000001");
  const std::filesystem::path step = root_ / "step-00000001";
  const std::string id = detail::read_manifest(detail::open_directory(*files_, step)).id;
  EXPECT_EQ(place.find_committed(id), step);
  EXPECT_FALSE(place.find_committed("another"));
}

TEST_F(SavePlaces, OwnOneTellsNobodyItsDirectoryAndSkipsOnlyWhatItHas) {
  const LocalRoots roots{.copies = 0};
  const ProcessGroup group;
  const auto own = [&] {
    return OwnPlace(*files_, root_, 1, leftovers_, nullptr, roots, group, 1, nullptr);
  };
  {
    OwnPlace place = own();
    AttemptNotice notice;
    EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { place.skip(3, notice); }),
                HasSubstr("rank 0 has it, rank 3 has not"));
    place.begin(notice);
    EXPECT_EQ(notice.directory, "");
    EXPECT_EQ(place.enter(alone_, notice).path.parent_path(), root_);
    EXPECT_FALSE(place.has_index());
    EXPECT_FALSE(place.find_committed(notice.id));
  }
  save_step();
  const OwnPlace place = own();
  EXPECT_EQ(place.find_valid(), "step-00000001");
  EXPECT_EQ(place.skip(3, {}), root_ / "step-00000001");
}

}  // namespace
}  // namespace shardwise::jobs_detail
