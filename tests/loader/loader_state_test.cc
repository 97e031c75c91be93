#include "shardwise/loader/loader_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(LoaderState, IsTheTextOfTheHeader) {
  EXPECT_EQ(to_json({.seed = 1, .next_batch = 40, .fingerprint = 0xab}),
            R"({"seed":1,"next_batch":40,"fingerprint":"00000000000000ab"})");
}

TEST(LoaderState, GoesToTextAndBack) {
  for (const LoaderState& state :
       {LoaderState{}, LoaderState{.seed = 7, .next_batch = 1, .fingerprint = 0xfedcba9876543210},
        LoaderState{.seed = UINT64_MAX, .next_batch = INT64_MAX, .fingerprint = UINT64_MAX}}) {
    const std::string text = to_json(state);
    EXPECT_EQ(loader_state_from_json(text), state) << text;
    EXPECT_LE(text.size(), 256u);
  }
  EXPECT_EQ(loader_state_from_json(
                " {\"fingerprint\" : \"00000000000000AB\",\n\"next_batch\":40, \"seed\":1}\n"),
            (LoaderState{.seed = 1, .next_batch = 40, .fingerprint = 0xab}));
}

TEST(LoaderState, RejectsAnyOtherText) {
  const std::string fingerprint = R"("fingerprint":"00000000000000ab")";
  const struct {
    const char* name;
    std::string text;
    const char* message;
  } cases[] = {
      {"nothing", "", "parse error"},
      {"no JSON", "seed=1", "parse error"},
      {"cut short", R"({"seed":1,"next_batch":4)", "parse error"},
      {"more behind", R"({"seed":1,"next_batch":4,)" + fingerprint + "}x", "parse error"},
      {"not UTF-8", "{\"seed\xff\":1}", "parse error"},
      {"an array", "[1,2,3]", "found array, needs an object"},
      {"a number", "7", "found number, needs an object"},
      {"no seed", R"({"next_batch":4,)" + fingerprint + "}", "key \"seed\" is missing"},
      {"no batch", R"({"seed":4,)" + fingerprint + "}", "key \"next_batch\" is missing"},
      {"no fingerprint", R"({"seed":1,"next_batch":4})", "key \"fingerprint\" is missing"},
      {"unknown key", R"({"seed":1,"next_batch":4,"epoch":2,)" + fingerprint + "}",
       "unknown key \"epoch\""},
      {"repeated key", R"({"seed":1,"next_batch":4,"seed":2,)" + fingerprint + "}",
       "key \"seed\" comes twice"},
      {"seed is text", R"({"seed":"1","next_batch":4,)" + fingerprint + "}",
       "\"seed\" is \"1\", needs a whole number"},
      {"seed is negative", R"({"seed":-1,"next_batch":4,)" + fingerprint + "}", "\"seed\" is -1"},
      {"seed is a fraction", R"({"seed":1.0,"next_batch":4,)" + fingerprint + "}",
       "\"seed\" is 1.0"},
      {"seed is too large", R"({"seed":18446744073709551616,"next_batch":4,)" + fingerprint + "}",
       "\"seed\" is 1.8446744073709552e+19"},
      {"seed is null", R"({"seed":null,"next_batch":4,)" + fingerprint + "}", "\"seed\" is null"},
      {"batch is too large", R"({"seed":1,"next_batch":9223372036854775808,)" + fingerprint + "}",
       "\"next_batch\" is 9223372036854775808, needs a whole number from 0 to 9223372036854775807"},
      {"batch is an object", R"({"seed":1,"next_batch":{"a":1},)" + fingerprint + "}",
       "unknown key \"a\""},
      {"batch is an array", R"({"seed":1,"next_batch":[1],)" + fingerprint + "}",
       "\"next_batch\" is array"},
      {"fingerprint is a number", R"({"seed":1,"next_batch":4,"fingerprint":171})",
       "\"fingerprint\" is 171, needs a string of 16 hex digits"},
      {"fingerprint is short", R"({"seed":1,"next_batch":4,"fingerprint":"ab"})",
       "\"fingerprint\" is \"ab\""},
      {"fingerprint is no hex", R"({"seed":1,"next_batch":4,"fingerprint":"000000000000000g"})",
       "needs a string of 16 hex digits"},
      {"fingerprint has a sign", R"({"seed":1,"next_batch":4,"fingerprint":"-00000000000000a"})",
       "needs a string of 16 hex digits"},
      {"fingerprint has lines",
       R"({"seed":1,"next_batch":4,"fingerprint":"\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"})",
       "needs a string of 16 hex digits"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string message =
        message_of(ErrorCode::invalid_argument, [&] { loader_state_from_json(c.text); });
    EXPECT_THAT(message, StartsWith("read loader state: "));
    EXPECT_THAT(message, HasSubstr(c.message));
  }
  std::string deep(100000, '[');
  message_of(ErrorCode::invalid_argument, [&] { loader_state_from_json(deep); });
}

}  // namespace
}  // namespace shardwise
