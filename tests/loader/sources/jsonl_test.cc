#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "loader/idx_files.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/sources/detail/json_value.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/text.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Source> open_lines(std::string_view text, const JsonlOptions& options = {}) {
  return detail::open_jsonl(file_of(text), options);
}

std::string refused_lines(std::string_view text, const JsonlOptions& options = {},
                          ErrorCode code = ErrorCode::invalid_argument) {
  return message_of(code, [&] { open_lines(text, options); });
}

TEST(Jsonl, FindsOutTypesAndShapes) {
  const auto source = open_lines(
      "\xef\xbb\xbf{\"i\": 1, \"f\": 2, \"b\": true, \"s\": \"h\\u00e9 \\ud83d\\ude00\", "
      "\"m\": [[1, 2], [3, 4]], \"r\": [1], \"e\": []}\r\n"
      "\n  \n"
      "{\"r\": [1, -2, 3], \"m\": [[5, 6], [7, 8]], \"s\": \"\", \"b\": false, \"f\": 2e-1, "
      "\"i\": -9, \"e\": [], \"other\": {\"a\": [null, {}]}}");
  EXPECT_EQ(source->size(), 2);
  ASSERT_THAT(source->fields(),
              ElementsAre(Field{"i", DType::i64, {}}, Field{"f", DType::f64, {}},
                          Field{"b", DType::boolean, {}}, Field{"s", DType::u8, {8}, true},
                          Field{"m", DType::i64, {2, 2}}, Field{"r", DType::i64, {3}, true},
                          Field{"e", DType::i64, {0}}));
  EXPECT_THAT(read_values<std::int64_t>(*source, 0, 1), ElementsAre(-9));
  EXPECT_THAT(read_values<double>(*source, 1, 0), ElementsAre(2));
  EXPECT_THAT(read_values<double>(*source, 1, 1), ElementsAre(0.2));
  EXPECT_THAT(read_values<std::uint8_t>(*source, 2, 0), ElementsAre(1));
  EXPECT_EQ(read_text(*source, 3, 0), "h\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(read_text(*source, 3, 1), "");
  EXPECT_THAT(read_values<std::int64_t>(*source, 4, 1), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(read_values<std::int64_t>(*source, 5, 0), ElementsAre(1, 0, 0));
  EXPECT_EQ(source->length({.record = 0}, 5), 1);
  EXPECT_EQ(source->length({.record = 1}, 5), 3);
  expect_boxes_agree(*source, 200, 8);
}

TEST(Jsonl, TakesTypesAndShapes) {
  const auto source = open_lines(
      "{\"x\": [[1, 2], [3, 4]], \"t\": \"abc\", \"n\": 3, \"n\": 4, \"y\": [1, 2]}\n"
      "{\"x\": [], \"t\": \"xyz\", \"n\": 5, \"y\": [3, 4]}\n",
      {.fields = {{.name = "n", .dtype = DType::f16},
                  {.name = "x", .dtype = DType::u8, .shape = Shape{5, 2}, .ragged = true},
                  {.name = "t", .dtype = DType::u8, .shape = Shape{3}},
                  {.name = "y", .ragged = true}}});
  ASSERT_THAT(source->fields(),
              ElementsAre(Field{"n", DType::f16, {}}, Field{"x", DType::u8, {5, 2}, true},
                          Field{"t", DType::u8, {3}}, Field{"y", DType::i64, {2}, true}));
  EXPECT_THAT(read_values<std::uint16_t>(*source, 0, 0), ElementsAre(f32_to_f16(4)));
  EXPECT_THAT(read_values<std::uint8_t>(*source, 1, 0), ElementsAre(1, 2, 3, 4, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(source->length({.record = 0}, 1), 2);
  EXPECT_EQ(source->length({.record = 1}, 1), 0);
  EXPECT_EQ(read_whole(*source, 2, 1), bytes_of("xyz"));
  expect_boxes_agree(*source, 200, 9);
}

// A line that is wrong does not keep the others from being read.
TEST(Jsonl, ReportsABadRecordWhenItIsRead) {
  const auto source = open_lines(
      "{\"x\": [1, 2], \"t\": \"a\"}\n"
      "{\"x\": [1, 2], \"t\": \"a\"\n"
      "{\"x\": [1, 2]}\n"
      "{\"x\": [1, 2, 3], \"t\": \"a\"}\n"
      "{\"x\": [1, 256], \"t\": 7}\n"
      "{\"x\": [9, 9], \"t\": \"bcd\"}\n",
      {.fields = {{.name = "x", .dtype = DType::u8, .shape = Shape{2}},
                  {.name = "t", .dtype = DType::u8, .ragged = true}}});
  ASSERT_EQ(source->size(), 6);
  EXPECT_THAT(read_values<std::uint8_t>(*source, 0, 5), ElementsAre(9, 9));
  EXPECT_EQ(read_text(*source, 1, 5), "bcd");
  EXPECT_THAT(read_values<std::uint8_t>(*source, 0, 2), ElementsAre(1, 2));
  const auto failure = [&](std::int64_t record, std::size_t field) {
    return message_of(ErrorCode::corrupt, [&] { read_whole(*source, field, record); });
  };
  EXPECT_THAT(failure(1, 0), HasSubstr("read: here: record 1 at offset 24, line 2: at its byte 23: "
                                       "Missing a comma"));
  EXPECT_EQ(read_text(*source, 1, 2), "");
  EXPECT_THAT(failure(3, 0), HasSubstr("key \"x\" has shape [3], needed is [2]"));
  EXPECT_THAT(failure(4, 0), HasSubstr("key \"x\": 256, needed is a number of type u8"));
  EXPECT_THAT(failure(4, 1), HasSubstr("key \"t\" has shape []"));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { source->length({.record = 1}, 1); }),
              HasSubstr("at its byte 23: Missing a comma"));
}

TEST(Jsonl, RejectsValuesThatDoNotGoTogether) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format("{{\"x\": {}}}\n{{\"x\": {}}}\n", a, b);
  };
  EXPECT_THAT(
      refused_lines(two("1", "\"a\"")),
      HasSubstr("field \"x\" is of another kind in record 1 than before, needed is a dtype"));
  EXPECT_THAT(refused_lines(two("true", "1")), HasSubstr("of another kind in record 1"));
  EXPECT_THAT(refused_lines(two("1", "[1]")),
              HasSubstr("field \"x\" has shape [1] in record 1 and [] before, needed is a shape"));
  EXPECT_THAT(refused_lines(two("[[1, 2]]", "[[1], [2]]")), HasSubstr("needed is a shape"));
  constexpr ErrorCode corrupt = ErrorCode::corrupt;
  EXPECT_THAT(refused_lines("", {}, corrupt), HasSubstr("it has no field"));
  EXPECT_THAT(refused_lines("{}\n", {}, corrupt), HasSubstr("it has no field"));
  EXPECT_THAT(refused_lines("hello\n", {}, corrupt),
              HasSubstr("it has no field; its record 0: no JSON object"));
  EXPECT_THAT(refused_lines(two("null", "null"), {.fields = {{.name = "x"}}}, corrupt),
              HasSubstr("no record has a field \"x\" that fits; its record 0: key \"x\": null"));
  EXPECT_THAT(refused_lines("{\"x\": 1}\n", {.fields = {{.name = "y"}}}, corrupt),
              HasSubstr("no record has a field \"y\" that fits"));
  EXPECT_THAT(refused_lines("", {.fields = {{.name = "x"}, {.name = "x"}}}),
              HasSubstr("asked for twice"));
  EXPECT_THAT(refused_lines("", {.fields = {{.name = "x", .shape = Shape{}, .ragged = true}}}),
              HasSubstr("ragged and a scalar"));
  EXPECT_THAT(refused_lines("{\"x\": 1}\n", {.fields = {{.name = "x", .ragged = true}}}, corrupt),
              HasSubstr("its record 0: a scalar where a list is needed"));
  EXPECT_THAT(
      refused_lines("", {.fields = {{.name = "x", .dtype = DType::c64}}}, ErrorCode::unsupported),
      HasSubstr("c64"));
}

TEST(Jsonl, RejectsListsThatAreNoArrays) {
  for (const char* value : {"[[1], 2]", "[1, [2]]", "[[1], []]", "[[], [1]]", "[[[]], []]",
                            "[[], [[]]]", "[\"a\"]", "[{}]", "{}", "[[1, 2], [3]]", "[1,]", "[,]",
                            "[1 2]", "[", "[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]"}) {
    EXPECT_THAT(refused_lines(fmt::format("{{\"x\": {}}}\n", value), {}, ErrorCode::corrupt),
                HasSubstr("it has no field; its record 0: "))
        << value;
  }
  EXPECT_EQ(open_lines("{\"x\": [[], []]}\n")->fields()[0].shape, (Shape{2, 0}));
  EXPECT_EQ(open_lines("{\"x\": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}\n")->fields()[0].shape,
            Shape::filled(16, 1));
}

TEST(Jsonl, KeepsLargeWholeNumbersOrSaysThatItCannot) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format("{{\"x\": {}}}\n{{\"x\": {}}}\n", a, b);
  };
  const auto large = open_lines(two("9007199254740993", "18446744073709551615"));
  EXPECT_EQ(large->fields()[0].dtype, DType::u64);
  EXPECT_THAT(read_values<std::uint64_t>(*large, 0, 1), ElementsAre(UINT64_MAX));
  for (const std::string& lines :
       {two("1.5", "9007199254740993"), two("-9007199254740993", "0.5"),
        two("-1", "1e3, \"x\": 18446744073709551615"), two("18446744073709551616", "1"),
        two("[[1.5], [2]]", "[[9007199254740993], [1]]"), two("9007199254740993", "NaN"),
        two("9007199254740993", "null"), two("[1, 9007199254740993]", "[null, 2]")}) {
    EXPECT_THAT(refused_lines(lines, {}, ErrorCode::unsupported),
                AllOf(HasSubstr("field \"x\""), HasSubstr("x=f64")))
        << lines;
    EXPECT_EQ(open_lines(lines, {.fields = {{.name = "x", .dtype = DType::f64}}})->size(), 2);
  }
  EXPECT_EQ(open_lines(two("1.5", "-9007199254740992"))->fields()[0].dtype, DType::f64);
}

TEST(Jsonl, TakesMissingValuesAndNaN) {
  const auto source = open_lines(
      "{\"i\": null, \"f\": NaN, \"l\": [1, null], \"r\": [1], \"s\": null, \"b\": true}\n"
      "{\"i\": 2, \"f\": -Infinity, \"l\": null, \"r\": null, \"s\": \"ab\", \"b\": null}\n"
      "{\"i\": 3, \"f\": Infinity, \"r\": [1, 2], \"b\": false}\n");
  ASSERT_THAT(source->fields(),
              ElementsAre(Field{"i", DType::f64, {}}, Field{"f", DType::f64, {}},
                          Field{"l", DType::f64, {2}}, Field{"r", DType::i64, {2}, true},
                          Field{"s", DType::u8, {2}, true}, Field{"b", DType::boolean, {}}));
  const auto is_nan = ::testing::IsNan();
  EXPECT_THAT(read_values<double>(*source, 0, 0), ElementsAre(is_nan));
  EXPECT_THAT(read_values<double>(*source, 0, 1), ElementsAre(2));
  EXPECT_THAT(read_values<double>(*source, 1, 0), ElementsAre(is_nan));
  EXPECT_THAT(read_values<double>(*source, 1, 1), ElementsAre(-INFINITY));
  EXPECT_THAT(read_values<double>(*source, 1, 2), ElementsAre(INFINITY));
  EXPECT_THAT(read_values<double>(*source, 2, 0), ElementsAre(1, is_nan));
  EXPECT_THAT(read_values<double>(*source, 2, 1), ElementsAre(is_nan, is_nan));
  EXPECT_THAT(read_values<double>(*source, 2, 2), ElementsAre(is_nan, is_nan));
  for (const std::int64_t record : {1, 2}) {
    EXPECT_EQ(source->length({.record = record}, 3), record == 1 ? 0 : 2);
  }
  EXPECT_EQ(read_text(*source, 4, 0), "");
  EXPECT_EQ(source->length({.record = 2}, 4), 0);
  const auto failure = [](const Source& of, std::int64_t record, std::size_t field) {
    std::uint8_t value = 0;
    return message_of(ErrorCode::corrupt, [&] {
      of.read_box(field, record, {reinterpret_cast<std::byte*>(&value), Box()});
    });
  };
  EXPECT_THAT(failure(*source, 1, 5), HasSubstr("line 2: key \"b\": null, needed is bool"));
  const auto given = open_lines("{\"x\": null}\n{}\n{\"x\": 3}\n",
                                {.fields = {{.name = "x", .dtype = DType::i8}}});
  EXPECT_THAT(failure(*given, 0, 0), HasSubstr("line 1: key \"x\": null, needed is i8"));
  EXPECT_THAT(failure(*given, 1, 0), HasSubstr("line 2: has no key \"x\", needed is i8"));
  EXPECT_THAT(read_values<std::int8_t>(*given, 0, 2), ElementsAre(3));
}

TEST(Jsonl, RefusesTextThatIsNotUtf8) {
  const std::string wide("\xff\xfe{\0}\0\n\0", 8);
  for (const std::string& text :
       {wide, wide.substr(2), std::string("\xfe\xff\0{\0}\0\n", 8), std::string("\0{\0}\0\n", 6)}) {
    EXPECT_THAT(refused_lines(text, {}, ErrorCode::corrupt),
                AllOf(HasSubstr("here: line 1: found "), HasSubstr("iconv -f UTF-16 -t UTF-8")));
  }
  const auto source = open_lines("{\"s\": \"a\"}\n{\"s\": \"\xe9\"}\n");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_text(*source, 0, 1); }),
              AllOf(HasSubstr("line 2: a string that is not UTF-8"),
                    HasSubstr("iconv -f LATIN1 -t UTF-8")));
}

TEST(Jsonl, UnpacksGzip) {
  const TempDir dir;
  write_file(dir / "d.jsonl.gz", gzip(bytes_of("{\"x\": 1}\n{\"x\": 2}\n")));
  const auto source = open_jsonl(dir / "d.jsonl.gz");
  EXPECT_THAT(read_values<std::int64_t>(*source, 0, 1), ElementsAre(2));
}

std::string random_json(std::mt19937& random, int depth) {
  constexpr std::string_view kPieces[] = {
      "\\n", "\\u0041", "\\ud83d\\ude00", "\\ud83d", "a", "\xc3\xa9", "\xff", "\t", "\\x", " "};
  const auto text = [&] {
    std::string all = "\"";
    for (std::size_t n = random() % 4; n > 0; --n) {
      all += kPieces[random() % (random() % 4 == 0 ? 10 : 6)];
    }
    return all + '"';
  };
  constexpr std::string_view kNumbers[] = {"0",  "-1", "1.5", "2e3", "-0.5E-2", "01",
                                           "1.", "+1", ".5",  "-",   "1e",      "0x1"};
  switch (random() % (depth > 3 ? 4 : 7)) {
    case 0:
      return std::string(kNumbers[random() % (random() % 4 == 0 ? 12 : 5)]);
    case 1:
      return text();
    case 2:
      return random() % 2 == 0 ? "true" : "null";
    case 3:
      return random() % 8 == 0 ? "nul" : "false";
    case 4: {
      std::string all = "{";
      for (std::size_t n = random() % 3; n > 0; --n) {
        all += text() + (random() % 20 == 0 ? "" : ":") + random_json(random, depth + 1) +
               (n > 1 ? "," : "");
      }
      return all + "}";
    }
    default: {
      std::string all = "[";
      for (std::size_t n = random() % 4; n > 0; --n) {
        all += random_json(random, depth + 1) + (n > 1 && random() % 20 != 0 ? ", " : "");
      }
      return all + (random() % 20 == 0 ? "" : "]");
    }
  }
}

bool is_json_object(std::string_view text, const detail::JsonTarget& target = {}) {
  try {
    detail::read_json_object(text, [&](std::string_view) { return target; });
    return true;
  } catch (const detail::JsonFault&) {
    return false;
  }
}

// nlohmann's parser says what JSON is.
TEST(JsonObject, IsWhatAnotherParserTakes) {
  std::mt19937 random(10);
  int taken = 0;
  for (int i = 0; i < 30000; ++i) {
    const std::string value = random_json(random, 0), text = fmt::format("{{\"x\": {}}}", value);
    const bool is_taken = is_json_object(text);
    ASSERT_EQ(is_taken, nlohmann::json::accept(text)) << text;
    taken += is_taken ? 1 : 0;
    if (!is_taken || value[0] != '"') continue;
    detail::JsonValue read;
    ASSERT_TRUE(is_json_object(text, {&read, DType::u8}));
    EXPECT_EQ(read.elements, bytes_of(nlohmann::json::parse(value).get<std::string>()));
  }
  EXPECT_GT(taken, 3000);
  EXPECT_LT(taken, 27000);
}

TEST(JsonObject, IsStrict) {
  using namespace std::literals;
  for (const std::string_view text : {""sv,
                                      " "sv,
                                      "1"sv,
                                      "[{}]"sv,
                                      "{}{}"sv,
                                      "{}x"sv,
                                      "{}\0"sv,
                                      "\0{}"sv,
                                      "{\0}"sv,
                                      "{'x': 1}"sv,
                                      "{\"x\": 1,}"sv,
                                      "{\"x\": nan}"sv,
                                      "{\"x\": 1} // one"sv,
                                      "{\"x\": 1e999}"sv,
                                      "{\"\\udc00\": 1}"sv,
                                      "{\"\\ud83d\": 1}"sv,
                                      "{\"\\ud83d\\ud83d\": 1}"sv,
                                      "{\"\xed\xb0\x80\": 1}"sv,
                                      "{\"\xed\xa0\xbd\xed\xb8\x80\": 1}"sv,
                                      "{\"\xc0\x80\": 1}"sv,
                                      "{\"\xe0\x80\x80\": 1}"sv,
                                      "{\"\xf4\x90\x80\x80\": 1}"sv,
                                      "{\"\x80\": 1}"sv,
                                      "{\"x\": \"\\udc00\"}"sv,
                                      "{\"x\": \"\xed\xb0\x80\"}"sv,
                                      "{\"x\": \"\xff\"}"sv}) {
    EXPECT_FALSE(is_json_object(text)) << text;
  }
  EXPECT_TRUE(is_json_object("{\"\xf4\x8f\xbf\xbf\": \"\\u0000\"} \t\r\n"));
}

TEST(JsonObject, IsNotBuriedByBrackets) {
  const std::string open(100000, '['), text = "{\"x\": " + open;
  EXPECT_FALSE(is_json_object(text));
  EXPECT_TRUE(is_json_object(text + std::string(open.size(), ']') + "}"));
  detail::JsonValue value;
  EXPECT_FALSE(is_json_object(text + std::string(open.size(), ']') + "}", {&value}));
}

// Records at random, larger than a read of the source, against nlohmann's printer.
TEST(Jsonl, ReadsWhatAnotherWriterWrites) {
  std::mt19937 random(11);
  std::string text;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::string> texts;
  while (text.size() < (std::size_t{5} << 20)) {
    tokens.emplace_back(random() % 100);
    for (std::int32_t& token : tokens.back()) token = static_cast<std::int32_t>(random());
    texts.emplace_back();
    for (std::size_t n = random() % 50; n > 0; --n)
      texts.back() += static_cast<char>(random() % 128);
    text += nlohmann::json{{"tokens", tokens.back()}, {"text", texts.back()}}.dump() + "\n";
  }
  for (const std::size_t hold : {std::size_t{0}, kDefaultHoldBytes}) {
    const auto source = open_lines(
        text,
        {.fields = {{.name = "tokens", .dtype = DType::i32, .ragged = true}, {.name = "text"}},
         .hold_bytes = hold});
    ASSERT_EQ(source->size(), static_cast<std::int64_t>(texts.size()));
    for (std::size_t i = 0; i < texts.size(); i += 97) {
      const auto record = static_cast<std::int64_t>(i);
      std::vector<std::int32_t> found = read_values<std::int32_t>(*source, 0, record);
      ASSERT_EQ(source->length({.record = record}, 0), static_cast<std::int64_t>(tokens[i].size()));
      found.resize(tokens[i].size());
      ASSERT_EQ(found, tokens[i]);
      ASSERT_EQ(read_text(*source, 1, record), texts[i]);
    }
    expect_boxes_agree(*source, 100, 12);
  }
}

TEST(Jsonl, SurvivesEveryDamage) {
  const Bytes good = bytes_of("{\"a\": [1, 2], \"s\": \"x\\u00e9\"}\n{\"a\": [3], \"s\": \"\"}\n");
  open_every_damage(good, [](auto file) { return detail::open_jsonl(std::move(file), {}); });
  const JsonlOptions options{
      .fields = {{.name = "a", .dtype = DType::i32, .ragged = true},
                 {.name = "s", .dtype = DType::u8, .shape = Shape{4}, .ragged = true}},
      .hold_bytes = 0};
  open_every_damage(good, [&](auto file) { return detail::open_jsonl(std::move(file), options); });
}

}  // namespace
}  // namespace shardwise
