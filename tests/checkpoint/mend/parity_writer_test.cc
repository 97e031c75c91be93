#include "shardwise/mend/detail/parity_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/checkpoint/verify.h"
#include "testing/errors.h"
#include "testing/step_and_copy.h"

namespace shardwise {
namespace {

class ParityWriterTest : public StepAndCopy {};

TEST_F(ParityWriterTest, WritesWhatIsMissingOrDamaged) {
  mend_detail::ParityWriting writing{.blocks = 1};
  const ParityStats first = mend_detail::write_parity_files(*files_, step_, writing);
  EXPECT_EQ(first.files, 1);
  EXPECT_EQ(first.written, 1);
  EXPECT_EQ(mend_detail::write_parity_files(*files_, step_, writing).written, 0);
  std::string parity;
  for (const std::string& name : files_->list(step_)) {
    if (name.ends_with(".parity")) parity = name;
  }
  writing.damaged = {parity};
  EXPECT_EQ(mend_detail::write_parity_files(*files_, step_, writing).written, 1);
  writing.is_mine = [](const detail::FileEntry&) { return false; };
  EXPECT_EQ(mend_detail::write_parity_files(*files_, step_, writing).written, 0);
  EXPECT_TRUE(verify_checkpoint(step_).ok());
}

TEST_F(ParityWriterTest, RefusesNumbersOfBlocksThatCannotBe) {
  EXPECT_NO_THROW(mend_detail::check_parity_blocks("t", 127));
  for (const std::int64_t blocks : {0, -1, 128}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { mend_detail::check_parity_blocks("t", blocks); }),
                testing::StartsWith("t: "));
  }
}

}  // namespace
}  // namespace shardwise
