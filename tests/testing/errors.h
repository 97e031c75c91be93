#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise {

/// The message of the Error that `body` throws. Fails the test where it throws none, or one with
/// another code, or one whose message is not a single line without a full stop.
std::string message_of(ErrorCode code, const std::function<void()>& body);

/// The text in double quotes, as messages show it.
std::string quoted(std::string_view text);

}  // namespace shardwise
