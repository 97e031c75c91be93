#include "shardwise/shard/error.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

// Line ends and tabs stay: a report of memory in a message has several lines.
std::string without_controls(const std::string& message) {
  std::string text;
  for (const char c : message) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7F) {
      text += fmt::format("\\x{:02x}", code);
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

Error::Error(ErrorCode code, const std::string& message, int system_error)
    : std::runtime_error(without_controls(message)), code_(code), system_error_(system_error) {}

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
