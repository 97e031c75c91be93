#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// The text between two delimiters, without its quotes.
struct CsvCell {
  std::string_view text;
  std::size_t quote_pairs = 0;  ///< doubled quotes in `text`: each stands for a single one

  /// Bytes of the value.
  std::size_t size() const { return text.size() - quote_pairs; }
};

/// The value of a cell. `scratch` holds it if it differs from the text in the file.
std::string_view csv_value(const CsvCell& cell, std::string& scratch);

struct CsvSplit {
  enum class End {
    record,            ///< a record, perhaps an empty line
    incomplete,        ///< the text ends before the record does
    stray_quote,       ///< a quote within a cell that does not begin with one
    text_after_quote,  ///< more of a cell after its closing quote
    open_quote,        ///< the file ends within a quoted cell
    lone_return,       ///< a carriage return without line feed outside quotes
  };
  End end;
  std::size_t bytes;  ///< of the record with its line end; or up to the fault
  bool is_empty_line;
};

/// Cuts the first record of `text` into cells, as RFC 4180 says; valid as long as the text.
/// `is_all`: the text ends at the file's end.
CsvSplit split_csv(std::string_view text, char delimiter, bool is_all, std::vector<CsvCell>& cells);

/// The fault in words.
std::string_view csv_fault(CsvSplit::End end);

}  // namespace shardwise::detail
