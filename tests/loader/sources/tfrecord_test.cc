#include "shardwise/loader/sources/tfrecord.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "loader/sources/tf_files.h"
#include "shardwise/loader/detail/files/crc32c.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Source> open_frames(const Bytes& file, const TfrecordOptions& options = {}) {
  return detail::open_tfrecord(file_of(file), options);
}

TEST(Crc32c, HasItsKnownValues) {
  // RFC 3720, B.4.
  Bytes rising(32), falling(32);
  for (std::size_t i = 0; i < 32; ++i) rising[i] = falling[31 - i] = static_cast<std::byte>(i);
  EXPECT_EQ(detail::crc32c(Bytes(32)), 0x8a9136aau);
  EXPECT_EQ(detail::crc32c(Bytes(32, std::byte{0xff})), 0x62a8ab43u);
  EXPECT_EQ(detail::crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(detail::crc32c(falling), 0x113fdb5cu);
  EXPECT_EQ(detail::crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(detail::crc32c({}), 0u);
}

TEST(Crc32c, IsTheSameBothWays) {
  std::mt19937 random(1);
  Bytes data(300);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t size = 0; size + begin <= 300; ++size) {
      const auto part = std::span(data).subspan(begin, size);
      ASSERT_EQ(detail::crc32c(part), detail::crc32c_by_tables(part));
    }
  }
}

TEST(Tfrecord, ReadsRecordsAsTheyAre) {
  std::vector<Bytes> records;
  Bytes all;
  std::mt19937 random(2);
  for (std::size_t size : {5, 0, 1, 300000, 9000, 8192, 20, 700000, 3}) {
    records.emplace_back(size);
    for (std::byte& byte : records.back()) byte = static_cast<std::byte>(random());
    all = all + tf_frame(records.back());
  }
  for (const std::size_t hold : {std::size_t{0}, kDefaultHoldBytes}) {
    const auto source = open_frames(all, {.hold_bytes = hold});
    ASSERT_THAT(source->fields(), ElementsAre(Field{"record", DType::u8, {700000}, true}));
    ASSERT_EQ(source->size(), 9);
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(bytes_of(read_text(*source, 0, static_cast<std::int64_t>(i))), records[i]);
    }
    expect_boxes_agree(*source, 50, 13);
  }
  EXPECT_EQ(open_frames({})->size(), 0);
}

TEST(Tfrecord, ReadsFeaturesOfEveryKind) {
  const auto example = [](std::int64_t label, float weight, const char* text, Bytes pixels) {
    return tf_frame(
        tf_example({{"label", tf_integers({label})},
                    {"ignored", tf_bytes({bytes({1}), bytes({2})})},
                    {"weights", tf_floats({weight, 2 * weight})},
                    {"text", tf_bytes({bytes_of(text)})},
                    {"pixels", tf_bytes({std::move(pixels)})},
                    {"ids", tf_integers(std::vector<std::int64_t>(as_size(label), -7))}}));
  };
  const Bytes file = example(3, 0.5F, "three", bytes({1, 0, 2, 0, 3, 0, 4, 1})) +
                     example(0, -2.0F, "", bytes({5, 0, 6, 0, 7, 0, 8, 255}));
  const auto source = open_frames(
      file, {.features = {{.name = "label", .dtype = DType::i32},
                          {.name = "weights", .dtype = DType::f64, .shape = {2}},
                          {.name = "text", .dtype = DType::u8, .shape = {0}, .ragged = true},
                          {.name = "pixels", .dtype = DType::i16, .shape = {2, 2}},
                          {.name = "ids", .dtype = DType::f32, .shape = {5}, .ragged = true}}});
  ASSERT_THAT(source->fields(),
              ElementsAre(Field{"label", DType::i32, {}}, Field{"weights", DType::f64, {2}},
                          Field{"text", DType::u8, {5}, true}, Field{"pixels", DType::i16, {2, 2}},
                          Field{"ids", DType::f32, {5}, true}));
  EXPECT_THAT(read_values<std::int32_t>(*source, 0, 0), ElementsAre(3));
  EXPECT_THAT(read_values<double>(*source, 1, 1), ElementsAre(-2, -4));
  EXPECT_EQ(read_text(*source, 2, 0), "three");
  EXPECT_EQ(read_text(*source, 2, 1), "");
  EXPECT_THAT(read_values<std::int16_t>(*source, 3, 1), ElementsAre(5, 6, 7, -248));
  EXPECT_THAT(read_values<float>(*source, 4, 0), ElementsAre(-7, -7, -7, 0, 0));
  EXPECT_EQ(source->length({.record = 0}, 4), 3);
  EXPECT_EQ(source->length({.record = 1}, 4), 0);
  expect_boxes_agree(*source, 200, 14);
}

// Lists need not be packed, parts of a message may come apart, and the last of two counts.
TEST(Tfrecord, ReadsWhatProtobufAllows) {
  const Bytes loose = proto_bytes(
      3, bytes({0x08, 1, 0x08, 0x7f}) + proto_bytes(1, bytes({0x80, 0x01, 5})) + bytes({0x10, 9}));
  const Bytes floats = proto_bytes(2, bytes({0x0d}) + bytes_of(std::vector<float>{1.5F}) +
                                          bytes({0x0d}) + bytes_of(std::vector<float>{2.5F}));
  const Bytes entry = proto_bytes(2, loose) + proto_bytes(1, bytes_of("x"));
  const Bytes unknown = bytes({0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x2d, 1, 2, 3, 4, 0x18, 0xff, 0x01});
  const Bytes example = proto_bytes(1, proto_bytes(1, proto_bytes(1, bytes_of("x")))) + unknown +
                        proto_bytes(1, proto_bytes(1, unknown + entry) + unknown) +
                        tf_example({{"f", floats}});
  const auto source = open_frames(tf_frame(example),
                                  {.features = {{"x", DType::i64, {4}}, {"f", DType::f32, {2}}}});
  EXPECT_THAT(read_values<std::int64_t>(*source, 0, 0), ElementsAre(1, 127, 128, 5));
  EXPECT_THAT(read_values<float>(*source, 1, 0), ElementsAre(1.5F, 2.5F));
}

TEST(Tfrecord, NamesRecordAndOffsetOfWhatIsWrong) {
  const Bytes one = tf_frame(bytes_of("one")), two = tf_frame(bytes_of("two"));
  Bytes data = one + two;
  data[one.size() + 13] ^= std::byte{1};
  const auto source = open_frames(data);
  EXPECT_EQ(read_text(*source, 0, 0), "one");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 1); }),
              HasSubstr("read: here: record 1 at offset 19: its data has the checksum 0x"));
  const auto refused = [](const Bytes& file, ErrorCode code = ErrorCode::corrupt) {
    return message_of(code, [&] { open_frames(file); });
  };
  Bytes length = one + two;
  length[one.size()] ^= std::byte{1};
  EXPECT_THAT(refused(length), HasSubstr("record 1 at offset 19: its length has the checksum 0x"));
  EXPECT_THAT(
      refused(first_of(two, 11)),
      HasSubstr("record 0 at offset 0: the file ends within its length: 11 bytes, needed is 12"));
  const Bytes huge = little_endian_bytes(~std::uint64_t{0});
  EXPECT_THAT(refused(huge + little_endian_bytes(detail::masked_crc(huge)) + Bytes(8)),
              HasSubstr("8 bytes, needed is 18446744073709551615 and 4"));
}

TEST(Tfrecord, UnpacksGzip) {
  const Bytes one = tf_frame(bytes_of("one")), two = tf_frame(bytes_of("two"));
  const auto source = open_frames(gzip(one + two));
  EXPECT_EQ(source->size(), 2);
  EXPECT_EQ(read_text(*source, 0, 1), "two");
}

TEST(Tfrecord, ARecordThatIsCutOffIsAnErrorWhenItIsRead) {
  const auto example = [](std::int64_t i) {
    return tf_frame(tf_example({{"x", tf_integers({i, i})}}));
  };
  const Bytes two = example(0) + example(1), last = example(2);
  for (std::size_t size = 1; size < last.size(); ++size) {
    const Bytes file = two + first_of(last, size);
    const std::string found =
        fmt::format("record 2 at offset {}: the file ends within", two.size());
    const auto records = open_frames(file);
    ASSERT_EQ(records->size(), 3) << size;
    EXPECT_EQ(records->length({.record = 1}, 0), std::ssize(last) - 16);
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*records, 0, 2); }),
                HasSubstr(found));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { records->length({.record = 2}, 0); }),
                HasSubstr(found));
    for (const bool ragged : {true, false}) {
      const auto source =
          open_frames(file, {.features = {{"x", DType::i64, {ragged ? 0 : 2}, ragged}}});
      EXPECT_THAT(read_values<std::int64_t>(*source, 0, 1), ElementsAre(1, 1));
      EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 2); }),
                  HasSubstr(found));
      static_cast<void>(source->fingerprint());
    }
  }
  EXPECT_EQ(open_frames(two)->size(), 2);
}

TEST(Tfrecord, RefusesNumbersThatWouldBecomeInfinite) {
  const auto failure = [](const Bytes& list, DType dtype) {
    const auto source =
        open_frames(tf_frame(tf_example({{"x", list}})), {.features = {{"x", dtype, {2}}}});
    return message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 0); });
  };
  EXPECT_THAT(failure(tf_floats({1, 70000}), DType::f16),
              HasSubstr("feature \"x\" has the number 70000, which does not fit"));
  EXPECT_THAT(failure(tf_floats({-3.4e38F, 1}), DType::bf16), HasSubstr("does not fit"));
  EXPECT_THAT(failure(tf_integers({1, -65520}), DType::f16),
              HasSubstr("the number -65520, which does not fit"));
  const auto source = open_frames(tf_frame(tf_example({{"x", tf_floats({INFINITY, 1e-30F})}})),
                                  {.features = {{"x", DType::f16, {2}}}});
  EXPECT_THAT(read_values<std::uint16_t>(*source, 0, 0), ElementsAre(0x7c00, 0));
}

TEST(Tfrecord, ReportsABadExampleWhenItIsRead) {
  const auto failure = [](const Bytes& example, const TfFeature& feature) {
    const auto source = open_frames(tf_frame(example), {.features = {feature}});
    return message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 0); });
  };
  const Bytes example = tf_example({{"i", tf_integers({1, 300})},
                                    {"f", tf_floats({1})},
                                    {"b", tf_bytes({bytes({1, 2, 3})})},
                                    {"bb", tf_bytes({bytes({1}), bytes({2})})},
                                    {"none", {}}});
  EXPECT_THAT(failure(example, {"x", DType::i64}),
              HasSubstr("record 0 at offset 0: feature \"x\" has no list"));
  EXPECT_THAT(failure(example, {"none", DType::i64}), HasSubstr("\"none\" has no list"));
  EXPECT_THAT(failure(example, {"i", DType::i64}), HasSubstr("has 2 values, needed is 1"));
  EXPECT_THAT(failure(example, {"i", DType::u8, {2}}), HasSubstr("the number 300"));
  EXPECT_THAT(failure(example, {"i", DType::c64, {2}}),
              HasSubstr("a list of integers, needed is c64"));
  EXPECT_THAT(failure(example, {"f", DType::i64}), HasSubstr("a list of floats, needed is i64"));
  EXPECT_THAT(failure(example, {"b", DType::i16, {1}}),
              HasSubstr("3 bytes, needed are whole elements"));
  EXPECT_THAT(failure(example, {"bb", DType::u8, {2}}), HasSubstr("2 byte strings, needed is 1"));
  EXPECT_THAT(failure(example, {"b", DType::u8, {2}, true}),
              HasSubstr("has 3 rows, needed is 2 or fewer"));
  EXPECT_THAT(failure(example, {"b", DType::u8, {0, 2}, true}),
              HasSubstr("has 3 values, needed is a multiple of 2"));
  EXPECT_THAT(failure(bytes({0x0a, 0x7f}), {"x", DType::u8}),
              HasSubstr("not a tf.train.Example: found 0 bytes of a field, needed 127"));
  EXPECT_THAT(failure(bytes({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}),
                      {"x", DType::u8}),
              HasSubstr("a number of over 64 bits"));
  EXPECT_THAT(failure(bytes({0x0b}), {"x", DType::u8}), HasSubstr("a field of wire type 3"));
}

TEST(Tfrecord, ReadsSeveralFilesAsOne) {
  const TempDir dir;
  write_file(dir / "a", tf_frame(bytes_of("first")) + tf_frame(bytes_of("second")));
  write_file(dir / "b", Bytes());
  write_file(dir / "c", tf_frame(bytes_of("3")));
  const auto source = open_tfrecord({dir / "a", dir / "b", dir / "c"});
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->fields()[0].shape, Shape{6});
  EXPECT_EQ(read_text(*source, 0, 1), "second");
  EXPECT_EQ(read_text(*source, 0, 2), "3");
  expect_boxes_agree(*source, 50, 15);
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { open_tfrecord({dir / "none"}); }),
              HasSubstr("none: No such file"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { open_tfrecord({}); }),
              HasSubstr("needed is at least one"));
}

TEST(Tfrecord, SurvivesEveryDamage) {
  const Bytes good = tf_frame(bytes_of("one")) + tf_frame({}) + tf_frame(bytes_of("three"));
  open_every_damage(good, [](auto file) { return detail::open_tfrecord(std::move(file), {}); });
}

// Damaged examples with right checksums.
TEST(Tfrecord, SurvivesEveryDamageOfAnExample) {
  const Bytes good = tf_example(
      {{"i", tf_integers({1, -1})}, {"f", tf_floats({1, 2})}, {"b", tf_bytes({bytes({1, 2, 3})})}});
  const TfrecordOptions options{.features = {{"i", DType::i32, {0}, true},
                                             {"f", DType::f32, {2}},
                                             {"b", DType::u8, {3}, true}}};
  const auto attempt = [&](const Bytes& example) {
    read_all_or_fail(*open_frames(tf_frame(example), options));
  };
  for (std::size_t size = 0; size <= good.size(); ++size) attempt(first_of(good, size));
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      Bytes damaged = good;
      damaged[at] = static_cast<std::byte>(value);
      attempt(damaged);
    }
  }
}

}  // namespace
}  // namespace shardwise
