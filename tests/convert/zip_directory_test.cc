#include "shardwise/convert/detail/zip_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "convert/zip_bytes.h"
#include "testing/errors.h"
#include "testing/memory_files.h"

namespace shardwise {
namespace {

TEST(ZipDirectory, SaysWhereEachMemberIs) {
  const std::string bytes =
      zip_of({{"a.npy", "abc"}, {"b.npy", std::string(500, 'b'), Stored::deflated}});
  const auto content = std::as_bytes(std::span(std::string_view(bytes)));
  MemoryFileSystem files({{"m.npz", {content.begin(), content.end()}}});
  const auto members = detail::read_zip_directory(*files.open("m.npz"));
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].name, "a.npy");
  EXPECT_FALSE(members[0].is_deflated);
  EXPECT_EQ(bytes.substr(members[0].offset, members[0].stored_bytes), "abc");
  EXPECT_EQ(members[0].crc, zip_crc_of("abc"));
  EXPECT_TRUE(members[1].is_deflated);
  EXPECT_EQ(members[1].bytes, 500u);
  EXPECT_LT(members[1].stored_bytes, 500u);
}

TEST(ZipDirectory, NoByteBelongsToTwoMembers) {
  const std::string bytes = zip_of({{"a.npy", "abc"}, {"b.npy", "abc", {}, {.header = 0}}});
  const auto content = std::as_bytes(std::span(std::string_view(bytes)));
  MemoryFileSystem files({{"m.npz", {content.begin(), content.end()}}});
  EXPECT_THAT(
      message_of(ErrorCode::corrupt, [&] { detail::read_zip_directory(*files.open("m.npz")); }),
      testing::HasSubstr("member \"a.npy\": its header and what follows are one"));
}

}  // namespace
}  // namespace shardwise
