#include "testing/errors.h"

#include <gtest/gtest.h>

namespace shardwise {

std::string message_of(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    // One line; only a program that does not fit into memory is told one fact a line.
    const bool has_facts = message.starts_with("run a program: device ");
    for (std::size_t at = message.find('\n'); at != std::string::npos;
         at = message.find('\n', at + 1)) {
      EXPECT_TRUE(has_facts && message.compare(at + 1, 2, "  ") == 0) << message;
    }
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
