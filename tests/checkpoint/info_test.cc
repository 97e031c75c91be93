#include "shardwise/checkpoint/info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"

namespace shardwise {
namespace {

TEST(Codec, NamesGoBothWays) {
  for (const Codec codec : {Codec::automatic, Codec::zstd, Codec::none}) {
    EXPECT_EQ(parse_codec(name(codec)), codec);
  }
  EXPECT_EQ(name(Codec::automatic), "auto");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { parse_codec("gzip"); }),
              testing::HasSubstr("codec \"gzip\": it is not known; needed is auto, zstd or none"));
}

}  // namespace
}  // namespace shardwise
