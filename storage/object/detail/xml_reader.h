#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Reads an XML text element by element, without a tree. Only what answers of object stores hold is
/// taken: elements, text, the five named entities and numbers of characters, comments, processing
/// instructions. Attributes are skipped; prefixes of namespaces are dropped; a document type is
/// refused, so nothing expands. Depth is at most 16. Thread-compatible.
///
///   XmlReader xml("<A><B>1</B><B>2</B></A>", "list s3://b");
///   xml.next() && xml.path() == "A/B" && xml.text() == "1";
class XmlReader {
 public:
  /// `operation` begins messages. The text is valid as long as the reader.
  XmlReader(std::string_view text, std::string_view operation)
      : text_(text), operation_(operation) {}

  /// Goes on to the end of the next element that ends; false after the outermost one. Throws
  /// corrupt.
  bool next();

  /// The names from the outermost element down to the one that has ended: "A/B".
  const std::string& path() const { return path_; }

  /// The characters of that element, if it holds no others.
  const std::string& text() const { return characters_; }

 private:
  [[noreturn]] void refuse(std::string_view found) const;
  bool skip(std::string_view begin, std::string_view end);
  bool take_tag();
  void begin_element(std::string_view name);
  void end_element(std::string_view name);
  void take_characters();
  void take_entity();

  const std::string_view text_;
  const std::string operation_;
  std::size_t at_ = 0;
  std::string open_, path_, characters_;
  std::vector<std::size_t> lengths_;  // of open_, before each element that is open
  bool has_root_ = false, holds_elements_ = false;
};

}  // namespace shardwise::detail
