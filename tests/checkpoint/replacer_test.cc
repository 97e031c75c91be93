#include "shardwise/mend/detail/replacer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <span>

#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

/// A step of a root, and a copy of it.
class ReplacerTest : public testing::Test {
 protected:
  ReplacerTest() {
    const HostTensor tensor = host_tensor("x", DType::f32, {1000}, "1", "-", Values::noise);
    CheckpointManager(dir_ / "root").save(1, {tensor.source()}, {.codec = Codec::none});
    std::filesystem::copy(dir_ / "root", dir_ / "copy", std::filesystem::copy_options::recursive);
  }

  const TempDir dir_;
  const std::filesystem::path step_ = dir_ / "root/step-00000001";
  const std::filesystem::path copy_ = dir_ / "copy/step-00000001";
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
};

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
