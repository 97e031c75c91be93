#include "shardwise/convert/detail/aliased_tensors.h"

#include <gtest/gtest.h>

#include "convert/memory_model.h"

namespace shardwise {
namespace {

TEST(AliasedTensors, AreThereUnderBothNames) {
  const Model model({whole_tensor("b", DType::u8, {4}, 1), whole_tensor("c", DType::u8, {4}, 2)});
  const auto aliases = detail::parse_aliases(
      R"({"objects":{"aliases":{"x":"b"}},"aliases":{"a":"b","c":"b","d":"gone"},"n":[1,{"y":"b"}]})");
  const detail::AliasedTensors all(model, aliases);
  EXPECT_EQ(names_of(all), "a;b;c;");
  EXPECT_EQ(all_of(all, 0), all_of(model, 0));
  EXPECT_EQ(all_of(all, 2), all_of(model, 1));  // its own, as "c" is a tensor
}

TEST(AliasedTensors, OfAnotherTextAreNone) {
  for (const char* text : {"", "[]", "{\"aliases\":7}", "{\"aliases\":[{\"a\":\"b\"}]}",
                           "{\"aliases\":{\"a\":\"b\"}", "not JSON"}) {
    EXPECT_TRUE(detail::parse_aliases(text).empty()) << text;
  }
}

}  // namespace
}  // namespace shardwise
