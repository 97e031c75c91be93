#include "testing/errors.h"

#include <gtest/gtest.h>

namespace shardwise {

std::string message_of(ErrorCode code, const std::function<void()>& body) {
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

std::string quoted(std::string_view text) {
  std::string result;
  result.append(1, '"').append(text).append(1, '"');
  return result;
}

}  // namespace shardwise
