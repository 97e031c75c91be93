// Attempts of a step in a bucket, whose writers somebody else brings together, over a bucket in
// memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "shardwise/bucket/bucket.h"
#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/jobs/save_together.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "testing/errors.h"
#include "testing/memory_bucket.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

constexpr std::int64_t kRows = 6'000, kHalf = kRows / 2;

class BucketAttempt : public ::testing::Test {
 protected:
  BucketAttempt() {
    use_object_client("memory", bucket_, {.tries = 3, .wait = [](auto) {}});
  }
  ~BucketAttempt() override { use_object_client("memory", nullptr); }

  std::unique_ptr<CheckpointAttempt> attempt(Existing existing = Existing::fail) const {
    return jobs_detail::attempt_at(step_, existing);
  }

  /// The upper or the lower half of "w", whose values ascend from `first`.
  ShardRecord write(const CheckpointAttempt& attempt, int writer, float first) const {
    std::vector<float> all(kRows * 2);
    std::iota(all.begin(), all.end(), first);
    TensorSource source = host_source("w", {kRows, 2}, all);
    source.boxes = {Box({writer * kHalf, 0}, {writer * kHalf + kHalf, 2})};
    return jobs_detail::write_shards_at(attempt.directory(), {writer, {0, 1, 2}}, {source}, {});
  }

  SaveStats publish(CheckpointAttempt& attempt, float first) const {
    const std::vector<ShardRecord> records{write(attempt, 1, first), write(attempt, 0, first)};
    return attempt.publish(records, {.user_json = R"({"a": 1})"});
  }

  /// The first value, if the step is whole.
  float read() const {
    EXPECT_TRUE(verify_checkpoint(step_).ok());
    std::vector<float> all(kRows * 2), needed(kRows * 2);
    CheckpointReader(step_).read("w", all);
    std::iota(needed.begin(), needed.end(), all[0]);
    EXPECT_EQ(all, needed);
    return all[0];
  }

  const fs::path step_ = "s3://memory/runs/step-00000007";
  const std::shared_ptr<MemoryBucket> bucket_ = std::make_shared<MemoryBucket>();
};

TEST_F(BucketAttempt, BecomesTheStepThatItsWritersHaveWritten) {
  const auto one = attempt();
  EXPECT_EQ(one->directory(), step_);
  EXPECT_FALSE(jobs_detail::is_saved_at(step_));
  const SaveStats stats = publish(*one, 3);
  EXPECT_EQ(stats.directory, step_);
  EXPECT_EQ(stats.cleanup_error, "");
  EXPECT_EQ(read(), 3);
  EXPECT_TRUE(jobs_detail::is_saved_at(step_));
  EXPECT_EQ(CheckpointReader(step_).user_json(), R"({"a": 1})");
  EXPECT_THAT(bucket_->objects(), Not(Contains(Key("runs/.claim-step-00000007"))));
  EXPECT_THAT(collect_bucket_garbage("s3://memory/runs").removed, ElementsAre());
}

TEST_F(BucketAttempt, AStepThatIsThereIsRefusedOrReplaced) {
  publish(*attempt(), 3);
  const auto before = bucket_->objects();
  for (const Existing existing : {Existing::fail, Existing::skip}) {
    EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { attempt(existing); }),
                HasSubstr("step-00000007 is already there"));
  }
  EXPECT_EQ(bucket_->objects(), before);
  const SaveStats stats = publish(*attempt(Existing::replace), 4);
  EXPECT_EQ(stats.directory, fs::path("s3://memory/runs/step-00000007.g2"));
  EXPECT_EQ(stats.cleanup_error, "");
  EXPECT_EQ(read(), 4);
  EXPECT_EQ(CheckpointManager("s3://memory/runs").steps().size(), 1u);
  EXPECT_THAT(bucket_->objects(),
              Not(Contains(Key("runs/step-00000007/shards-00000-of-00002.h5"))));
}

TEST_F(BucketAttempt, OneThatIsNotPublishedIsSealed) {
  {
    const auto one = attempt();
    static_cast<void>(write(*one, 0, 3));
    EXPECT_THAT(message_of(ErrorCode::not_found, [&] { CheckpointReader{step_}; }),
                HasSubstr("step-00000007"));
  }
  EXPECT_THAT(bucket_->objects(), Not(Contains(Key(HasSubstr("shards-")))));
  EXPECT_THAT(bucket_->objects(), Not(Contains(Key(HasSubstr("claim-")))));
  EXPECT_EQ(publish(*attempt(), 5).directory, fs::path("s3://memory/runs/step-00000007.g2"));
  EXPECT_EQ(read(), 5);
}

TEST_F(BucketAttempt, IsRefusedWhereRecordsOrFilesDoNotFit) {
  const auto one = attempt();
  const std::vector<ShardRecord> own{write(*one, 0, 3), write(*one, 1, 3)};
  const auto other = jobs_detail::attempt_at("s3://memory/other/step-00000007", Existing::fail);
  const std::vector<ShardRecord> mixed{own[0], write(*other, 1, 3)};
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { one->publish(mixed); }),
              HasSubstr("found a record of writer 1 for another attempt"));
  bucket_->remove("runs/step-00000007/shards-00001-of-00002.h5");
  EXPECT_THROW(one->publish(own), Error);
  EXPECT_FALSE(jobs_detail::is_saved_at(step_));
}

TEST_F(BucketAttempt, EveryDoorRefusesOtherNamesAlike) {
  const std::map<std::string, std::string> needed_by_name{
      {"model.sw", "step-N as its last part, as in step-00000100"},
      {"step-00000007.g2", "step-00000007 as its last part"},
      {"step-7", "step-00000007 as its last part"}};
  for (const auto& [name, needed] : needed_by_name) {
    const std::string url = "s3://memory/runs/" + name;
    const std::string said = "save " + url + ": found the name " + name + ", needed " + needed;
    EXPECT_EQ(
        message_of(ErrorCode::unsupported, [&] { jobs_detail::attempt_at(url, Existing::fail); }),
        said);
    EXPECT_EQ(message_of(ErrorCode::unsupported, [&] { jobs_detail::is_saved_at(url); }), said);
    EXPECT_EQ(message_of(ErrorCode::unsupported,
                         [&] { save_together(GroupRendezvous({}, ""), url, {}, {}); }),
              said);
  }
  EXPECT_THAT(bucket_->objects(), testing::IsEmpty());
}

}  // namespace
}  // namespace shardwise
