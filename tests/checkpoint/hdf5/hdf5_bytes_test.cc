#include "shardwise/checkpoint/detail/hdf5/hdf5_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise::detail {
namespace {

// From the comments of Jenkins' lookup3.c, and the library's own for the other lengths: see
// hdf5_objects_test.cc, whose headers have many.
TEST(Hdf5Checksum, IsLookup3) {
  const auto checksum = [](std::string_view text) {
    return hdf5_checksum(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(checksum(""), 0xdeadbeefu);
  EXPECT_EQ(checksum("Four score and seven years ago"), 0x17770551u);
}

TEST(Hdf5Bytes, ArePutBehindOneAnotherAtTheirAddress) {
  Hdf5Bytes bytes(100);
  bytes.put(std::uint16_t{0x0201});
  bytes.put(std::string_view("ab"));
  EXPECT_EQ(bytes.here(), 104u);
  EXPECT_EQ(bytes.align(), 104u);
  bytes.put_terminated("c");
  bytes.put_sized(0x030201, 2);
  EXPECT_EQ(bytes.align(), 112u);
  bytes.patch(102, std::uint8_t{'z'});
  const std::string expected("\x01\x02zbc\0\x01\x02\0\0\0\0", 12);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size()),
            expected);
  EXPECT_EQ(bytes.from(104).size(), 8u);
  const std::uint32_t checksum = hdf5_checksum(bytes.from(104));
  bytes.put_checksum(104);
  EXPECT_EQ(std::memcmp(bytes.from(112).data(), &checksum, sizeof checksum), 0);
}

}  // namespace
}  // namespace shardwise::detail
