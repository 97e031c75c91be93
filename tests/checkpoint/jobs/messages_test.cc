#include "shardwise/jobs/detail/save/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "testing/errors.h"

namespace shardwise::jobs_detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kId(32, 'a');

TEST(Messages, TellWhereASaveWritesAndHowItEnded) {
  const AttemptNotice notice{.id = kId,
                             .directory = "step-00000007.tmp",
                             .is_reused = true,
                             .existing = Existing::replace,
                             .base = "/there/step-00000006",
                             .terms = terms_of(7, {.writers = 2}, 12, std::nullopt, 3)};
  const AttemptNotice heard = decode_notice(encode(notice));
  EXPECT_EQ(heard.id, notice.id);
  EXPECT_EQ(heard.directory, notice.directory);
  EXPECT_TRUE(heard.is_reused);
  EXPECT_FALSE(heard.skipped);
  EXPECT_EQ(heard.existing, notice.existing);
  EXPECT_EQ(heard.base, notice.base);
  EXPECT_EQ(heard.terms, notice.terms);

  SaveOutcome outcome{.lists_wanted = {0, 2}, .stats = {}, .manifest = "{}"};
  outcome.stats.directory = "/run/step-00000007";
  outcome.stats.logical_bytes = 5;
  outcome.stats.chunks = 3;
  const SaveOutcome ended = decode_outcome(encode(outcome), 3);
  EXPECT_THAT(ended.lists_wanted, ElementsAre(0, 2));
  EXPECT_EQ(ended.stats.directory, "step-00000007");
  EXPECT_EQ(ended.stats.logical_bytes, 5);
  EXPECT_EQ(ended.stats.chunks, 3);
  EXPECT_EQ(ended.manifest, "{}");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { decode_outcome(encode(outcome), 2); }),
              HasSubstr("the outcome of a save"));  // of two ranks none is rank 2
}

TEST(Messages, TellTheLatestStepInTheReadersRoot) {
  const LatestStep latest{.step = {7, 2, "/root/of/rank0/step-00000007.2"},
                          .rejected = {{"/root/of/rank0/step-00000009", "a bad chunk", true}}};
  const auto [heard, id] = decode_latest(encode(latest, kId), "/mine");
  ASSERT_TRUE(heard);
  EXPECT_EQ(id, kId);
  EXPECT_EQ(heard->step.step, 7);
  EXPECT_EQ(heard->step.generation, 2);
  EXPECT_EQ(heard->step.directory, "/mine/step-00000007.2");
  ASSERT_EQ(heard->rejected.size(), 1);
  EXPECT_EQ(heard->rejected[0].directory, "/mine/step-00000009");
  EXPECT_EQ(heard->rejected[0].reason, "a bad chunk");
  EXPECT_TRUE(heard->rejected[0].is_foreign);
  EXPECT_FALSE(decode_latest(encode(std::nullopt, kId), "/mine").first);
}

TEST(Messages, RefuseNamesThatLeadOutOfTheRoot) {
  AttemptNotice notice;
  notice.id = "another";
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { decode_notice(encode(notice)); }),
              HasSubstr("found an id that is not 32 hex digits"));
  notice.id = kId;
  for (const char* name : {"..", "."}) {
    notice.directory = name;
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { decode_notice(encode(notice)); }),
                HasSubstr("found a name that is no directory's in a root"));
  }
}

}  // namespace
}  // namespace shardwise::jobs_detail
