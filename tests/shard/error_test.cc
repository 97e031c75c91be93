#include "shardwise/shard/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <stdexcept>

namespace shardwise {
namespace {

TEST(Error, CarriesItsCodeAndMessage) {
  try {
    throw Error(ErrorCode::corrupt, "chunk 3 of w");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "chunk 3 of w");
    EXPECT_EQ(dynamic_cast<const Error&>(error).code(), ErrorCode::corrupt);
  }
}

TEST(Error, DoesNotEndAtANul) {
  const Error error(ErrorCode::not_found, std::string("load \"a\0b\": no\n\tsuch é", 23));
  const std::string escaped = R"(load "a\x00b": no)"
                              "\n\tsuch é";
  EXPECT_EQ(error.what(), escaped);
  EXPECT_EQ(Error(error, error.what()).what(), escaped);
}

TEST(Error, KeepsItsCodeAndTheSystemsErrorWithMoreSaid) {
  const Error cause(ErrorCode::io, "write: No space left on device", ENOSPC);
  const Error error(cause, "save x: write: No space left on device");
  EXPECT_STREQ(error.what(), "save x: write: No space left on device");
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_EQ(error.system_error(), ENOSPC);
  EXPECT_EQ(Error(ErrorCode::corrupt, "chunk 3").system_error(), 0);
}

TEST(Error, NamesCodesAsTheyAreSpelt) {
  const struct {
    ErrorCode code;
    const char* name;
  } cases[] = {
      {ErrorCode::invalid_argument, "invalid_argument"},
      {ErrorCode::not_found, "not_found"},
      {ErrorCode::no_such_name, "no_such_name"},
      {ErrorCode::already_exists, "already_exists"},
      {ErrorCode::corrupt, "corrupt"},
      {ErrorCode::io, "io"},
      {ErrorCode::unsupported, "unsupported"},
      {ErrorCode::resource_exhausted, "resource_exhausted"},
      {ErrorCode::cancelled, "cancelled"},
  };
  for (const auto& c : cases) EXPECT_EQ(name(c.code), c.name);
}

}  // namespace
}  // namespace shardwise
