#include "shardwise/shard/error.h"

#include <gtest/gtest.h>

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

TEST(Error, NamesCodesAsTheyAreSpelt) {
  const struct {
    ErrorCode code;
    const char* name;
  } cases[] = {
      {ErrorCode::invalid_argument, "invalid_argument"},
      {ErrorCode::not_found, "not_found"},
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
