#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loader/sources/source_reads.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Tokens, CutsWindowsWithAStride) {
  std::vector<std::uint16_t> tokens(100);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 600);
  const Bytes header = bytes({9, 9, 9});
  for (const std::int64_t window : {1, 7, 99, 100, 101}) {
    for (const std::int64_t stride : {0, 1, 3, 7, 50, 200}) {
      const auto source = detail::open_tokens(
          file_of(header + bytes_of(tokens)),
          {.window = window, .stride = stride, .header_bytes = 3, .field = "t"});
      ASSERT_THAT(source->fields(), ElementsAre(Field{"t", DType::u16, {window}}));
      std::int64_t records = 0;
      for (std::int64_t begin = 0; begin + window <= 100; begin += stride == 0 ? window : stride) {
        ASSERT_LT(records, source->size());
        const auto at = tokens.begin() + begin;
        EXPECT_EQ(read_values<std::uint16_t>(*source, 0, records),
                  std::vector<std::uint16_t>(at, at + window));
        ++records;
      }
      EXPECT_EQ(source->size(), records) << window << " " << stride;
      expect_boxes_agree(*source, 20, 3);
    }
  }
}

TEST(Tokens, TakesEveryType) {
  const TempDir dir;
  write_file(dir / "x", Bytes(16, std::byte{0xff}));
  for (const DType dtype : {DType::u8, DType::u16, DType::u32, DType::i32}) {
    const auto source = open_tokens(dir / "x", {.dtype = dtype, .window = 2});
    EXPECT_EQ(source->size(), static_cast<std::int64_t>(8 / size_bytes(dtype)));
  }
  EXPECT_EQ(
      read_values<std::int32_t>(*open_tokens(dir / "x", {.dtype = DType::i32, .window = 1}), 0, 3),
      std::vector{-1});
}

TEST(Tokens, RejectsWhatCannotBe) {
  const auto refused = [](ErrorCode code, std::size_t size, const TokenOptions& options) {
    return message_of(code, [&] { detail::open_tokens(file_of(Bytes(size)), options); });
  };
  constexpr ErrorCode bad = ErrorCode::invalid_argument;
  EXPECT_THAT(refused(bad, 8, {}), HasSubstr("window is 0, needed is 1 or more"));
  EXPECT_THAT(refused(bad, 8, {.window = 1, .stride = -1}), HasSubstr("stride is -1"));
  EXPECT_THAT(refused(bad, 8, {.dtype = DType::i64, .window = 1}),
              HasSubstr("dtype is i64, needed is u8, u16, u32 or i32"));
  EXPECT_THAT(refused(ErrorCode::corrupt, 7, {.window = 1}),
              HasSubstr("here: 7 bytes, needed is 0 of header and whole tokens of 2"));
  EXPECT_THAT(refused(ErrorCode::corrupt, 7, {.window = 1, .header_bytes = 8}),
              HasSubstr("7 bytes, needed is 8 of header"));
}

}  // namespace
}  // namespace shardwise
