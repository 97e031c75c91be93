#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loader/sources/source_reads.h"
#include "shardwise/loader/detail/files/byte_order.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes npy_file(const std::string& dict, const Bytes& data, int version = 1) {
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::string header = dict;
  while ((8 + length_bytes + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  Bytes file = bytes_of("\x93NUMPY") + bytes({version, 0});
  for (std::size_t i = 0; i < length_bytes; ++i) {
    file.push_back(static_cast<std::byte>(header.size() >> (8 * i)));
  }
  return file + bytes_of(header) + data;
}

std::string dict_of(const std::string& descr, const std::string& shape,
                    const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

std::shared_ptr<const Source> open_array(const Bytes& file, std::size_t hold = 1 << 20) {
  return detail::open_npy(file_of(file), "x", hold);
}

TEST(Npy, ReadsEveryTypeInBothOrdersAndAllVersions) {
  const struct {
    const char* descr;
    DType dtype;
  } types[] = {{"f8", DType::f64}, {"f4", DType::f32},  {"f2", DType::f16}, {"i8", DType::i64},
               {"i4", DType::i32}, {"i2", DType::i16},  {"i1", DType::i8},  {"u8", DType::u64},
               {"u4", DType::u32}, {"u2", DType::u16},  {"u1", DType::u8},  {"b1", DType::boolean},
               {"c8", DType::c64}, {"c16", DType::c128}};
  for (const auto& type : types) {
    SCOPED_TRACE(type.descr);
    Bytes data(num_bytes({5, 3, 2}, size_bytes(type.dtype)));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
    Bytes swapped = data;
    detail::swap_bytes(type.dtype, swapped);
    for (const int version : {1, 2, 3}) {
      const auto little =
          open_array(npy_file(dict_of(std::string("<") + type.descr, "(5, 3, 2)"), data, version));
      const auto big = open_array(
          npy_file(dict_of(std::string(">") + type.descr, "(5, 3, 2)"), swapped, version));
      EXPECT_EQ(little->size(), 5);
      ASSERT_THAT(little->fields(), ElementsAre(Field{"x", type.dtype, {3, 2}}));
      const Bytes third(data.begin() + static_cast<std::ptrdiff_t>(data.size() / 5 * 3),
                        data.begin() + static_cast<std::ptrdiff_t>(data.size() / 5 * 4));
      EXPECT_EQ(read_whole(*little, 0, 3), third);
      EXPECT_EQ(read_whole(*big, 0, 3), third);
      expect_boxes_agree(*big, 30, 4);
      EXPECT_EQ(little->fingerprint(), big->fingerprint());
    }
  }
}

TEST(Npy, ReadsWhatNumpyPrints) {
  EXPECT_EQ(open_array(npy_file(dict_of("|u1", "(4,)"), Bytes(4)))->fields()[0].shape, Shape());
  EXPECT_EQ(open_array(npy_file(dict_of("|u1", "(4,)", "True"), Bytes(4)))->size(), 4);
  EXPECT_EQ(open_array(npy_file(dict_of("|b1", "(0, 3)"), {}))->size(), 0);
  EXPECT_EQ(open_array(npy_file(dict_of("=u2", "(3, 0)"), {}))->size(), 3);
  EXPECT_EQ(
      open_array(npy_file("{\"shape\":(2,1),\"descr\":\"<u2\",\"fortran_order\":False}", Bytes(4)))
          ->size(),
      2);
  const TempDir dir;
  write_file(dir / "x.npy", npy_file(dict_of("<i4", "(2,)"), bytes({1, 0, 0, 0, 2, 0, 0, 0})));
  EXPECT_EQ(read_values<std::int32_t>(*open_npy(dir / "x.npy", "x"), 0, 1), std::vector{2});
}

TEST(Npy, RejectsHeadersThatNumpyDoesNotWrite) {
  constexpr ErrorCode corrupt = ErrorCode::corrupt, unsupported = ErrorCode::unsupported;
  const std::string good = dict_of("<f4", "(2, 3)");
  const struct {
    std::string dict;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"", corrupt, "no '{'"},
      {"{}", corrupt, "not all of 'descr', 'fortran_order' and 'shape'"},
      {good + "x", corrupt, "more after the dict"},
      {good + good, corrupt, "more after the dict"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", corrupt, "no '}'"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", corrupt,
       "a key for the second time"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", corrupt, "neither True nor False"},
      {"{'other': 1}", corrupt, "a key that is not"},
      {"{'descr': '<f4}", corrupt, "a quote that is not closed"},
      {"{'descr': '<f\\x34'}", corrupt, "a backslash"},
      {"{descr: '<f4'}", corrupt, "no quoted text"},
      {dict_of("<f4", "[2, 3]"), corrupt, "no '('"},
      {dict_of("<f4", "(2)"), corrupt, "a number in brackets, needed is a tuple"},
      {dict_of("<f4", "(-2,)"), corrupt, "no extent from 0 to 2^63 - 1"},
      {dict_of("<f4", "(,)"), corrupt, "no extent"},
      {dict_of("<f4", "(2,,3)"), corrupt, "no extent"},
      {dict_of("<f4", "(2 3)"), corrupt, "tuple"},
      {dict_of("<f4", "(9223372036854775808,)"), corrupt, "no extent"},
      {dict_of("<f4", "(__import__('os').system('x'),)"), corrupt, "no extent"},
      {dict_of("<f4", "(2, 4611686018427387904)"), corrupt, "a shape of over 2^63 bytes"},
      {dict_of("<f4", "(4611686018427387904, 2)"), corrupt, "a shape of over 2^63 bytes"},
      {dict_of("<f4", "(0, 9223372036854775807, 9223372036854775807)"), corrupt, "over 2^63"},
      {dict_of("<f4", "()"), unsupported, "a scalar"},
      {dict_of("<f4", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)"), unsupported, "rank 17, at most 16"},
      {dict_of("<f4", "(2, 3)", "True"), unsupported, "Fortran order, needed is C order"},
      {dict_of("|O", "(2, 3)"), unsupported, "a 'descr' other than of a number"},
      {dict_of("<U5", "(2, 3)"), unsupported, "'descr'"},
      {dict_of("<M8[ns]", "(2, 3)"), unsupported, "'descr'"},
      {dict_of("|f4", "(2, 3)"), unsupported, "'descr'"},
      {dict_of("f4", "(2, 3)"), unsupported, "'descr'"},
      {dict_of("", "(2, 3)"), unsupported, "'descr'"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", unsupported,
       "a record of several types"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.dict);
    EXPECT_THAT(message_of(c.code, [&] { open_array(npy_file(c.dict, Bytes(24))); }),
                AllOf(HasSubstr("open npy file here: "), HasSubstr(c.message)));
  }
}

TEST(Npy, RejectsFilesOfAnotherLength) {
  const Bytes good = npy_file(dict_of("<f4", "(2, 3)"), Bytes(24));
  const auto message = [](const Bytes& file) {
    return message_of(ErrorCode::corrupt, [&] { open_array(file); });
  };
  EXPECT_THAT(message(good + bytes({0})), HasSubstr("25 bytes of data, 2 records of shape [3] f32 "
                                                    "need 24"));
  EXPECT_THAT(message(first_of(good, good.size() - 1)), HasSubstr("23 bytes of data"));
  EXPECT_THAT(message(npy_file(dict_of("<f4", "(2000000000000, 3)"), Bytes(24))),
              HasSubstr("24 bytes of data, 2000000000000 records of shape [3] f32 need "));
  EXPECT_THAT(message({}), HasSubstr("0 bytes, needed is 10 or more"));
  EXPECT_THAT(message(Bytes(20)), HasSubstr("does not begin with"));
  EXPECT_THAT(message(first_of(good, 50)), HasSubstr("ends within the header"));
  // A length of 4 GiB is refused before there is memory for it.
  EXPECT_THAT(message(bytes_of("\x93NUMPY") + bytes({2, 0, 0xff, 0xff, 0xff, 0xff, 0, 0})),
              HasSubstr("a header of 4294967295 bytes, needed is 65536 or fewer"));
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] {
                           open_array(bytes_of("\x93NUMPY") + bytes({4, 0, 0, 0, 0, 0}));
                         }),
              HasSubstr("version 4.0, needed is 1.0, 2.0 or 3.0"));
}

TEST(Npy, SurvivesEveryDamage) {
  open_every_damage(npy_file(dict_of(">i2", "(2, 3)"), Bytes(12)),
                    [](auto file) { return detail::open_npy(std::move(file), "x", 100); });
}

}  // namespace
}  // namespace shardwise
