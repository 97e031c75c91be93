#include "shardwise/mend/detail/file_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/step_and_copy.h"

namespace shardwise {
namespace {

class FileMakerTest : public StepAndCopy {};

TEST_F(FileMakerTest, MakesEachKindOfFileAgain) {
  const auto stored = detail::open_checkpoint(*files_, step_);
  const detail::Manifest manifest = stored.manifest;
  const std::string shard = stored.file_name(0);
  for (const std::string& name : {std::string("manifest.json"), std::string("index.h5"), shard}) {
    SCOPED_TRACE(name);
    std::filesystem::remove(step_ / name);
    mend_detail::FileMaker maker(*files_, step_, {copy_});
    std::string why_not;
    const auto from = name == shard        ? maker.make_shard_file({manifest.files[0]}, why_not)
                      : name == "index.h5" ? maker.make_index(manifest, why_not)
                                           : maker.make_manifest(why_not);
    EXPECT_TRUE(from) << why_not;
    EXPECT_TRUE(verify_checkpoint(step_).ok());
  }
}

TEST_F(FileMakerTest, SaysWhyThereIsNothingToMakeItFrom) {
  const auto stored = detail::open_checkpoint(*files_, step_);
  const detail::Manifest manifest = stored.manifest;
  std::filesystem::remove(step_ / stored.file_name(0));
  mend_detail::FileMaker maker(*files_, step_, {});
  std::string why_not;
  EXPECT_FALSE(maker.make_shard_file({manifest.files[0]}, why_not));
  EXPECT_FALSE(why_not.empty());
}

}  // namespace
}  // namespace shardwise
