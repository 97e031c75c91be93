#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/stages/filter.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

const std::vector<Field>& table_fields() {
  static const std::vector<Field> fields{
      {"label", DType::i32, {}},   {"x", DType::f32, {}},           {"big", DType::u64, {1}},
      {"half", DType::bf16, {}},   {"text", DType::u8, {40}, true}, {"image", DType::u8, {2, 2}},
      {"odd-name", DType::i8, {}}, {"z", DType::c64, {}},           {"length", DType::i16, {}},
      {"flag", DType::boolean, {}}};
  return fields;
}

struct TableRow {
  std::int32_t label = 0;
  float x = 0;
  std::uint64_t big = 0;
  float half = 0;
  std::int64_t text_length = 0;
  std::int8_t odd = 0;
  std::int16_t length = 0;
  bool flag = false;
};

bool keeps(const RecordPredicate& predicate, const TableRow& row) {
  const std::uint16_t half = f32_to_bf16(row.half);
  const auto bytes = [](const auto& value) { return std::as_bytes(std::span(&value, 1)); };
  const auto value_of = [&](const std::string& name) -> std::span<const std::byte> {
    if (name == "label") return bytes(row.label);
    if (name == "x") return bytes(row.x);
    if (name == "big") return bytes(row.big);
    if (name == "half") return bytes(half);
    if (name == "odd-name") return bytes(row.odd);
    if (name == "length") return bytes(row.length);
    return bytes(row.flag);
  };
  const auto field_of = [](const std::string& name) {
    return &*std::find_if(table_fields().begin(), table_fields().end(),
                          [&](const Field& field) { return field.name == name; });
  };
  std::vector<FieldValue> values;
  for (const std::string& name : predicate.fields) {
    values.push_back({field_of(name), value_of(name), 1});
  }
  for (const std::string& name : predicate.lengths) {
    const Field* const field = field_of(name);
    values.push_back({field, {}, field->ragged ? row.text_length : field->shape[0]});
  }
  return predicate.keep(values);
}

TEST(FilterText, MeansWhatItSays) {
  const auto max = std::numeric_limits<std::uint64_t>::max();
  const struct {
    const char* text;
    TableRow yes, no;
  } cases[] = {
      {"label==3", {.label = 3}, {.label = -3}},
      {" label == -3 ", {.label = -3}, {.label = 3}},
      {"label!=2", {.label = 3}, {.label = 2}},
      {"label<2", {.label = 1}, {.label = 2}},
      {"label<=2", {.label = 2}, {.label = 3}},
      {"label>2", {.label = 3}, {.label = 2}},
      {"label>=+2", {.label = 2}, {.label = 1}},
      {"label in 1,2,5", {.label = 5}, {.label = 3}},
      {"label in 7", {.label = 7}, {.label = 3}},
      {"label in 1 , 2 && x<0.5", {.label = 2, .x = 0.25F}, {.label = 2, .x = 0.5F}},
      {"x<0.5 && label!=2", {.label = 1}, {.label = 2}},
      {"x<0.5 && label!=2", {.label = 1}, {.label = 1, .x = 1}},
      {"x<-1.5e-3", {.x = -1}, {.x = -1e-3F}},
      {"x>=.5", {.x = 0.5F}, {.x = 0.4F}},
      {"label==1 || label==2 && x>0", {.label = 1}, {.label = 2}},
      {"(label==1 || label==2) && x>0", {.label = 1, .x = 1}, {.label = 1}},
      {"!(label in 1,2)", {.label = 3}, {.label = 2}},
      {"!!label==3", {.label = 3}, {.label = 2}},
      {"! label==3 && x==0", {.label = 2}, {.label = 3}},
      {"label<1.5", {.label = 1}, {.label = 2}},
      {"length(text)>=16", {.text_length = 16}, {.text_length = 15}},
      {"length ( \"text\" ) > 3", {.text_length = 4}, {.text_length = 3}},
      {"length(image)==2 && label==1", {.label = 1}, {.label = 0}},
      {"length==7", {.length = 7}, {.length = 6}},
      {"\"odd-name\"==-1", {.odd = -1}, {.odd = 1}},
      {"big==18446744073709551615", {.big = max}, {.big = max - 1}},
      {"big>-1 && big>9223372036854775807", {.big = max}, {.big = 5}},
      {"big in 9007199254740993", {.big = 9007199254740993}, {.big = 9007199254740992}},
      {"half>=1.5", {.half = 1.5F}, {.half = 1.25F}},
      {"flag==1", {.flag = true}, {.flag = false}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const RecordPredicate predicate = parse_filter(c.text, table_fields());
    EXPECT_TRUE(keeps(predicate, c.yes));
    EXPECT_FALSE(keeps(predicate, c.no));
  }
}

TEST(FilterText, NanIsInNoRange) {
  const TableRow row{.x = std::numeric_limits<float>::quiet_NaN()};
  for (const char* text : {"x<1", "x>=1", "x==1", "x in 1,2"}) {
    EXPECT_FALSE(keeps(parse_filter(text, table_fields()), row)) << text;
  }
  EXPECT_TRUE(keeps(parse_filter("x!=1", table_fields()), row));
}

TEST(FilterText, TheNameIsTheSameForAnyBlanks) {
  const auto name = [](const char* text) { return parse_filter(text, table_fields()).name; };
  EXPECT_EQ(name("x<0.5&&label in 1,2"), "x < 0.5 && label in 1 , 2");
  EXPECT_EQ(name("  x < 0.5\t&& label in 1, 2 "), name("x<0.5&&label in 1,2"));
  EXPECT_NE(name("x<0.5"), name("x<=0.5"));
}

TEST(FilterText, AsksForEachFieldOnceAndForLengthsAlone) {
  const RecordPredicate predicate = parse_filter(
      "label==1 || x>1 || label==2 || length(text)<3 || length(text)>9", table_fields());
  EXPECT_EQ(predicate.fields, (std::vector<std::string>{"label", "x"}));
  EXPECT_EQ(predicate.lengths, (std::vector<std::string>{"text"}));
}

TEST(FilterText, SaysWhereItIsAtFault) {
  const struct {
    std::string text;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"", ErrorCode::invalid_argument, "at character 1: found the end, needed is a field's name"},
      {"   ", ErrorCode::invalid_argument, "found the end"},
      {"label", ErrorCode::invalid_argument,
       "at character 6: found the end, needed is a comparison"},
      {"label=3", ErrorCode::invalid_argument,
       "at character 6: found \"=\", needed is a comparison"},
      {"label==", ErrorCode::invalid_argument, "found the end, needed is a number"},
      {"label==three", ErrorCode::invalid_argument, "found \"three\", needed is a number"},
      {"label==3x", ErrorCode::invalid_argument, "found \"3x\", needed is a number"},
      {"label==1e999", ErrorCode::invalid_argument, "needed is a number"},
      {"label==-", ErrorCode::invalid_argument, "found \"-\", needed is a number"},
      {"label==+-3", ErrorCode::invalid_argument, "needed is a number"},
      {"x==x", ErrorCode::invalid_argument, "needed is a number"},
      {"label in", ErrorCode::invalid_argument, "needed is a number"},
      {"label in 1,", ErrorCode::invalid_argument, "needed is a number"},
      {"label in 1 2", ErrorCode::invalid_argument, "found \"2\", needed is the end, && or ||"},
      {"label==1 &", ErrorCode::invalid_argument, "found \"&\""},
      {"label==1 &&", ErrorCode::invalid_argument, "found the end, needed is a field's name"},
      {"(label==1", ErrorCode::invalid_argument, "needed is \")\""},
      {"label==1)", ErrorCode::invalid_argument, "found \")\", needed is the end"},
      {"\"label==1", ErrorCode::invalid_argument, "needed is a second quotation mark"},
      {"3==label", ErrorCode::invalid_argument, "found \"3\", needed is a field's name"},
      {"length(text==3", ErrorCode::invalid_argument, "needed is \")\""},
      {"length(label)==3", ErrorCode::invalid_argument, "\"label\" has none"},
      {"image==3", ErrorCode::invalid_argument, "\"image\" has shape [2, 2]"},
      {"odd-name==3", ErrorCode::no_such_name,
       "there is no field \"odd\"; the source has \"label\""},
      {"y<3", ErrorCode::no_such_name, "there is no field \"y\""},
      {"z==1", ErrorCode::unsupported, "field \"z\" is c64"},
      {std::string(200, '(') + "x<1", ErrorCode::invalid_argument, "no more than 100 levels"},
      {std::string(200, '!') + "x<1", ErrorCode::invalid_argument, "no more than 100 levels"},
      {std::string(1 << 17, ' '), ErrorCode::invalid_argument, "131072 characters"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text.substr(0, 40));
    EXPECT_THAT(message_of(c.code, [&] { parse_filter(c.text, table_fields()); }),
                HasSubstr(c.message));
  }
}

TEST(FilterText, AnythingElseIsAnErrorToo) {
  RandomShardings random(1);
  const std::vector<std::string> parts{"label", "x",    "==", "<",    "&&",  "||",        "!",
                                       "(",     ")",    "in", ",",    "3",   "-1.5",      "length",
                                       "\"",    "text", " ",  "\xff", "x<2", "label in 1"};
  int valid = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (std::int64_t i = random.draw(1, 9); i > 0; --i) {
      text += parts[static_cast<std::size_t>(
          random.draw(0, static_cast<std::int64_t>(parts.size()) - 1))];
    }
    try {
      keeps(parse_filter(text, table_fields()), {});
      ++valid;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(valid, 200);
}

TEST(FilterText, LongTextsAreNotDeep) {
  std::string text = "label==0";
  for (int i = 1; i < 5000; ++i) text += "||label==" + std::to_string(i);
  const RecordPredicate predicate = parse_filter(text, table_fields());
  EXPECT_EQ(predicate.fields, std::vector<std::string>{"label"});
  EXPECT_TRUE(keeps(predicate, {.label = 4999}));
  EXPECT_FALSE(keeps(predicate, {.label = 5000}));
}

TEST(FilterText, FiltersASource) {
  const auto kept =
      filter(counted(100), parse_filter("x in 5,7,200 || x>=98", counted(1)->fields()));
  EXPECT_THAT(epoch_of(*kept, 0), ::testing::ElementsAre(5, 7, 98, 99));
}

}  // namespace
}  // namespace shardwise
