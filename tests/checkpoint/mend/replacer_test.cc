#include "shardwise/mend/detail/replacer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <span>

#include "testing/errors.h"
#include "testing/step_and_copy.h"

namespace shardwise {
namespace {

class ReplacerTest : public StepAndCopy {};

TEST_F(ReplacerTest, PutsAWholeFileOrNone) {
  mend_detail::Replacer replacer(*files_, step_);
  const auto names = files_->list(step_);
  const auto bytes = std::as_bytes(std::span("text", 4));
  EXPECT_THAT(message_of(ErrorCode::cancelled,
                         [&] {
                           replacer.put("extra",
                                        [](File&) { throw Error(ErrorCode::cancelled, "enough"); });
                         }),
              testing::HasSubstr("enough"));
  EXPECT_EQ(files_->list(step_), names);
  replacer.put("extra", bytes);
  EXPECT_EQ(std::filesystem::file_size(step_ / "extra"), 4u);
  replacer.put("extra", bytes.first(2));
  EXPECT_EQ(std::filesystem::file_size(step_ / "extra"), 2u);
  replacer.remove_leftovers();
  EXPECT_EQ(files_->list(step_).size(), names.size() + 1);

  std::filesystem::rename(step_, dir_ / "elsewhere");
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { replacer.put("extra", bytes); }),
              testing::HasSubstr("step-00000001"));
}

}  // namespace
}  // namespace shardwise
