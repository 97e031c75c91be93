#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// Says why a text is not readable JSON.
struct JsonProblem {
  enum Kind { syntax, encoding, number, nesting } kind;
  std::size_t byte;        ///< from 1
  std::string_view words;  ///< of the parser, without a full stop; static

  /// "is not JSON at its byte 7".
  std::string to_string() const;
};

/// Reads a JSON text (RFC 8259) value by value, without a tree: text from outside takes no more
/// memory than the values that are kept. Derived classes override functions for the values that
/// they want; all others are refused. The read ends if one of these functions returns false. Texts
/// are valid until the function returns. Thread-compatible.
class JsonReader {
 public:
  /// The deepest nesting of a manifest.
  static constexpr std::size_t kMostNested = 256;

  struct Rules {
    std::size_t most_nested = kMostNested;
    /// Takes NaN and Infinity as numbers, and leaves the check of UTF-8 to the derived class.
    bool is_lenient = false;
  };

  virtual ~JsonReader() = default;

  /// Nothing may follow the value. False if a derived class ended it.
  bool parse(std::string_view text, const Rules& rules);
  bool parse(std::string_view text) { return parse(text, {}); }

  virtual bool null() { return other("null"); }
  virtual bool boolean(bool /*value*/) { return other("a boolean"); }
  /// A number as it is written. By default it goes to the first of the next three functions that
  /// can hold it; it is unreadable if it is beyond the range of a double.
  virtual bool number_text(std::string_view digits);
  virtual bool number(std::uint64_t /*value*/) { return other("a number"); }
  virtual bool negative(std::int64_t /*value*/) { return other("a negative number"); }
  virtual bool real(double /*value*/) { return other("a number that is no integer, or too large"); }
  virtual bool string(std::string_view /*text*/) { return other("a string"); }
  virtual bool start_object() { return other("an object"); }
  virtual bool key(std::string_view /*key*/) { return true; }
  virtual bool end_object(std::size_t /*members*/) { return true; }
  virtual bool start_array() { return other("a list"); }
  virtual bool end_array(std::size_t /*elements*/) { return true; }

  /// Called for null and for values whose function is not overridden.
  virtual bool other(std::string_view found) { return refuse(found); }

  /// Throws, or returns false to end the parse.
  virtual bool refuse(std::string_view found) = 0;
  virtual bool unreadable(const JsonProblem& problem) = 0;

 protected:
  /// Bytes of the text up to the end of the current key or number.
  std::size_t position() const { return position_; }

 private:
  class Events;
  std::size_t position_ = 0;
};

}  // namespace shardwise::detail
