#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// What a JSON text holds, value by value, without a tree: text from outside takes no more memory
/// than what is kept of it. Derived classes take what they want; all else is refused. What they
/// return false for ends the parse.
class StrictJson {
 public:
  /// As deep as a manifest may be.
  static constexpr std::size_t kMostNested = 256;

  virtual ~StrictJson() = default;

  /// Nothing may follow the value. False if a derived class ended it.
  bool parse(std::string_view text);

  virtual bool number(std::uint64_t /*value*/) { return other("a number"); }
  virtual bool boolean(bool /*value*/) { return other("a boolean"); }
  virtual bool string(std::string&& /*text*/) { return other("a string"); }
  virtual bool start_object() { return other("an object"); }
  virtual bool key(std::string&& /*key*/) { return true; }
  virtual bool end_object() { return true; }
  virtual bool start_array() { return other("a list"); }
  virtual bool end_array() { return true; }

  /// A value that nobody takes, null and the like.
  virtual bool other(std::string_view found) { return refuse(found); }

  /// Throws, or returns false to end the parse.
  virtual bool refuse(std::string_view found) = 0;

  /// The same for a text that "is not JSON at its byte 7", or is nested too deep.
  virtual bool unreadable(const std::string& problem) = 0;
};

}  // namespace shardwise::detail
