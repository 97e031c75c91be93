#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "convert/memory_model.h"
#include "shardwise/convert/model.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

TEST(JoinedModel, HasExactlyWhatItsIndexSays) {
  const TempDir dir;
  for (const auto& [format, suffix] : {std::pair("npz", ".npz"), std::pair("hdf5", ".h5")}) {
    SCOPED_TRACE(format);
    const Model model({whole_tensor("a", DType::u8, {10}), whole_tensor("b/c", DType::u8, {30}),
                       whole_tensor("d", DType::u8, {10})});
    const std::string end(suffix);
    const std::filesystem::path folder = dir / format;
    export_model(model, folder, {.format = format, .max_shard_bytes = 20});
    const std::filesystem::path index = folder / ("model" + end + ".index.json");
    const auto refused = [&](const std::string& map) {
      write_file(index, "{\"weight_map\": {" + map + "}}");
      return message_of(ErrorCode::corrupt, [&] { ModelReader{folder}; });
    };
    const std::string second = "\"b/c\": \"model-00002-of-00003" + end + "\"";
    EXPECT_THAT(refused("\"a\": \"model-00002-of-00003" + end + "\""),
                HasSubstr("has tensor \"a\"; found \"b/c\""));
    EXPECT_THAT(refused(second + ", \"x\": \"model-00002-of-00003" + end + "\""),
                HasSubstr("has tensor \"x\"; found none"));
    EXPECT_THAT(refused("\"a\": \"model" + end + ".index.json\""),
                HasSubstr("is no file of tensors"));
    EXPECT_THAT(refused(""), HasSubstr("its weight_map is empty"));
  }
}

}  // namespace
}  // namespace shardwise
