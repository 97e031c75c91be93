#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardwise {

/// The kind of error; the message says what exactly went wrong.
enum class ErrorCode {
  invalid_argument,    ///< the caller's shape, axis, spec or option is wrong
  not_found,           ///< a file, checkpoint or device that was asked for does not exist
  no_such_name,        ///< a tensor, step, field or mesh axis that was asked for does not exist
  already_exists,      ///< something exists that would have to be replaced
  corrupt,             ///< bytes exist but differ from those written
  io,                  ///< the operating system refused: full disk, permission, broken device
  unsupported,         ///< well-formed, but this build cannot do it (a newer format, say)
  resource_exhausted,  ///< a device's memory capacity is used up
  cancelled,           ///< asked to stop: thrown by callers' callbacks (SaveOptions::progress)
};

/// The enumerator's own spelling: "invalid_argument".
std::string_view name(ErrorCode code);

/// The one exception type that Shardwise throws. The message is one line: operation, object, the
/// value that was found, the value that is needed. A NUL in it is escaped as \x00, since a name or
/// a path from outside could cut what() off.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int system_error = 0);

  /// The same kind of error with a longer message.
  Error(const Error& cause, const std::string& message)
      : Error(cause.code_, message, cause.system_error_) {}

  ErrorCode code() const noexcept { return code_; }

  /// The errno of the operating system's refusal; 0 if it was not asked, or gave no reason.
  int system_error() const noexcept { return system_error_; }

 private:
  ErrorCode code_;
  int system_error_;
};

}  // namespace shardwise
