#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

// what() ends at a NUL.
std::string without_nul(const std::string& message) {
  std::string text;
  for (const char c : message) {
    if (c == '\0') {
      text += "\\x00";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

Error::Error(ErrorCode code, const std::string& message, int system_error)
    : std::runtime_error(without_nul(message)), code_(code), system_error_(system_error) {}

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::no_such_name:
      return "no_such_name";
    case ErrorCode::already_exists:
      return "already_exists";
    case ErrorCode::corrupt:
      return "corrupt";
    case ErrorCode::io:
      return "io";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::resource_exhausted:
      return "resource_exhausted";
    case ErrorCode::cancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace shardwise
