#include "shardwise/loader/sources/detail/csv_record.h"

namespace shardwise::detail {
namespace {

enum class CellEnd { delimiter, line, text, open, stray_quote, text_after_quote, lone_return };

// Reads one cell of `text` from `at` on, and moves `at` past its end.
CellEnd read_cell(std::string_view text, char delimiter, std::size_t& at, CsvCell& cell) {
  const std::size_t size = text.size();
  cell.quote_pairs = 0;
  std::size_t end = 0;
  if (at < size && text[at] == '"') {
    const std::size_t begin = ++at;
    for (;;) {
      end = text.find('"', at);
      if (end == text.npos) {
        at = begin - 1;
        return CellEnd::open;
      }
      at = end + 1;
      if (at == size || text[at] != '"') break;
      ++cell.quote_pairs;
      ++at;
    }
    cell.text = text.substr(begin, end - begin);
    if (at < size && text[at] != delimiter && text[at] != '\n' && text[at] != '\r') {
      return CellEnd::text_after_quote;
    }
  } else {
    const std::size_t begin = at;
    while (at < size && text[at] != delimiter && text[at] != '\n' && text[at] != '\r') {
      if (text[at] == '"') return CellEnd::stray_quote;
      ++at;
    }
    cell.text = text.substr(begin, at - begin);
  }
  if (at == size) return CellEnd::text;
  if (text[at] == '\r') {
    if (at + 1 == size) return CellEnd::text;
    if (text[at + 1] != '\n') return CellEnd::lone_return;
    ++at;
  }
  return text[at++] == delimiter ? CellEnd::delimiter : CellEnd::line;
}

}  // namespace

CsvSplit split_csv(std::string_view text, char delimiter, bool is_all,
                   std::vector<CsvCell>& cells) {
  using End = CsvSplit::End;
  cells.clear();
  std::size_t at = 0;
  for (;;) {
    CsvCell cell;
    const CellEnd end = read_cell(text, delimiter, at, cell);
    switch (end) {
      case CellEnd::open:
        return {is_all ? End::open_quote : End::incomplete, at, false};
      case CellEnd::stray_quote:
        return {End::stray_quote, at, false};
      case CellEnd::text_after_quote:
        return {End::text_after_quote, at, false};
      case CellEnd::lone_return:
        return {End::lone_return, at, false};
      case CellEnd::text:
        if (!is_all) return {End::incomplete, at, false};
        if (at < text.size()) return {End::lone_return, at, false};
        break;
      default:
        break;
    }
    cells.push_back(cell);
    if (end == CellEnd::delimiter) continue;
    const bool is_empty = cells.size() == 1 && cell.text.empty() && !text.starts_with('"');
    return {End::record, at, is_empty};
  }
}

std::string_view csv_value(const CsvCell& cell, std::string& scratch) {
  if (cell.quote_pairs == 0) return cell.text;
  scratch.clear();
  scratch.reserve(cell.size());
  for (std::size_t i = 0; i < cell.text.size(); ++i) {
    scratch += cell.text[i];
    if (cell.text[i] == '"') ++i;
  }
  return scratch;
}

std::string_view csv_fault(CsvSplit::End end) {
  switch (end) {
    case CsvSplit::End::stray_quote:
      return "a quote within a cell that does not begin with one";
    case CsvSplit::End::text_after_quote:
      return "text between a closing quote and the next delimiter";
    case CsvSplit::End::open_quote:
      return "a quote that is not closed before the end of the file";
    case CsvSplit::End::lone_return:
      return "a carriage return without a line feed, outside quotes";
    default:
      return "nothing wrong";
  }
}

}  // namespace shardwise::detail
