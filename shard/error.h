#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardwise {

/// What kind of thing went wrong; the message says what exactly.
enum class ErrorCode {
  invalid_argument,    ///< the caller's shape, axis, spec or option is wrong
  not_found,           ///< a file, checkpoint, tensor or axis that was asked for is not there
  already_exists,      ///< something that would have to be replaced is there
  corrupt,             ///< bytes are there but are not what was written
  io,                  ///< the operating system refused: full disk, permission, broken device
  unsupported,         ///< well-formed, but this build cannot do it (a newer format, say)
  resource_exhausted,  ///< a device's memory capacity is used up
  cancelled,           ///< asked to stop: for callers' callbacks (SaveOptions::progress) to throw
};

/// As in the enumerator's own spelling: "invalid_argument".
std::string_view name(ErrorCode code);

/// The one exception type that Shardwise throws. The message is one line: operation, object, what
/// was found, what was needed.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace shardwise
