#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "loader/pattern_source.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/source.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

// A ragged field whose record has its number as its length, and a scalar.
std::shared_ptr<const Source> stairs(std::int64_t size, std::int64_t most) {
  return callback_source(
      {{"r", DType::u8, {most, 2}, true}, {"n", DType::i64, {}}}, size,
      [most](const Sample& sample, std::span<std::byte* const> record) {
        const std::int64_t rows = std::min(most, sample.record);
        std::memset(record[0], 1 + static_cast<int>(sample.record), as_size(2 * rows));
        const std::int64_t number = sample.record * 10 + static_cast<std::int64_t>(sample.seed);
        std::memcpy(record[1], &number, sizeof number);
      },
      [most](const Sample& sample, std::size_t) { return std::min(most, sample.record); });
}

TEST(Concat, GivesRecordsOneSourceAfterTheOther) {
  const auto all = concat({stairs(3, 4), stairs(0, 9), stairs(6, 5), stairs(1, 1)});
  ASSERT_EQ(all->size(), 10);
  EXPECT_EQ(all->fields()[0], (Field{"r", DType::u8, {9, 2}, true}));
  for (std::int64_t record = 0; record < 10; ++record) {
    const std::int64_t own = record < 3 ? record : record < 9 ? record - 3 : 0;
    EXPECT_EQ(read_values<std::int64_t>(*all, 1, record), std::vector{own * 10});
    EXPECT_EQ(all->length({.record = record}, 0), own);
    EXPECT_EQ(all->length({.record = record}, 1), 1);
    Bytes expected(18);
    std::fill_n(expected.begin(), 2 * own, static_cast<std::byte>(1 + own));
    EXPECT_EQ(read_whole(*all, 0, record), expected);
  }
  expect_boxes_agree(*all, 500, 16);
  std::int64_t number = 0;
  const FieldBox box{1, {reinterpret_cast<std::byte*>(&number), Box()}};
  all->read({.record = 4, .epoch = 2, .seed = 7}, {&box, 1});
  EXPECT_EQ(number, 17);
}

TEST(Concat, RejectsWhatDoesNotFitTogether) {
  const auto of = [](std::vector<Field> fields) -> std::shared_ptr<const Source> {
    return std::make_shared<PatternSource>(1, std::move(fields));
  };
  const auto refused = [](std::vector<std::shared_ptr<const Source>> sources) {
    return message_of(ErrorCode::invalid_argument, [&] { concat(sources); });
  };
  const auto base = of({{"x", DType::u8, {2}}});
  EXPECT_EQ(concat({base}), base);
  EXPECT_THAT(refused({}), HasSubstr("got no source"));
  EXPECT_THAT(refused({base, nullptr}), HasSubstr("source 1 is null"));
  EXPECT_THAT(refused({base, of({{"y", DType::u8, {2}}})}),
              HasSubstr("source 1 has \"y\" u8 [2], needed is \"x\" u8 [2] as source 0 has"));
  EXPECT_THAT(refused({base, of({{"x", DType::i8, {2}}})}), HasSubstr("i8"));
  EXPECT_THAT(refused({base, of({{"x", DType::u8, {3}}})}), HasSubstr("[3]"));
  EXPECT_THAT(refused({base, of({{"x", DType::u8, {2}, true}})}), HasSubstr("[2] ragged"));
  EXPECT_THAT(refused({base, of({{"x", DType::u8, {2}}, {"y", DType::u8, {2}}})}),
              HasSubstr("\"y\""));
  const auto endless =
      std::make_shared<PatternSource>(INT64_MAX, std::vector<Field>{{"x", DType::u8, {2}}});
  EXPECT_THAT(refused({endless, base}), HasSubstr("over 2^63 records"));
}

TEST(Callback, FillsARecordOnceForAllItsBoxes) {
  std::atomic<int> calls{0};
  const auto source = callback_source(
      {{"x", DType::u8, {4}}, {"y", DType::u16, {}}}, 5,
      [&](const Sample& sample, std::span<std::byte* const> record) {
        ++calls;
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(record[0][i], std::byte{0});
          record[0][i] = static_cast<std::byte>(10 * sample.record + i);
        }
        const auto y = static_cast<std::uint16_t>(sample.record + 100 * sample.epoch);
        std::memcpy(record[1], &y, sizeof y);
      });
  Bytes whole(4, std::byte{9}), again(4, std::byte{9}), part(2), y(2);
  const FieldBox boxes[] = {{0, {part.data(), Box({1}, {3})}},
                            {0, {whole.data(), Box({0}, {4})}},
                            {1, {y.data(), Box()}},
                            {0, {again.data(), Box({0}, {4})}}};
  source->read({.record = 2, .epoch = 1}, boxes);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(whole, bytes({20, 21, 22, 23}));
  EXPECT_EQ(again, whole);
  EXPECT_EQ(part, bytes({21, 22}));
  EXPECT_EQ(y, bytes({102, 0}));
  expect_boxes_agree(*source, 100, 17);
}

TEST(Callback, MakesAnErrorOfWhatIsThrown) {
  const auto fail = [](const Sample& sample) {
    if (sample.record == 0) throw std::runtime_error("no camera");
    if (sample.record == 1) throw Error(ErrorCode::not_found, "no file");
    if (sample.record == 2) throw std::bad_alloc();
    throw 3;  // NOLINT(hicpp-exception-baseclass)
  };
  const auto source = callback_source(
      {{"x", DType::u8, {2}, true}}, 4,
      [&](const Sample& sample, std::span<std::byte* const>) { fail(sample); },
      [&](const Sample& sample, std::size_t) {
        fail(sample);
        return std::int64_t{1};
      });
  EXPECT_THAT(message_of(ErrorCode::io, [&] { read_whole(*source, 0, 0); }),
              "callback: record 0: no camera");
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { read_whole(*source, 0, 1); }), "no file");
  EXPECT_THROW(read_whole(*source, 0, 2), std::bad_alloc);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { read_whole(*source, 0, 3); }),
              "callback: record 3: the function threw an object that is not a std::exception");
  EXPECT_THAT(message_of(ErrorCode::io, [&] { source->length({.record = 0}, 0); }),
              "callback: record 0: no camera");
  EXPECT_THROW(source->length({.record = 2}, 0), std::bad_alloc);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { source->length({.record = 3}, 0); }),
              "callback: record 3: the function threw an object that is not a std::exception");
}

TEST(Callback, RejectsWhatCannotBe) {
  const FillRecord fill = [](const Sample&, std::span<std::byte* const>) {};
  const auto refused = [](std::vector<Field> fields, std::int64_t size,
                          const FillRecord& function) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { callback_source(fields, size, function); });
  };
  EXPECT_THAT(refused({{"x", DType::u8, {}}}, 1, {}), HasSubstr("got no function"));
  EXPECT_THAT(refused({}, 1, fill), HasSubstr("got no field"));
  EXPECT_THAT(refused({{"x", DType::u8, {}}}, -1, fill), HasSubstr("size is -1"));
  EXPECT_THAT(refused({{"x", DType::u8, {}}, {"x", DType::u8, {}}}, 1, fill),
              HasSubstr("field \"x\" comes twice"));
  EXPECT_THAT(refused({{"x", DType::u8, {2}, true}}, 1, fill),
              HasSubstr("is ragged, needed is a dim and a function for its length"));
  const auto wrong = callback_source({{"x", DType::u8, {2}, true}}, 1, fill,
                                     [](const Sample&, std::size_t) { return 3; });
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { wrong->length({}, 0); }),
              HasSubstr("record 0, field \"x\" has length 3, needed is 0 to 2"));
}

}  // namespace
}  // namespace shardwise
