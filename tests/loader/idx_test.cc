#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

#include "loader/idx_files.h"
#include "shardwise/loader/sources/arrays.h"
#include "testing/errors.h"
#include "testing/random_boxes.h"
#include "testing/random_shardings.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Bytes random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes all(count);
  for (std::byte& byte : all) byte = static_cast<std::byte>(random());
  return all;
}

Bytes read(const Source& source, std::int64_t record, const Box& box) {
  Bytes all(num_bytes(box.shape(), size_bytes(source.fields()[0].dtype)));
  source.read_box(0, record, {all.data(), box});
  return all;
}

// The elements of a box of one record, one by one, from the file's data.
Bytes expected(const Bytes& data, const Field& field, std::int64_t record, const Box& box) {
  const Box whole = Box::whole(field.shape);
  const std::size_t bytes = size_bytes(field.dtype);
  const std::size_t begin = static_cast<std::size_t>(record) * num_bytes(field.shape, bytes);
  Bytes all;
  for (const Index& at : indices_of(box)) {
    for (std::size_t i = 0; i < bytes; ++i) {
      all.push_back(data[begin + offset_in(whole, at) * bytes + bytes - 1 - i]);
    }
  }
  return all;
}

TEST(Idx, ReadsEveryTypePlainAndCompressed) {
  const struct {
    int code;
    DType dtype;
  } types[] = {{0x08, DType::u8},  {0x09, DType::i8},  {0x0b, DType::i16},
               {0x0c, DType::i32}, {0x0d, DType::f32}, {0x0e, DType::f64}};
  const TempDir dir;
  for (const auto& type : types) {
    SCOPED_TRACE(name(type.dtype));
    const Bytes data = random_bytes(5 * 3 * 4 * size_bytes(type.dtype), 1);
    const Bytes file = idx_header(type.code, {5, 3, 4}) + data;
    write_file(dir / "plain", file);
    write_file(dir / "packed", gzip(file));
    for (const char* path : {"plain", "packed"}) {
      SCOPED_TRACE(path);
      const auto source = open_idx(dir / path, "x");
      EXPECT_EQ(source->size(), 5);
      const Field field{"x", type.dtype, {3, 4}};
      ASSERT_THAT(source->fields(), ElementsAre(field));
      const Box whole = Box::whole(field.shape);
      RandomShardings random(2);
      for (int i = 0; i < 40; ++i) {
        const std::int64_t record = i % 5;
        const Box box = i < 5 ? whole : random_box(whole, random);
        EXPECT_EQ(read(*source, record, box), expected(data, field, record, box))
            << record << " " << to_string(box);
      }
    }
    EXPECT_EQ(open_idx(dir / "plain", "x")->fingerprint(),
              open_idx(dir / "packed", "y")->fingerprint());
  }
}

TEST(Idx, ReadsKnownValues) {
  const TempDir dir;
  write_file(dir / "i16", idx_header(0x0b, {2}) + bytes({0xff, 0xfe, 0x01, 0x02}));
  const auto source = open_idx(dir / "i16", "x");
  std::array<std::int16_t, 2> values{};
  for (std::size_t i = 0; i < 2; ++i) {
    source->read_box(0, static_cast<std::int64_t>(i),
                     {reinterpret_cast<std::byte*>(&values[i]), Box()});
  }
  EXPECT_THAT(values, ElementsAre(-2, 258));
}

// Runs near each other are read by one call, runs far apart by one each, and no call reads much.
TEST(Idx, ReadsBoxesOfLargeRecordsWhateverTheGaps) {
  const TempDir dir;
  const Field field{"x", DType::i16, {60, 3000}};
  const Bytes data = random_bytes(2 * 60 * 3000 * 2, 3);
  write_file(dir / "x", idx_header(0x0b, {2, 60, 3000}) + data);
  const auto source = open_idx(dir / "x", "x");
  for (const Box& box : {Box({0, 0}, {60, 10}), Box({0, 10}, {60, 2900}), Box({7, 952}, {59, 3000}),
                         Box({7, 951}, {59, 2999}), Box({3, 0}, {50, 3000}), Box({0, 5}, {2, 6}),
                         Box({59, 2999}, {60, 3000}), Box({4, 4}, {4, 8})}) {
    EXPECT_EQ(read(*source, 1, box), expected(data, field, 1, box)) << to_string(box);
  }
}

TEST(Idx, ReadsFilesThatHoldNothing) {
  const TempDir dir;
  const struct {
    const char* name;
    Bytes file;
    std::int64_t records;
  } cases[] = {{"no records", idx_header(0x08, {0, 28, 28}), 0},
               {"no scalars", idx_header(0x0d, {0}), 0},
               {"empty records", idx_header(0x0c, {7, 0, 3}), 7}};
  for (const auto& c : cases) {
    for (const bool packed : {false, true}) {
      SCOPED_TRACE(c.name);
      write_file(dir / "x", packed ? gzip(c.file) : c.file);
      const auto source = open_idx(dir / "x", "x");
      EXPECT_EQ(source->size(), c.records);
      source->fingerprint();
    }
  }
}

TEST(Idx, UnpacksSeveralMembers) {
  const TempDir dir;
  const Bytes data = random_bytes(300 * 1000, 4);
  const Bytes file = idx_header(0x08, {300, 1000}) + data;
  Bytes packed = gzip(first_of(file, 6)) + gzip({});  // the first ends within the header
  for (std::size_t at = 6; at < file.size(); at += 70001) {
    const std::size_t end = std::min(file.size(), at + 70001);
    packed = packed + gzip(Bytes(file.begin() + static_cast<std::ptrdiff_t>(at),
                                 file.begin() + static_cast<std::ptrdiff_t>(end)));
  }
  write_file(dir / "x.gz", packed + gzip({}));
  const auto source = open_idx(dir / "x.gz", "x");
  ASSERT_EQ(source->size(), 300);
  for (std::int64_t record = 0; record < 300; ++record) {
    ASSERT_EQ(read(*source, record, Box::whole({1000})),
              expected(data, source->fields()[0], record, Box::whole({1000})));
  }
}

TEST(Idx, ReadsFashionMnist) {
  const std::filesystem::path folder = SHARDWISE_FASHION_MNIST_DIR;
  const auto images = open_idx(folder / "train-images-idx3-ubyte.gz", "image");
  const auto labels = open_idx(folder / "train-labels-idx1-ubyte.gz", "label");
  ASSERT_EQ(images->size(), 60000);
  EXPECT_EQ(images->fields()[0], (Field{"image", DType::u8, {28, 28}}));
  EXPECT_EQ(labels->fields()[0], (Field{"label", DType::u8, {}}));
  std::array<int, 10> classes{};
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 60000; ++i) {
    ++classes.at(std::to_integer<std::size_t>(read(*labels, i, Box())[0]));
    for (const std::byte pixel : read(*images, i, Box::whole({28, 28}))) {
      sum += std::to_integer<std::int64_t>(pixel);
    }
  }
  EXPECT_THAT(classes, Each(6000));
  // The mean that everybody normalises with: 0.2860.
  EXPECT_NEAR(static_cast<double>(sum) / (60000 * 784) / 255, 0.2860, 0.00005);
}

TEST(Idx, RejectsDamagedFiles) {
  const Bytes good = idx_header(0x0b, {3, 2}) + bytes({0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6});
  const Bytes packed = gzip(good);
  Bytes wrong_checksum = packed, wrong_length = packed, wrong_block = packed, wrong_method = packed;
  wrong_checksum[packed.size() - 8] ^= std::byte{1};
  wrong_length[packed.size() - 4] ^= std::byte{1};
  wrong_block[10] |= std::byte{6};
  wrong_method[2] = std::byte{7};
  const struct {
    const char* name;
    Bytes file;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"empty", {}, ErrorCode::corrupt, "found 0 bytes, needed a header of 4 or more"},
      {"three bytes", bytes({0, 0, 8}), ErrorCode::corrupt,
       "found 3 bytes, needed a header of 4 or more"},
      {"text", bytes({'h', 'e', 'l', 'l', 'o'}), ErrorCode::corrupt,
       "begins with 0x68 0x65, needed are two zero bytes"},
      {"second byte", bytes({0, 1, 8, 1, 0, 0, 0, 0}), ErrorCode::corrupt, "begins with 0x00 0x01"},
      {"unknown type", idx_header(0x0a, {1}) + bytes({0}), ErrorCode::unsupported,
       "element type 0x0a, needed is 0x08, 0x09, 0x0b, 0x0c, 0x0d or 0x0e"},
      {"little-endian", bytes({0, 0, 1, 8, 1, 0, 0, 0, 5}), ErrorCode::unsupported,
       "element type 0x01"},
      {"no dims", bytes({0, 0, 8, 0, 1}), ErrorCode::corrupt,
       "rank 0, needed is a dim that counts the records"},
      {"too many dims", bytes({0, 0, 8, 17}) + Bytes(17 * 4), ErrorCode::unsupported,
       "rank 17, at most 16 here"},
      {"ends within the sizes", first_of(good, 9), ErrorCode::corrupt,
       "ends within the header: found 5 bytes of sizes, needed 8 for rank 2"},
      {"ends after the header", first_of(good, 12), ErrorCode::corrupt,
       "0 bytes of data, 3 records of shape [2] i16 need 12"},
      {"one byte short", first_of(good, good.size() - 1), ErrorCode::corrupt,
       "11 bytes of data, 3 records of shape [2] i16 need 12"},
      {"one byte more", good + bytes({0}), ErrorCode::corrupt, "13 bytes of data"},
      {"claims more records", idx_header(0x08, {0xffffffff, 28, 28}) + Bytes(784),
       ErrorCode::corrupt,
       "784 bytes of data, 4294967295 records of shape [28, 28] u8 need 3367254359280"},
      {"a record overflows", idx_header(0x0e, {1, 0xffffffff, 0xffffffff}) + Bytes(8),
       ErrorCode::corrupt, "1 records of shape [4294967295, 4294967295] f64 are over 2^63 bytes"},
      {"all records overflow", idx_header(0x0c, {0xffffffff, 0xffffffff}) + Bytes(8),
       ErrorCode::corrupt, "4294967295 records of shape [4294967295] i32 are over 2^63 bytes"},
      {"overflow, then nothing", idx_header(0x08, {1, 0xffffffff, 0xffffffff, 0xffffffff, 0}),
       ErrorCode::corrupt, "are over 2^63 bytes"},

      {"gz: only the magic", bytes({0x1f, 0x8b}), ErrorCode::corrupt, "ends within a gzip member"},
      {"gz: ends within its header", first_of(packed, 7), ErrorCode::corrupt,
       "ends within a gzip member"},
      {"gz: ends within the data", first_of(packed, 16), ErrorCode::corrupt,
       "ends within a gzip member"},
      {"gz: ends within the checksum", first_of(packed, packed.size() - 6), ErrorCode::corrupt,
       "ends within a gzip member"},
      {"gz: ends within the length", first_of(packed, packed.size() - 1), ErrorCode::corrupt,
       "ends within a gzip member"},
      {"gz: checksum", wrong_checksum, ErrorCode::corrupt, "incorrect data check"},
      {"gz: length", wrong_length, ErrorCode::corrupt, "incorrect length check"},
      {"gz: block", wrong_block, ErrorCode::corrupt, "invalid block type"},
      {"gz: method", wrong_method, ErrorCode::corrupt, "unknown compression method"},
      {"gz: garbage at the end", packed + bytes({'x', 'y'}), ErrorCode::corrupt,
       "goes on with other bytes after a gzip member"},
      {"gz: zeros at the end", packed + Bytes(512), ErrorCode::corrupt,
       "goes on with other bytes after a gzip member"},
      {"gz: half a magic at the end", packed + bytes({0x1f, 0x8c}), ErrorCode::corrupt,
       "incorrect header check"},
      {"gz: second member cut", gzip(first_of(good, 15)) + first_of(packed, 14), ErrorCode::corrupt,
       "ends within a gzip member"},
      {"gz: no idx inside", gzip(bytes({1, 2, 3, 4, 5})), ErrorCode::corrupt,
       "begins with 0x01 0x02"},
      {"gz: nothing inside", gzip({}), ErrorCode::corrupt,
       "found 0 bytes, needed a header of 4 or more"},
      {"gz: gz inside", gzip(packed), ErrorCode::corrupt, "begins with 0x1f 0x8b"},
      {"gz: ends within the sizes", gzip(first_of(good, 9)), ErrorCode::corrupt,
       "ends within the header: found 5 bytes of sizes, needed 8 for rank 2"},
      {"gz: fewer records", gzip(first_of(good, good.size() - 1)), ErrorCode::corrupt,
       "unpacks to 11 bytes of data, 3 records of shape [2] i16 need 12"},
      {"gz: more records", gzip(good + bytes({0})), ErrorCode::corrupt,
       "unpacks to more data than 3 records of shape [2] i16 need 12"},
      {"gz: another member of data", packed + packed, ErrorCode::corrupt, "unpacks to more data"},
      {"gz: claims 2^40 bytes", gzip(idx_header(0x08, {1u << 20, 1u << 20}) + Bytes(1000)),
       ErrorCode::corrupt,
       "compressed bytes, too few: 1048576 records of shape [1048576] u8 need "
       "1099511627776"},
      {"gz: claims 2^62 bytes", gzip(idx_header(0x08, {1u << 31, 1u << 31})), ErrorCode::corrupt,
       "compressed bytes, too few"},
  };
  const TempDir dir;
  const std::string path = (dir / "damaged").string();
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    write_file(path, c.file);
    EXPECT_THAT(message_of(c.code, [&] { open_idx(path, "x"); }),
                AllOf(HasSubstr(path), HasSubstr(c.message)));
  }
}

// Each byte of a compressed file matters, apart from those that gzip itself says nothing about.
TEST(Idx, FindsOrSurvivesEveryFlippedBit) {
  const Bytes good = idx_header(0x08, {40, 2}) + random_bytes(80, 5);
  const Bytes packed = gzip(good);
  const TempDir dir;
  int found = 0;
  for (std::size_t at = 0; at < packed.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = packed;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      write_file(dir / "x", damaged);
      try {
        const auto source = open_idx(dir / "x", "x");
        EXPECT_EQ(read(*source, 39, Box({0}, {2})), Bytes(good.end() - 2, good.end()));
      } catch (const Error& error) {
        EXPECT_THAT(error.code(), ::testing::AnyOf(ErrorCode::corrupt, ErrorCode::unsupported));
        ++found;
      }
    }
  }
  // Beyond ten bytes of gzip header hardly a flip goes unseen.
  EXPECT_GT(found, static_cast<int>(packed.size() - 10) * 8);
}

TEST(Idx, NamesTheFileThatCannotBeOpened) {
  const TempDir dir;
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { open_idx(dir / "none", "x"); }),
              AllOf(HasSubstr((dir / "none").string()), HasSubstr("No such file")));
  EXPECT_THAT(message_of(ErrorCode::io, [&] { open_idx(dir.path(), "x"); }),
              HasSubstr("is not a regular file"));
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { open_idx(dir / "pipe", "x"); }),
              HasSubstr("is not a regular file"));
}

TEST(Idx, NamesTheRecordWhereTheFileWasCutShort) {
  const TempDir dir;
  write_file(dir / "x", idx_header(0x08, {10, 4}) + Bytes(40));
  const auto source = open_idx(dir / "x", "x");
  std::filesystem::resize_file(dir / "x", 12 + 7 * 4 + 1);
  EXPECT_EQ(read(*source, 6, Box::whole({4})), Bytes(4));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read(*source, 7, Box::whole({4})); }),
              AllOf(StartsWith("read: " + (dir / "x").string()),
                    HasSubstr("record 7 at offset 40 got 1 bytes, needed is 4")));
}

}  // namespace
}  // namespace shardwise
