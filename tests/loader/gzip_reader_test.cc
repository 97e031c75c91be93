#include "shardwise/loader/detail/files/gzip_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "loader/idx_files.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using ::testing::HasSubstr;

Bytes pattern(std::size_t count) {
  Bytes all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<std::byte>(i * i >> 3);
  return all;
}

TEST(GzipReader, UnpacksInPiecesOfAnySize) {
  const Bytes plain = pattern(300000);
  const TempDir dir;
  write_file(dir / "x", gzip(first_of(plain, 1000)) + gzip({}) +
                            gzip(Bytes(plain.begin() + 1000, plain.end())));
  for (const std::size_t piece : {1u, 7u, 999u, 1000u, 65536u, 300000u, 400000u}) {
    const InputFile file(dir / "x");
    GzipReader reader(file);
    Bytes all, out(piece);
    for (;;) {
      const std::size_t count = reader.read(out);
      all.insert(all.end(), out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count));
      if (count < piece) break;
    }
    EXPECT_EQ(all, plain) << piece;
    EXPECT_EQ(reader.read(out), 0u);
  }
}

TEST(GzipReader, UnpacksNoMoreThanTheFormatCan) {
  const Bytes packed = gzip(Bytes(10 << 20));
  EXPECT_LT((std::size_t{10} << 20) / packed.size(), kMaxGzipRatio);
  EXPECT_GT((std::size_t{10} << 20) / packed.size(), kMaxGzipRatio * 9 / 10);
}

TEST(GzipReader, FailsWhereTheFileIsDamagedAndNotBefore) {
  const TempDir dir;
  const Bytes plain = pattern(1000);
  write_file(dir / "x", gzip(plain) + bytes({'x'}));
  const InputFile file(dir / "x");
  GzipReader reader(file);
  Bytes out(1000);
  EXPECT_EQ(reader.read(out), 1000u);
  EXPECT_EQ(out, plain);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { reader.read(out); }),
              HasSubstr("at offset " + std::to_string(file.size_bytes() - 1) + ": goes on with"));
}

}  // namespace
}  // namespace shardwise::detail
