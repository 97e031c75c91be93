#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

class JsonDocument;
class JsonParser;

/// A value in a JsonDocument; valid as long as that and the text it was read from. Immutable.
class JsonValue {
 public:
  enum class Kind : std::uint32_t { null, boolean, number, string, array, object };

  Kind kind() const;
  bool is(Kind wanted) const { return kind() == wanted; }

  /// "null", "boolean", "number", "string", "array" or "object".
  const char* kind_name() const;

  /// As it was written, without blanks around it.
  std::string_view raw() const;

  /// A string's characters. Requires that it is one.
  std::string_view text() const;

  /// A number that is written as an integer and fits; absent where it does not.
  std::optional<std::int64_t> to_int64() const;

  /// True for a number without point and exponent that is less than 2^64 in size.
  bool is_integer() const;

  /// Number of elements of an array, or of members of an object.
  std::size_t size() const;

  /// An object's member. Requires an object.
  std::optional<JsonValue> find(std::string_view key) const;

  /// Over the elements of an array. Requires one.
  class Iterator;
  Iterator begin() const;
  Iterator end() const;

 private:
  friend class JsonDocument;
  friend class JsonParser;
  JsonValue(const JsonDocument& document, std::uint32_t node) : document_(&document), node_(node) {}

  const JsonDocument* document_;
  std::uint32_t node_;
};

/// JSON text, read into one list of its values: a manifest has hundreds of thousands. Immutable.
class JsonDocument {
 public:
  /// Reads text from outside: no object may have a key twice, nothing may be nested deeper than
  /// `max_nesting` levels, and nothing may follow the value. Throws corrupt with one clause
  /// ("is not JSON: .."). The text must outlive the document.
  JsonDocument(std::string_view text, int max_nesting);

  JsonValue root() const { return {*this, 0}; }

 private:
  friend class JsonValue;
  friend class JsonParser;

  // In the order of the text. An object's members are a string, the key, and the value behind it.
  struct Node {
    std::uint32_t begin, bytes;  // of the text
    std::uint32_t end;           // the node behind it and all it holds
    JsonValue::Kind kind : 3;
    std::uint32_t count : 29;  // elements or members; of a string: 1 + number in decoded_, or 0
  };
  static_assert(sizeof(Node) == 16);

  std::string_view text_;
  std::vector<Node> nodes_;
  std::vector<std::string> decoded_;  // strings that have escapes
};

class JsonValue::Iterator {
 public:
  JsonValue operator*() const { return value_; }
  Iterator& operator++();
  bool operator==(const Iterator& other) const { return value_.node_ == other.value_.node_; }

 private:
  friend class JsonValue;
  explicit Iterator(JsonValue value) : value_(value) {}

  JsonValue value_;
};

/// True if the bytes are UTF-8, without surrogates and overlong forms.
bool is_utf8(std::string_view text);

}  // namespace shardwise::detail
