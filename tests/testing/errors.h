#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise {

/// The message of the Error that `body` throws. Fails the test where it throws none, or one with
/// another code, or one whose message is not a single line without a full stop.
inline std::string message_of(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_FALSE(message.empty() || message.back() == '.') << message;
    return message;
  }
  ADD_FAILURE() << "no error; expected was " << name(code);
  return "";
}

/// The text in double quotes, as messages show it.
inline std::string quoted(std::string_view text) {
  std::string result;
  result.append(1, '"').append(text).append(1, '"');
  return result;
}

}  // namespace shardwise
