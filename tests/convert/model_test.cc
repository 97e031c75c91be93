#include "shardwise/convert/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "convert/weight_bytes.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

TEST(ModelReader, RefusesBoxesThatAreNotTheTensors) {
  const TempDir dir;
  write_file(dir / "m.safetensors",
             weight_bytes(R"({"w":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},)"
                          R"("x":{"dtype":"NEW","shape":[1],"data_offsets":[6,8]}})",
                          "123456ab"));
  const ModelReader reader(dir / "m.safetensors");
  const auto refused = [&](std::size_t tensor, const Box& box, std::size_t bytes,
                           ErrorCode code = ErrorCode::invalid_argument) {
    std::vector<std::byte> out(bytes);
    return message_of(code, [&] { reader.read(tensor, box, out); });
  };
  EXPECT_THAT(refused(2, Box({0}, {1}), 1), HasSubstr("there is no tensor number 2 of 2"));
  EXPECT_THAT(refused(0, Box({0, 0}, {2, 4}), 8), HasSubstr("needed is a box inside"));
  EXPECT_THAT(refused(0, Box({0, 0}, {2, 3}), 5), HasSubstr("5 bytes for box"));
  EXPECT_THAT(refused(1, Box({0}, {1}), 1, ErrorCode::unsupported), HasSubstr("NEW"));
  EXPECT_THAT(reader.left_out(), testing::ElementsAre("\"x\": dtype \"NEW\" is not supported"));
  EXPECT_EQ(reader.user_json(), "{}");
}

}  // namespace
}  // namespace shardwise
