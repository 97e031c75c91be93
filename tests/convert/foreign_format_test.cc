#include "shardwise/convert/detail/foreign_format.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardwise::detail {
namespace {

TEST(ForeignFormat, SaysWhatAFileSeemsToBe) {
  EXPECT_EQ(foreign_file("PK\3\4\x14"), "a zip archive, such as PyTorch's");
  EXPECT_EQ(foreign_file("\x80\2}q"), "a Python pickle");
  EXPECT_EQ(foreign_file("{\"a\""), "JSON");
  EXPECT_EQ(foreign_file("PK"), "");
  EXPECT_EQ(foreign_file(""), "");
}

TEST(ForeignFormat, SaysWhatAFolderSeemsToBe) {
  const auto folder = [](std::vector<std::string> names) { return foreign_folder(names); };
  EXPECT_TRUE(folder({"index.h5", "manifest.json"}).starts_with("a checkpoint of Shardwise"));
  EXPECT_TRUE(folder({"step-00000001"}).starts_with("a directory of Shardwise's checkpoints"));
  EXPECT_TRUE(folder({".metadata", "__0_0.distcp"})
                  .starts_with("a distributed checkpoint of PyTorch, which"));
  EXPECT_TRUE(
      folder({"_CHECKPOINT_METADATA", "default"}).starts_with("a checkpoint of Orbax, which"));
  EXPECT_EQ(folder({"config.json", "pytorch_model.bin"}), "a model in PyTorch's files");
  EXPECT_EQ(folder({"x.gguf"}), "GGUF");
  EXPECT_EQ(folder({"config.json"}), "");
  EXPECT_EQ(folder({}), "");
}

}  // namespace
}  // namespace shardwise::detail
