#include "shardwise/convert/detail/model_source.h"

#include <gtest/gtest.h>

#include <string>

#include "convert/memory_model.h"
#include "shardwise/convert/model.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

TEST(ModelSource, IsRecognisedByItsBytesNotItsName) {
  const TempDir dir;
  const Model model({whole_tensor("w", DType::f32, {3}), whole_tensor("x", DType::f32, {3})});
  for (const std::string format : {"safetensors", "npz", "hdf5"}) {
    SCOPED_TRACE(format);
    const auto folder = dir / format;
    export_model(model, folder, {.format = format, .max_shard_bytes = 12});
    EXPECT_EQ(model_format(folder), format);
    const auto names = posix_file_system()->list(folder);
    ASSERT_EQ(names.size(), 3u);  // two files and their index
    EXPECT_EQ(model_format(folder / names[2]), format);
    std::filesystem::rename(folder / names[0], dir / "other.txt");
    EXPECT_EQ(model_format(dir / "other.txt"), format);
    EXPECT_EQ(ModelReader(dir / "other.txt").tensors().size(), 1u);
  }
  write_file(dir / "other.txt", "a text");
  EXPECT_EQ(model_format(dir / "other.txt"), "");
  EXPECT_EQ(model_format(dir / "nowhere"), "");
}

}  // namespace
}  // namespace shardwise
