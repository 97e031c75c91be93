#include "shardwise/checkpoint/detail/format/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

TEST(JsonFields, NamesObjectAndKeyOfWhatDoesNotFit) {
  const std::string text = R"({"n":-1,"big":18446744073709551615,"f":1.5,"dims":[1,2,0],)"
                           R"("range":[5,4],"list":3,"s":")" +
                           std::string(200, 'x') + "\"}";
  const JsonDocument document(text, 10);
  const JsonFields fields(document.root(),
                          {.what = "tensor", .name = "w", .part = " piece", .number = 3});
  const struct {
    std::function<void()> run;
    const char* message;
  } cases[] = {
      {[&] { fields.any("no"); }, "tensor \"w\" piece 3: key \"no\" is missing"},
      {[&] { fields.integer("n"); }, "\"n\" is -1, needed is 0 .. 2^63 - 1"},
      {[&] { fields.integer("big"); }, "\"big\" is 18446744073709551615"},
      {[&] { fields.integer("f"); }, "\"f\" holds 1.5, needed is an integer"},
      {[&] { fields.integer("s"); }, "\"s\" holds a JSON string, needed is an integer"},
      {[&] { fields.text("n"); }, "\"n\" is a JSON number, needed is a string"},
      {[&] { fields.list("list"); }, "\"list\" is a JSON number, needed is a list"},
      {[&] { fields.dims("dims", 1); }, "\"dims\" is 0, needed is 1 .. 2^63 - 1"},
      {[&] { fields.range("range"); }, "\"range\" begins at 5 and ends at 4"},
      {[&] { fields.range("dims"); }, "\"dims\" has something else, needed are pairs [begin,end]"},
      {[&] { fields.hash64("s"); }, "\"s\" is not 16 hex digits"},
      {[&] {
         fields.choice("s", {"a", "b"});
       },
       "xxx\".., known are a, b"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, c.run), HasSubstr(c.message));
  }
  const JsonDocument number("1", 10);
  EXPECT_THAT(
      message_of(ErrorCode::corrupt, [&] { JsonFields(number.root(), {.what = "manifest"}); }),
      HasSubstr("manifest: is a JSON number, needed is an object"));
  EXPECT_EQ(fields.integer("n", -1), -1);
  EXPECT_EQ(fields.dims("dims", 0), Shape({1, 2, 0}));
}

}  // namespace
}  // namespace shardwise::detail
