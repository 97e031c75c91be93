#include "shardwise/loader/sources/detail/text_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {

TextRecords::TextRecords(std::shared_ptr<const InputFile> file, std::size_t hold_bytes)
    : file_(std::move(file)), budget_{hold_bytes}, held_(file_, 0, file_->size_bytes(), budget_) {}

std::string_view TextRecords::text(std::int64_t record, std::string& scratch) const {
  const std::size_t begin = offsets_[as_size(record)];
  const std::size_t end = record + 1 < size() ? offsets_[as_size(record) + 1] : file_->size_bytes();
  if (const std::byte* kept = held_.find(begin, end - begin)) {
    return {reinterpret_cast<const char*>(kept), end - begin};
  }
  scratch.resize(end - begin);
  held_.read(record, begin, std::as_writable_bytes(std::span(scratch)));
  return scratch;
}

void TextRecords::fail(std::int64_t record, std::string_view found) const {
  const std::uint64_t offset = offsets_[as_size(record)];
  throw Error(ErrorCode::corrupt,
              fmt::format("read: {}: record {} at offset {}, line {}: {}", file_->path(), record,
                          offset, line_at(offset), one_line(found)));
}

void TextRecords::begin(FileWindow& window, std::string_view what) const {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  while (window.text().find('\n') == std::string_view::npos && window.read_more()) {
  }
  const std::string_view text = window.text();
  if (text.starts_with(kByteOrderMark)) return window.pass(kByteOrderMark.size());
  if (text.starts_with(std::string_view("\xff\xfe\0\0", 4)) ||
      text.starts_with(std::string_view("\0\0\xfe\xff", 4))) {
    refuse_encoding(what, 0, "UTF-32");
  }
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    refuse_encoding(what, 0, "UTF-16");
  }
  if (text.substr(0, text.find('\n')).find('\0') != text.npos) {
    refuse_encoding(what, 0, "a zero byte");
  }
}

void TextRecords::check_utf8(std::string_view what, std::uint64_t offset,
                             std::string_view record) const {
  if (record.find('\0') == record.npos && is_utf8(record)) return;
  const auto is_bad = [](std::string_view line) {
    return line.find('\0') != line.npos || !is_utf8(line);
  };
  // The line at fault: a record may have several.
  std::string_view line = record.substr(0, record.find('\n'));
  while (!is_bad(line) && line.size() < record.size()) {
    offset += line.size() + 1;
    record.remove_prefix(line.size() + 1);
    line = record.substr(0, record.find('\n'));
  }
  refuse_encoding(what, offset,
                  line.find('\0') == line.npos ? "bytes that are no UTF-8" : "a zero byte");
}

void TextRecords::refuse_encoding(std::string_view what, std::uint64_t offset,
                                  std::string_view found) const {
  throw Error(
      ErrorCode::corrupt,
      fmt::format("{} {}: line {}: found {}, needed UTF-8, as from \"iconv -f {} -t UTF-8\"", what,
                  file_->path(), line_at(offset), found,
                  found.starts_with("bytes") ? "LATIN1"
                  : found == "UTF-32"        ? found
                                             : "UTF-16"));
}

std::int64_t TextRecords::line_at(std::uint64_t offset) const {
  std::array<std::byte, 1 << 16> buffer;
  std::int64_t line = 1;
  for (std::uint64_t at = 0; at < offset;) {
    const std::size_t wanted = std::min<std::uint64_t>(buffer.size(), offset - at);
    const std::size_t count = file_->read_at(at, std::span(buffer).first(wanted));
    if (count == 0) break;
    line += std::count(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(count),
                       std::byte{'\n'});
    at += count;
  }
  return line;
}

}  // namespace shardwise::detail
