#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// What a JSON text holds, value by value, without a tree: text from outside takes no more memory
/// than what is kept of it. Derived classes take what they want; all else is refused.
class StrictJson : public nlohmann::json::json_sax_t {
 public:
  /// Nothing may follow the value. False where a derived class ended it by returning false.
  bool parse(std::string_view text) {
    const std::size_t zero = text.find('\0');  // the parser would take it for the end
    if (zero != text.npos) return not_json(zero + 1);
    return nlohmann::json::sax_parse(text.begin(), text.end(), this);
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return refuse("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is no integer, or too large");
  }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("bytes"); }
  bool start_object(std::size_t) override { return refuse("an object"); }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return refuse("a list"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return not_json(position);
  }

 protected:
  /// Throws, or returns false to end the parse.
  virtual bool refuse(std::string_view found) = 0;
  virtual bool not_json(std::size_t byte) = 0;
};

}  // namespace shardwise::detail
