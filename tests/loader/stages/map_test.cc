#include "shardwise/loader/stages/map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<RaggedSource> pictures() {
  return std::make_shared<RaggedSource>(12, std::vector<Field>{{"image", DType::u8, {4, 3}},
                                                               {"label", DType::i16, {}},
                                                               {"text", DType::u16, {7}, true}});
}

// The image's bytes and the text's length, plus a random number.
void mark(const Sample& sample, SampleRandom& random, std::span<const FieldValue> in,
          std::span<FieldBuffer> out) {
  ASSERT_EQ(in.size(), 2u);
  ASSERT_EQ(in[0].field->name, "image");
  ASSERT_EQ(in[1].field->name, "text");
  ASSERT_EQ(out[0].data.size(), 24u);
  for (std::size_t i = 0; i < 12; ++i) {
    out[0].data[2 * i] = in[0].data[i];
    out[0].data[2 * i + 1] = static_cast<std::byte>(in[1].length + sample.epoch);
  }
  const std::uint64_t drawn = random.next();
  std::memcpy(out[1].data.data(), &drawn, sizeof(drawn));
  for (std::byte& byte : out[2].data) byte = std::byte{9};
  out[2].length = in[1].length / 2;
}

const std::vector<Field>& mark_fields() {
  static const std::vector<Field> fields{
      {"pairs", DType::u8, {12, 2}}, {"drawn", DType::u64, {}}, {"nines", DType::i32, {5}, true}};
  return fields;
}

TEST(MapStage, ComputesNewFieldsAndKeepsOthers) {
  const auto inner = pictures();
  const auto stage = map(inner, mark_fields(), mark,
                         {.name = "mark", .inputs = {"image", "text"}, .keep = {"label", "text"}});
  ASSERT_EQ(stage->fields().size(), 5u);
  EXPECT_EQ(stage->fields()[0].name, "label");
  EXPECT_EQ(stage->fields()[1], inner->fields()[2]);
  EXPECT_EQ(stage->fields()[4], mark_fields()[2]);
  RandomShardings random(1);
  for (std::int64_t record = 0; record < 12; ++record) {
    const Sample sample{record, 3, 8};
    EXPECT_EQ(whole_of(*stage, sample, 0), whole_of(*inner, sample, 1));
    EXPECT_EQ(whole_of(*stage, sample, 1), whole_of(*inner, sample, 2));
    const std::vector<std::byte> image = whole_of(*inner, sample, 0);
    const std::vector<std::byte> pairs = whole_of(*stage, sample, 2);
    const std::int64_t length = inner->length(sample, 2);
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(pairs[2 * i], image[i]);
      EXPECT_EQ(pairs[2 * i + 1], static_cast<std::byte>(length + 3));
    }
    EXPECT_EQ(values_of<std::uint64_t>(*stage, sample, 3)[0],
              SampleRandom(sample, stage_number("map mark")).next());
    EXPECT_EQ(stage->length(sample, 4), length / 2);
    EXPECT_EQ(stage->length(sample, 1), length);
    EXPECT_EQ(stage->length(sample, 2), 12);
    expect_boxes_of_whole(*stage, sample, 8, random);
  }
}

TEST(MapStage, ReadsTheSourceAndCallsTheFunctionOncePerRead) {
  const auto inner = pictures();
  std::atomic<int> calls{0};
  const auto stage = map(inner, mark_fields(),
                         [&](const Sample& sample, SampleRandom& random, auto in, auto out) {
                           ++calls;
                           mark(sample, random, in, out);
                         },
                         {.name = "mark", .inputs = {"image", "text"}, .keep = {"label"}});
  std::vector<std::byte> a(8), b(4), c(2), d(8);
  const FieldBox boxes[] = {{1, {a.data(), Box({2, 0}, {6, 2})}},
                            {1, {b.data(), Box({0, 0}, {2, 2})}},
                            {0, {c.data(), Box()}},
                            {2, {d.data(), Box()}}};
  stage->read({5, 0, 0}, boxes);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(inner->reads(), 1);
  EXPECT_EQ(inner->take_asked().size(), 3u);  // two inputs, one kept

  stage->read({5, 0, 0}, std::span(boxes).subspan(2, 1));
  EXPECT_EQ(calls, 1) << "kept fields need no call";
  const auto asked = inner->take_asked();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].field, 1u);
}

TEST(MapStage, TakesAllFieldsUnlessTold) {
  const auto inner = pictures();
  const auto stage =
      map(inner, {{"count", DType::u8, {}}},
          [](const Sample&, SampleRandom&, std::span<const FieldValue> in,
             std::span<FieldBuffer> out) { out[0].data[0] = static_cast<std::byte>(in.size()); },
          {.name = "count"});
  EXPECT_THAT(whole_of(*stage, {}, 0), ElementsAre(std::byte{3}));
}

TEST(MapStage, WhatTheFunctionThrowsReachesTheReader) {
  const auto stage = map(pictures(), {{"y", DType::u8, {}}},
                         [](const Sample& sample, SampleRandom&, auto, auto) {
                           if (sample.record == 3) throw std::out_of_range("bad pixel");
                         },
                         {.name = "check"});
  whole_of(*stage, {2, 0, 0}, 0);
  EXPECT_THROW(whole_of(*stage, {3, 0, 0}, 0), std::out_of_range);
}

TEST(MapStage, RefusesALengthThatTheFieldCannotHave) {
  for (const std::int64_t length : {-1, 6}) {
    const auto stage = map(pictures(), {{"y", DType::u8, {5}, true}},
                           [&](const Sample&, SampleRandom&, auto, std::span<FieldBuffer> out) {
                             out[0].length = length;
                           },
                           {.name = "grow"});
    EXPECT_THAT(message_of(ErrorCode::corrupt,
                           [&] {
                             whole_of(*stage, {4, 0, 0}, 0);
                           }),
                HasSubstr("map \"grow\": record 4: length of field \"y\" is " +
                          std::to_string(length) + ", needed is 0 to 5"));
  }
}

TEST(MapStage, RefusesWhatItCannotDo) {
  const MapFunction nothing = [](const Sample&, SampleRandom&, auto, auto) {};
  const std::vector<Field> y{{"y", DType::u8, {}}};
  const auto source = pictures();
  const struct {
    std::shared_ptr<const Source> source;
    std::vector<Field> fields;
    MapFunction function;
    MapOptions options;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {nullptr, y, nothing, {.name = "n"}, ErrorCode::invalid_argument, "the source is null"},
      {source, y, nullptr, {.name = "n"}, ErrorCode::invalid_argument, "the function is null"},
      {source, y, nothing, {}, ErrorCode::invalid_argument, "the name is empty"},
      {source, {}, nothing, {.name = "n"}, ErrorCode::invalid_argument, "\"n\" has no new field"},
      {source,
       {y[0], y[0]},
       nothing,
       {.name = "n"},
       ErrorCode::invalid_argument,
       "the field \"y\" twice"},
      {source,
       {{"label", DType::u8, {}}},
       nothing,
       {.name = "n", .keep = {"label"}},
       ErrorCode::invalid_argument,
       "the field \"label\" twice"},
      {source,
       {{"r", DType::u8, {}, true}},
       nothing,
       {.name = "n"},
       ErrorCode::invalid_argument,
       "the ragged field \"r\" without a dim"},
      {source,
       y,
       nothing,
       {.name = "n", .inputs = {"z"}},
       ErrorCode::no_such_name,
       "no field \"z\""},
      {source, y, nothing, {.name = "n", .keep = {"z"}}, ErrorCode::no_such_name, "no field \"z\""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(c.code, [&] { map(c.source, c.fields, c.function, c.options); }),
                HasSubstr(c.message));
  }
}

TEST(MapStage, FingerprintTellsNameAndFields) {
  const MapFunction nothing = [](const Sample&, SampleRandom&, auto, auto) {};
  const auto print = [&](Field field, MapOptions options) {
    return map(pictures(), {std::move(field)}, nothing, std::move(options))->fingerprint();
  };
  const std::uint64_t prints[] = {print({"y", DType::u8, {}}, {.name = "a"}),
                                  print({"y", DType::u8, {}}, {.name = "b"}),
                                  print({"y", DType::i8, {}}, {.name = "a"}),
                                  print({"y", DType::u8, {1}}, {.name = "a"}),
                                  print({"y", DType::u8, {}}, {.name = "a", .inputs = {"label"}}),
                                  print({"y", DType::u8, {}}, {.name = "a", .keep = {"label"}})};
  EXPECT_EQ(std::set<std::uint64_t>(std::begin(prints), std::end(prints)).size(), 6u);
}

// Memory for reads is kept by the thread: one read within another has its own.
TEST(MapStage, ItsFunctionMayReadMappedSourcesAndFail) {
  const auto plus = [](std::shared_ptr<const Source> inner, std::int32_t number) {
    return map(std::move(inner), {{"x", DType::i32, {}}},
               [number](const Sample&, SampleRandom&, auto in, auto out) {
                 std::int32_t x = 0;
                 std::memcpy(&x, in[0].data.data(), sizeof x);
                 if (x == 13) throw Error(ErrorCode::corrupt, "thirteen");
                 x += number;
                 std::memcpy(out[0].data.data(), &x, sizeof x);
               },
               {.name = "plus"});
  };
  const auto other = plus(plus(counted(20), 100), 1000);
  const auto both = map(plus(counted(20), 1), {{"x", DType::i32, {}}, {"own", DType::i32, {}}},
                        [&](const Sample& sample, SampleRandom&, auto in, auto out) {
                          const std::vector<std::byte> read = whole_of(*other, sample, 0);
                          std::copy(read.begin(), read.end(), out[0].data.begin());
                          std::copy(in[0].data.begin(), in[0].data.end(), out[1].data.begin());
                        },
                        {.name = "both"});
  for (std::int64_t record = 0; record < 20; ++record) {
    const Sample sample{record, 0, 0};
    if (record == 13) {
      EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { whole_of(*both, sample, 0); }), "thirteen");
      continue;
    }
    EXPECT_EQ(values_of<std::int32_t>(*both, sample, 0)[0], record + 1100);
    EXPECT_EQ(values_of<std::int32_t>(*both, sample, 1)[0], record + 1);
  }
}

}  // namespace
}  // namespace shardwise
