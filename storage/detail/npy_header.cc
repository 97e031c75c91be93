#include "shardwise/storage/detail/npy_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

// numpy's own headers have some hundred bytes; versions 2 and 3 could claim 4 GiB.
constexpr std::size_t kMostHeaderBytes = std::size_t{1} << 16;

constexpr std::size_t kMostShown = 60;

// Reads the dict literal that numpy prints: {'descr': '<f4', 'fortran_order': False, 'shape': (3,
// 4), }. Nothing of it is evaluated.
class NpyDict {
 public:
  NpyDict(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  void read() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted_text();
      expect(':');
      if (key == "descr") {
        once(descr);
        descr = quoted_text();
      } else if (key == "fortran_order") {
        once(fortran_order);
        fortran_order = truth();
      } else if (key == "shape") {
        once(shape);
        shape = extents();
      } else {
        fail("a key that is not 'descr', 'fortran_order' or 'shape'");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (at_ != text_.size()) fail("more after the dict");
    if (!descr || !fortran_order || !shape) fail("not all of 'descr', 'fortran_order' and 'shape'");
  }

  [[noreturn]] void fail(std::string_view found, ErrorCode code = ErrorCode::corrupt) const {
    // The text is from a file: unprintable characters are shown as '?'.
    std::string shown(text_.substr(0, kMostShown));
    for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
    throw Error(code,
                fmt::format("open npy file {}: the header \"{}{}\" has, at its byte {}, {}", path_,
                            trim(shown), text_.size() > kMostShown ? ".." : "", at_, found));
  }

  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool accept(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("no '{}'", c));
  }

  template <class T>
  void once(const std::optional<T>& value) const {
    if (value) fail("a key for the second time");
  }

  std::string_view quoted_text() {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '[') {
      fail("a record of several types, needed is a single one", ErrorCode::unsupported);
    }
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("no quoted text");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) fail("a quote that is not closed");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    if (value.find('\\') != value.npos) fail("a backslash");
    at_ = end + 1;
    return value;
  }

  bool truth() {
    skip_blanks();
    for (const auto& [word, value] : {std::pair("True", true), std::pair("False", false)}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += std::strlen(word);
      return value;
    }
    fail("neither True nor False");
  }

  std::vector<std::int64_t> extents() {
    std::vector<std::int64_t> all;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::size_t end = at_;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      const std::optional<std::int64_t> extent = parse_count(text_.substr(at_, end - at_));
      if (!extent) fail("no extent from 0 to 2^63 - 1");
      at_ = end;
      all.push_back(*extent);
      if (!accept(',')) {
        if (all.size() == 1) fail("a number in brackets, needed is a tuple");
        expect(')');
        break;
      }
    }
    return all;
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
};

// "<f4": byte order, kind, bytes.
void read_element_type(const NpyDict& dict, NpyHeader& header) {
  const std::string_view descr = *dict.descr;
  // numpy's own names; bfloat16 is ml_dtypes' "<V2", while raw bytes are "|V2".
  static constexpr std::array<std::pair<std::string_view, DType>, 15> kTypes{
      {{"f8", DType::f64},
       {"f4", DType::f32},
       {"f2", DType::f16},
       {"V2", DType::bf16},
       {"i8", DType::i64},
       {"i4", DType::i32},
       {"i2", DType::i16},
       {"i1", DType::i8},
       {"u8", DType::u64},
       {"u4", DType::u32},
       {"u2", DType::u16},
       {"u1", DType::u8},
       {"b1", DType::boolean},
       {"c8", DType::c64},
       {"c16", DType::c128}}};
  const char order = descr.empty() ? '\0' : descr[0];
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& type) {
    return !descr.empty() && type.first == descr.substr(1);
  });
  if ((order != '<' && order != '>' && order != '|' && order != '=') || found == kTypes.end() ||
      (order == '|' && size_bytes(found->second) != 1)) {
    dict.fail("a 'descr' other than of a number: '<', '>' or '|', one of b, i, u, f, c, and bytes",
              ErrorCode::unsupported);
  }
  header.dtype = found->second;
  header.swapped = order == (std::endian::native == std::endian::big ? '<' : '>');
}

void read_extents(const NpyDict& dict, NpyHeader& header) {
  const std::vector<std::int64_t>& shape = *dict.shape;
  if (shape.size() > kMaxRank) {
    dict.fail(fmt::format("rank {}, at most {} here", shape.size(), kMaxRank),
              ErrorCode::unsupported);
  }
  header.shape = Shape(std::span<const std::int64_t>(shape));
  header.fortran_order = *dict.fortran_order && shape.size() > 1;
  // An extent of 0 does not excuse the others: their product must fit as well.
  std::size_t bytes = size_bytes(header.dtype);
  bool fits = true, is_empty = false;
  for (const std::int64_t extent : shape) {
    is_empty = is_empty || extent == 0;
    fits = fits && (extent == 0 || !__builtin_mul_overflow(bytes, as_size(extent), &bytes));
  }
  if (!fits || !std::in_range<std::int64_t>(bytes)) dict.fail("a shape of over 2^63 bytes");
  header.data_bytes = is_empty ? 0 : bytes;
}

const char* npy_dtype(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "<f8";
    case DType::f32:
      return "<f4";
    case DType::f16:
      return "<f2";
    case DType::bf16:
      return "<V2";
    case DType::i64:
      return "<i8";
    case DType::i32:
      return "<i4";
    case DType::i16:
      return "<i2";
    case DType::i8:
      return "|i1";
    case DType::u64:
      return "<u8";
    case DType::u32:
      return "<u4";
    case DType::u16:
      return "<u2";
    case DType::u8:
      return "|u1";
    case DType::boolean:
      return "|b1";
    case DType::c64:
      return "<c8";
    case DType::c128:
      return "<c16";
    case DType::f8_e4m3fn:
    case DType::f8_e5m2:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
    case DType::f8_e8m0fnu:
      break;
  }
  return "|V1";
}

}  // namespace

std::string npy_header_text(DType dtype, const Shape& shape) {
  std::string extents;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    extents += fmt::format("{}{}{}", d == 0 ? "" : " ", shape[d],
                           d + 1 < shape.size() || d == 0 ? "," : "");
  }
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                 npy_dtype(dtype), extents);
  constexpr std::size_t kMagicBytes = 10, kAlignment = 64;
  text.append(kAlignment - 1 - (kMagicBytes + text.size()) % kAlignment, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xFF);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

NpyHeader read_npy_header(const std::string& path,
                          const std::function<std::size_t(std::span<std::byte>)>& read) {
  const auto refuse = [&](ErrorCode code, const std::string& found) {
    throw Error(code, fmt::format("open npy file {}: {}", path, found));
  };
  std::array<std::byte, 12> begin{};
  std::size_t count = read(std::span(begin).first(8));
  if (count < 8) refuse(ErrorCode::corrupt, fmt::format("{} bytes, needed is 10 or more", count));
  if (std::memcmp(begin.data(), "\x93NUMPY", 6) != 0) {
    refuse(ErrorCode::corrupt, "does not begin with the bytes 0x93 NUMPY");
  }
  const int version = std::to_integer<int>(begin[6]);
  if (version < 1 || version > 3 || begin[7] != std::byte{0}) {
    refuse(ErrorCode::unsupported, fmt::format("version {}.{}, needed is 1.0, 2.0 or 3.0", version,
                                               std::to_integer<int>(begin[7])));
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  count = read(std::span(begin).subspan(8, length_bytes));
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    length |= std::to_integer<std::size_t>(begin[8 + i]) << (8 * i);
  }
  if (count == length_bytes && length > kMostHeaderBytes) {
    refuse(ErrorCode::corrupt,
           fmt::format("a header of {} bytes, needed is {} or fewer", length, kMostHeaderBytes));
  }
  std::string text(length, '\0');
  if (count == length_bytes) count += read(std::as_writable_bytes(std::span(text)));
  if (count < length_bytes + length) {
    refuse(ErrorCode::corrupt, fmt::format("ends within the header: {} bytes of it, needed is {}",
                                           count, length_bytes + length));
  }
  NpyDict dict(path, text);
  dict.read();
  NpyHeader header;
  header.header_bytes = 8 + length_bytes + length;
  read_element_type(dict, header);
  read_extents(dict, header);
  return header;
}

}  // namespace shardwise::detail
