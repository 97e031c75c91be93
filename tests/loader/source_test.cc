#include "shardwise/loader/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "loader/pattern_source.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> counting_bytes(std::size_t count, int first = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return bytes;
}

std::shared_ptr<const Source> counting(Field field, std::int64_t size, int first = 0) {
  const std::size_t bytes = num_bytes(field.shape, size_bytes(field.dtype));
  return memory_source(field, size, counting_bytes(bytes * static_cast<std::size_t>(size), first));
}

std::vector<int> read(const Source& source, std::size_t field, std::int64_t record,
                      const Box& box) {
  std::vector<std::byte> bytes(num_bytes(box.shape(), size_bytes(source.fields()[field].dtype)));
  source.read_box(field, record, {bytes.data(), box});
  std::vector<int> values;
  for (const std::byte byte : bytes) values.push_back(std::to_integer<int>(byte));
  return values;
}

TEST(MemorySource, ReadsAnyBoxOfAnyRecord) {
  const auto source = counting({"x", DType::u8, {2, 3}}, 4);
  EXPECT_EQ(source->size(), 4);
  EXPECT_EQ(source->fields()[0], (Field{"x", DType::u8, {2, 3}}));
  EXPECT_THAT(read(*source, 0, 0, Box({0, 0}, {2, 3})), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(read(*source, 0, 3, Box({0, 1}, {2, 3})), ElementsAre(19, 20, 22, 23));
  EXPECT_THAT(read(*source, 0, 1, Box({1, 1}, {1, 3})), ElementsAre());
  const auto scalars = counting({"y", DType::u16, {}}, 3);
  EXPECT_THAT(read(*scalars, 0, 2, Box()), ElementsAre(4, 5));
}

TEST(MemorySource, RejectsBytesThatAreNotItsRecords) {
  const struct {
    const char* name;
    Shape shape;
    std::int64_t size;
    std::size_t bytes;
    const char* message;
  } cases[] = {
      {"too few",
       {2, 3},
       4,
       23,
       "source in memory: field \"x\" got 23 bytes, needed is 4 records of 6"},
      {"too many", {2, 3}, 4, 25, "got 25 bytes, needed is 4 records of 6"},
      {"negative size", {2}, -1, 0, "size is -1, needed is 0 or more"},
      {"overflow",
       {std::int64_t{1} << 40},
       std::int64_t{1} << 40,
       0,
       "got 0 bytes, needed is 1099511627776"},
      {"negative extent", {-2}, 1, 0, "-2"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(
        message_of(
            ErrorCode::invalid_argument,
            [&] {
              memory_source({"x", DType::u8, c.shape}, c.size, std::vector<std::byte>(c.bytes));
            }),
        HasSubstr(c.message));
  }
}

TEST(Zip, LaysFieldsSideBySide) {
  const auto both =
      zip({counting({"image", DType::u8, {2}}, 3), counting({"label", DType::u8, {}}, 3, 50)});
  EXPECT_EQ(both->size(), 3);
  ASSERT_EQ(both->fields().size(), 2u);
  EXPECT_EQ(both->fields()[1], (Field{"label", DType::u8, {}}));
  EXPECT_EQ(both->field_index("label"), 1u);
  EXPECT_THAT(read(*both, 0, 2, Box({0}, {2})), ElementsAre(4, 5));
  EXPECT_THAT(read(*both, 1, 2, Box()), ElementsAre(52));
  const auto nested = zip({both, counting({"weight", DType::u8, {}}, 3, 70)});
  EXPECT_THAT(read(*nested, 1, 0, Box()), ElementsAre(50));
  EXPECT_THAT(read(*nested, 2, 1, Box()), ElementsAre(71));
}

TEST(Zip, TellsAllItsSourcesWhichRecordComes) {
  class Told final : public Source {
   public:
    explicit Told(std::string name) : field_{std::move(name), DType::u8, {}} {}
    std::int64_t size() const override { return 3; }
    std::span<const Field> fields() const override { return {&field_, 1}; }
    void read(const Sample&, std::span<const FieldBox>) const override {}
    void will_read(const Sample& sample) const override { records.push_back(sample.record); }

    mutable std::vector<std::int64_t> records;

   private:
    Field field_;
  };
  const auto a = std::make_shared<const Told>("a"), b = std::make_shared<const Told>("b");
  const auto both = zip({a, b, counting({"large", DType::u8, {50}}, 3)});
  for (std::int64_t record = 0; record < 3; ++record) both->will_read({record, 0, 0});
  EXPECT_THAT(a->records, ElementsAre(0, 1, 2));
  EXPECT_THAT(b->records, ElementsAre(0, 1, 2));
}

TEST(Zip, RejectsWhatDoesNotFitTogether) {
  const auto x = counting({"x", DType::u8, {}}, 3);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { zip({}); }),
              HasSubstr("got no source, needed is at least one"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           zip({x, nullptr});
                         }),
              HasSubstr("source 1 is null"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           zip({x, counting({"y", DType::u8, {}}, 4)});
                         }),
              HasSubstr("source 1 has 4 records, source 0 has 3, needed are equal sizes"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           zip({x, x});
                         }),
              HasSubstr("field \"x\" of source 1 comes twice"));
}

TEST(Source, ListsItsFieldsWhereOneIsMissing) {
  const auto both =
      zip({counting({"image", DType::u8, {2}}, 1), counting({"label", DType::u8, {}}, 1)});
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { both->field_index("lable"); }),
              HasSubstr("no field \"lable\"; the source has \"image\", \"label\""));
}

TEST(Fingerprint, TellsDifferentDataApart) {
  const auto base = counting({"x", DType::u16, {2, 2}}, 9);
  EXPECT_EQ(base->fingerprint(), counting({"x", DType::u16, {2, 2}}, 9)->fingerprint());
  EXPECT_EQ(base->fingerprint(), counting({"renamed", DType::u16, {2, 2}}, 9)->fingerprint());
  EXPECT_EQ(base->fingerprint(), zip({base})->fingerprint());

  EXPECT_NE(base->fingerprint(), counting({"x", DType::i16, {2, 2}}, 9)->fingerprint());
  EXPECT_NE(base->fingerprint(), counting({"x", DType::u16, {4}}, 9)->fingerprint());
  EXPECT_NE(base->fingerprint(), counting({"x", DType::u16, {2, 2}}, 8)->fingerprint());
  EXPECT_NE(base->fingerprint(), counting({"x", DType::u16, {2, 2}}, 9, 1)->fingerprint());
  EXPECT_NE(counting({"x", DType::u8, {}}, 0)->fingerprint(),
            counting({"x", DType::u8, {2}}, 0)->fingerprint());
  const auto other = counting({"y", DType::u16, {2, 2}}, 9, 3);
  EXPECT_NE(zip({base, other})->fingerprint(), zip({other, base})->fingerprint());
}

TEST(Fingerprint, SeesTheLastRecordAndEveryOneOfAFew) {
  for (std::size_t changed = 0; changed < 64; ++changed) {
    std::vector<std::byte> data = counting_bytes(64);
    const auto before = memory_source({"x", DType::u8, {}}, 64, data);
    data[changed] ^= std::byte{1};
    EXPECT_NE(memory_source({"x", DType::u8, {}}, 64, data)->fingerprint(), before->fingerprint());
  }
  std::vector<std::byte> data(1000);
  const auto before = memory_source({"x", DType::u8, {}}, 1000, data);
  data[999] = std::byte{1};
  EXPECT_NE(memory_source({"x", DType::u8, {}}, 1000, data)->fingerprint(), before->fingerprint());
}

TEST(Fingerprint, ReadsLittleHoweverLargeTheData) {
  const PatternSource source(std::int64_t{1} << 40, {{"x", DType::f64, {3, 1000, 1000}},
                                                     {"y", DType::u8, {}},
                                                     {"z", DType::u8, {std::int64_t{1} << 50}}});
  source.fingerprint();
  EXPECT_EQ(source.reads(), 3 * 64);
  EXPECT_LE(source.elements(), 64 * (16384 / 8 + 1 + 16384));
}

TEST(MemorySource, TakesNumbers) {
  const std::array<std::int32_t, 4> values{1, 2, 3, 4};
  const auto source = memory_source({"x", DType::i32, {2}}, 2, values);
  std::int32_t last = 0;
  source->read_box(0, 1, {reinterpret_cast<std::byte*>(&last), Box({1}, {2})});
  EXPECT_EQ(last, 4);
  EXPECT_EQ(
      memory_source({"x", DType::f64, {}}, 2, std::span<const double>(std::vector{1., 2.}))->size(),
      2);
  message_of(ErrorCode::invalid_argument, [&] {
    memory_source({"x", DType::f32, {2}}, 2, values);
  });
  message_of(ErrorCode::invalid_argument, [&] {
    memory_source({"x", DType::i32, {2}}, 3, values);
  });
}

}  // namespace
}  // namespace shardwise
