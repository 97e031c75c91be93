#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "shardwise/loader/loader_options.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kRestOfState =
    R"("source":"00000000000000ab","stages":"00000000000000cd","batch_size":256,)"
    R"("order":"shuffled","last_batch":"drop","bad":"fail",)"
    R"("digest":"0000000000000001000000000000000f")";

TEST(LoaderState, IsTheTextOfTheHeader) {
  EXPECT_EQ(to_json({.seed = 1,
                     .next_batch = 40,
                     .source = 0xab,
                     .stages = 0xcd,
                     .batch_size = 256,
                     .digest = {.high = 1, .low = 15}}),
            std::string(R"({"seed":1,"next_batch":40,)") + kRestOfState + "}");
}

TEST(LoaderState, GoesToTextAndBack) {
  const LoaderState largest{.seed = UINT64_MAX,
                            .next_batch = INT64_MAX,
                            .source = UINT64_MAX,
                            .stages = UINT64_MAX,
                            .batch_size = INT64_MAX,
                            .order = RecordOrder::sequential,
                            .last_batch = LastBatch::wrap,
                            .bad_records = BadRecords::substitute,
                            .digest = {.high = UINT64_MAX, .low = UINT64_MAX}};
  for (const LoaderState& state :
       {LoaderState{},
        LoaderState{
            .seed = 7, .next_batch = 1, .source = 0xfedcba9876543210, .stages = 0x123456789abcdef0},
        LoaderState{.last_batch = LastBatch::pad, .bad_records = BadRecords::mask}, largest}) {
    const std::string text = to_json(state);
    EXPECT_EQ(loader_state_from_json(text), state) << text;
    EXPECT_LE(text.size(), 256u);
  }
  EXPECT_EQ(loader_state_from_json(std::string(" {") + kRestOfState +
                                   ",\n\"next_batch\" :40, \"seed\":1}\n"),
            (LoaderState{.seed = 1,
                         .next_batch = 40,
                         .source = 0xab,
                         .stages = 0xcd,
                         .batch_size = 256,
                         .digest = {.high = 1, .low = 15}}));
}

// The text above with one value changed.
std::string state_text_with(const std::string& key, const std::string& value) {
  std::string text = to_json({.seed = 1, .next_batch = 40});
  const std::size_t begin = text.find('"' + key + "\":") + key.size() + 3;
  return text.replace(begin, text.find_first_of(",}", begin) - begin, value);
}

TEST(LoaderState, RejectsAnyOtherText) {
  const std::string rest = kRestOfState;
  const struct {
    const char* name;
    std::string text;
    const char* message;
  } cases[] = {
      {"nothing", "", "no JSON object"},
      {"no JSON", "seed=1", "no JSON object"},
      {"cut short", R"({"seed":1,"next_batch":4)", "at its byte 24: Missing a comma or '}'"},
      {"more after it", R"({"seed":1,"next_batch":4,)" + rest + "}x",
       "The document root must not be followed by other values"},
      {"not UTF-8", "{\"seed\xff\":1}", "a string that is not UTF-8"},
      {"an array", "[1,2,3]", "no JSON object"},
      {"a number", "7", "no JSON object"},
      {"key of control characters", "{\"\\u001b\\n\":1}", "unknown key \"??\", needed is seed, "},
      {"long key", "{\"" + std::string(5000, 'k') + "\":1}", "kkk"},
      {"long string", state_text_with("source", "\"" + std::string(5000, '0') + "\""),
       "needed is a string of 16 hex digits"},
      {"no seed", R"({"next_batch":4,)" + rest + "}", "key \"seed\" is missing"},
      {"no batch", R"({"seed":4,)" + rest + "}", "key \"next_batch\" is missing"},
      {"no source", R"({"seed":1,"next_batch":4})", "key \"source\" is missing"},
      {"unknown key", R"({"seed":1,"next_batch":4,"epoch":2,)" + rest + "}",
       "unknown key \"epoch\", needed is seed, next_batch, source, stages, "},
      {"repeated key", R"({"seed":1,"next_batch":4,"seed":2,)" + rest + "}",
       "key \"seed\" comes twice"},
      {"seed is text", state_text_with("seed", "\"1\""),
       "\"seed\" is \"1\", needed is a whole number"},
      {"seed is negative", state_text_with("seed", "-1"), "\"seed\" is -1"},
      {"seed is a fraction", state_text_with("seed", "1.0"), "\"seed\" is 1.0"},
      {"seed is too large", state_text_with("seed", "18446744073709551616"),
       "\"seed\" is 18446744073709551616, needed is a whole number"},
      {"seed has an exponent", state_text_with("seed", "1e3"), "\"seed\" is 1e3"},
      {"seed is minus zero", state_text_with("seed", "-0"), "\"seed\" is -0"},
      {"seed has a leading zero", state_text_with("seed", "01"), "Missing a comma or '}'"},
      {"seed is true", state_text_with("seed", "true"), "\"seed\" is true"},
      {"seed is null", state_text_with("seed", "null"), "\"seed\" is null"},
      {"batch is too large", state_text_with("next_batch", "9223372036854775808"),
       "\"next_batch\" is 9223372036854775808, needed is a whole number from 0 to "
       "9223372036854775807"},
      {"batch is an object", state_text_with("next_batch", "{\"a\":1}"),
       "key \"next_batch\": an object"},
      {"batch is an array", state_text_with("next_batch", "[1]"), "\"next_batch\" is a list"},
      {"batch is an empty array", state_text_with("next_batch", "[]"), "\"next_batch\" is a list"},
      {"batch is a list of lists", state_text_with("next_batch", "[[1]]"), "is a list"},
      {"batch size", state_text_with("batch_size", "-4"), "\"batch_size\" is -4"},
      {"source is a number", state_text_with("source", "171"),
       "\"source\" is 171, needed is a string of 16 hex digits"},
      {"source is short", state_text_with("source", "\"ab\""), "\"source\" is \"ab\""},
      {"source is no hex", state_text_with("source", "\"000000000000000g\""),
       "needed is a string of 16 hex"},
      {"source has a sign", state_text_with("source", "\"-00000000000000a\""),
       "needed is a string of 16 hex"},
      {"stages is short", state_text_with("stages", "\"ab\""),
       "\"stages\" is \"ab\", needed is a string of 16 hex digits"},
      {"digest is short", state_text_with("digest", "\"0000000000000001\""),
       "needed is a string of 32 hex digits"},
      {"order", state_text_with("order", "\"random\""),
       "\"order\" is \"random\", needed is one of \"sequential\", \"shuffled\""},
      {"last batch", state_text_with("last_batch", "0"),
       "\"last_batch\" is 0, needed is one of \"drop\", \"pad\", \"wrap\""},
      {"bad records", state_text_with("bad", "\"skip\""), "\"fail\", \"substitute\", \"mask\""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string message =
        message_of(ErrorCode::invalid_argument, [&] { loader_state_from_json(c.text); });
    EXPECT_THAT(message, StartsWith("read loader state: "));
    EXPECT_THAT(message, HasSubstr(c.message));
    EXPECT_LE(message.size(), 600u);
  }
  std::string deep(100000, '[');
  message_of(ErrorCode::invalid_argument, [&] { loader_state_from_json(deep); });
}

}  // namespace
}  // namespace shardwise
