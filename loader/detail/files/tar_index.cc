#include "shardwise/loader/detail/files/tar_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

/// Shows bytes that should be digits.
std::string ascii(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text + '"';
}

constexpr std::uint64_t kTarBlockBytes = 512;
constexpr std::int64_t kTarProgressEvery = 4096;
// Most bytes of a pax or GNU header about a member; more is damage.
constexpr std::uint64_t kMaxNoteBytes = std::uint64_t{1} << 20;

using TarBlock = std::array<char, kTarBlockBytes>;

struct TarField {
  std::size_t begin, size;
};
constexpr TarField kTarName{0, 100}, kTarSize{124, 12}, kTarChecksum{148, 8}, kTarMagic{257, 6},
    kTarPrefix{345, 155};
constexpr std::size_t kTarType = 156;

std::string_view bytes_of(const TarBlock& block, TarField field) {
  return {block.data() + field.begin, field.size};
}

std::string_view text_of(const TarBlock& block, TarField field) {
  const std::string_view bytes = bytes_of(block, field);
  return bytes.substr(0, bytes.find('\0'));
}

// Reads octal digits between blanks, ended by a blank or NUL, or base 256, which GNU writes from 8
// GiB on. Absent if it is neither, negative or over 2^63 - 1.
std::optional<std::uint64_t> tar_number(std::string_view bytes) {
  std::uint64_t value = 0;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first >= 0x80) {
    if (first != 0x80) return std::nullopt;  // negative, or far too large
    for (const char c : bytes.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  std::size_t at = 0;
  while (at < bytes.size() && bytes[at] == ' ') ++at;
  const std::size_t digits = at;
  for (; at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '7'; ++at) {
    value = value << 3 | static_cast<std::uint64_t>(bytes[at] - '0');
    if (value >= kMost) return std::nullopt;
  }
  if (at == digits) return std::nullopt;
  for (; at < bytes.size(); ++at) {
    if (bytes[at] != ' ' && bytes[at] != '\0') return std::nullopt;
  }
  return value;
}

// Old programs summed signed characters.
bool has_right_checksum(const TarBlock& block) {
  const auto stated = tar_number(bytes_of(block, kTarChecksum));
  if (!stated) return false;
  std::int64_t sum = 0, signed_sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool blank = i >= kTarChecksum.begin && i < kTarChecksum.begin + kTarChecksum.size;
    const char c = blank ? ' ' : block[i];
    sum += static_cast<unsigned char>(c);
    signed_sum += static_cast<signed char>(c);
  }
  return std::cmp_equal(*stated, sum) || std::cmp_equal(*stated, signed_sum);
}

bool is_zero(std::span<const char> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == '\0'; });
}

}  // namespace

/// One pass over the headers.
class TarScan {
 public:
  TarScan(const TarBytes& bytes, const std::function<void(std::int64_t)>& progress)
      : bytes_(bytes), progress_(progress) {}

  TarIndex run() {
    check_magic();
    while (read_header()) {
      if (progress_ && members_ % kTarProgressEvery == 0) progress_(members_);
    }
    check_tail();
    if (progress_) progress_(members_);
    index_.names_.shrink_to_fit();
    index_.places_.shrink_to_fit();
    return std::move(index_);
  }

 private:
  /// The fields of an extended header, for the next member or for all later ones.
  struct Note {
    std::optional<std::string> path;
    std::optional<std::uint64_t> size_bytes;
  };

  [[noreturn]] void fail(ErrorCode code, std::string_view name, const std::string& found) const {
    throw Error(code, name.data() == nullptr
                          ? fmt::format("header at offset {}: {}", header_offset_, found)
                          : fmt::format("member {} at offset {}: {}", shown_name(name),
                                        header_offset_, found));
  }

  void check_magic() const;
  void check_tail();
  bool read_header();
  void read_block(std::uint64_t offset, TarBlock& block) const;
  std::string read_note(std::string_view what, std::uint64_t size_bytes);
  void read_pax(const std::string& text, Note& note) const;
  std::string own_name(const TarBlock& block) const;
  void add(std::string name, std::uint64_t size_bytes, char type);
  void skip(std::string_view name, std::uint64_t size_bytes);

  const TarBytes& bytes_;
  const std::function<void(std::int64_t)>& progress_;
  TarIndex index_;
  std::int64_t members_ = 0;
  std::uint64_t header_offset_ = 0, next_ = 0;
  Note next_note_, note_of_all_;
};

void TarScan::check_magic() const {
  std::array<std::byte, 6> first{};
  bytes_.read_at(0, first);
  const auto begins_with = [&](std::string_view magic) {
    return std::equal(magic.begin(), magic.end(), first.begin(),
                      [](char a, std::byte b) { return static_cast<std::byte>(a) == b; });
  };
  const std::pair<std::string_view, const char*> packed[] = {{"\x1f\x8b", "gzip"},
                                                             {"\x28\xb5\x2f\xfd", "zstd"},
                                                             {"\xfd"
                                                              "7zXZ",
                                                              "xz"},
                                                             {"BZh", "bzip2"}};
  for (const auto& [magic, name] : packed) {
    if (!begins_with(magic)) continue;
    fail(ErrorCode::unsupported, {},
         fmt::format("an archive packed by {}, needed is a plain one, whose members can be read in "
                     "any order",
                     name));
  }
}

void TarScan::read_block(std::uint64_t offset, TarBlock& block) const {
  const std::size_t count = bytes_.read_at(offset, std::as_writable_bytes(std::span(block)));
  if (count == block.size()) return;
  fail(ErrorCode::corrupt, {},
       fmt::format(
           "{} bytes are left, needed is a header of {} or two of zeros, which end an archive",
           count, block.size()));
}

std::string TarScan::own_name(const TarBlock& block) const {
  std::string name(text_of(block, kTarName));
  if (bytes_of(block, kTarMagic) == std::string_view("ustar\0", 6)) {
    const std::string_view prefix = text_of(block, kTarPrefix);
    if (!prefix.empty()) name = std::string(prefix) + '/' + name;
  }
  return name;
}

// False at the archive's end.
bool TarScan::read_header() {
  header_offset_ = next_;
  TarBlock block;
  read_block(header_offset_, block);
  next_ += kTarBlockBytes;
  if (is_zero(block)) {
    if (next_note_.path || next_note_.size_bytes) {
      fail(ErrorCode::corrupt, {},
           "the archive ends after an extended header, needed is its member");
    }
    return false;
  }
  if (!has_right_checksum(block)) {
    fail(ErrorCode::corrupt, {}, "its checksum is wrong: not a tar archive, or a damaged one");
  }
  const std::string name = own_name(block);
  const auto size = tar_number(bytes_of(block, kTarSize));
  if (!size) {
    fail(ErrorCode::corrupt, name,
         fmt::format("its size reads {}, needed is a number from 0 to 2^63 - 1",
                     ascii(bytes_of(block, kTarSize))));
  }
  const char type = block[kTarType];
  switch (type) {
    case 'x':
    case 'X':
      read_pax(read_note("pax header", *size), next_note_);
      return true;
    case 'g':
      read_pax(read_note("pax header", *size), note_of_all_);
      return true;
    case 'L': {
      const std::string text = read_note("long name", *size);
      next_note_.path = text.substr(0, text.find('\0'));
      return true;
    }
    case 'K':  // the long name of a link's target
    case 'V':  // the archive's own name
    case 'D':  // the names in a folder
      skip(name, *size);
      return true;
    case 'S':
    case 'M':
      fail(ErrorCode::unsupported, name,
           type == 'S' ? "is a sparse file, needed is its bytes as they are"
                       : "began in another volume, needed is an archive of one");
    default:
      break;
  }
  const Note note = std::exchange(next_note_, {});
  const auto& path = note.path ? note.path : note_of_all_.path;
  const auto& pax_size = note.size_bytes ? note.size_bytes : note_of_all_.size_bytes;
  add(path ? *path : name, pax_size.value_or(*size), type);
  return true;
}

void TarScan::add(std::string name, std::uint64_t size_bytes, char type) {
  ++members_;
  const bool is_link = type == '1' || type == '2';
  const bool is_device = type >= '3' && type <= '6';  // includes folders
  if (is_link || is_device) size_bytes = 0;           // whatever their header says
  const std::uint64_t offset = next_;
  skip(name, size_bytes);
  // Old programs wrote a folder as a file whose name ends with a slash.
  if (is_device || (!name.empty() && name.back() == '/')) return;
  index_.names_.add(name);
  index_.places_.push_back({header_offset_, offset, size_bytes, is_link});
}

void TarScan::skip(std::string_view name, std::uint64_t size_bytes) {
  if (size_bytes > bytes_.size_bytes - std::min(next_, bytes_.size_bytes)) {
    fail(ErrorCode::corrupt, name,
         fmt::format("{} bytes from offset {} on, needed are bytes within the archive's {}",
                     size_bytes, next_, bytes_.size_bytes));
  }
  next_ += size_bytes + (kTarBlockBytes - size_bytes % kTarBlockBytes) % kTarBlockBytes;
}

std::string TarScan::read_note(std::string_view what, std::uint64_t size_bytes) {
  if (size_bytes > kMaxNoteBytes) {
    fail(ErrorCode::corrupt, {},
         fmt::format("a {} of {} bytes, needed is at most {}", what, size_bytes, kMaxNoteBytes));
  }
  const std::uint64_t offset = next_;
  skip(what, size_bytes);
  std::string text(static_cast<std::size_t>(size_bytes), '\0');
  const std::size_t count = bytes_.read_at(offset, std::as_writable_bytes(std::span(text)));
  if (count < text.size()) {
    fail(ErrorCode::corrupt, {},
         fmt::format("a {} of {} bytes, but only {} came", what, size_bytes, count));
  }
  return text;
}

// Records of "LENGTH KEY=VALUE\n"; LENGTH counts the whole record.
void TarScan::read_pax(const std::string& text, Note& note) const {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    if (error != std::errc() || length > rest.size() || length < digits + 3 ||
        rest[digits] != ' ' || rest[length - 1] != '\n') {
      fail(ErrorCode::corrupt, {},
           fmt::format("a pax header with {}, needed is \"LENGTH KEY=VALUE\" and a line's end",
                       shown_name(rest)));
    }
    const std::string_view pair = rest.substr(digits + 1, length - digits - 2);
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
    if (key == "path") {
      note.path = value;
      if (value.empty()) note.path.reset();  // cancels an earlier value
    } else if (key == "size") {
      std::int64_t size = -1;
      const auto [last, wrong] = std::from_chars(value.data(), value.data() + value.size(), size);
      if (!value.empty() &&
          (wrong != std::errc() || last != value.data() + value.size() || size < 0)) {
        fail(ErrorCode::corrupt, {},
             fmt::format("a pax header with size {}, needed is a number from 0 to 2^63 - 1",
                         shown_name(value)));
      }
      note.size_bytes.reset();
      if (!value.empty()) note.size_bytes = static_cast<std::uint64_t>(size);
    } else if (key.starts_with("GNU.sparse")) {
      fail(ErrorCode::unsupported, {}, "a sparse file, needed is its bytes as they are");
    }
    rest.remove_prefix(length);
  }
}

// Only zeros may follow: archives joined by `cat` would lose all but the first.
void TarScan::check_tail() {
  std::vector<char> buffer(std::size_t{64} << 10);
  for (std::uint64_t offset = next_; offset < bytes_.size_bytes; offset += buffer.size()) {
    const std::size_t count = bytes_.read_at(offset, std::as_writable_bytes(std::span(buffer)));
    if (!is_zero(std::span(buffer).first(count))) {
      header_offset_ = offset;
      fail(ErrorCode::corrupt, {},
           "bytes follow the block of zeros that ends the archive, needed is one archive, not "
           "several");
    }
    if (count < buffer.size()) return;
  }
}

TarIndex read_tar_index(const TarBytes& bytes, const std::function<void(std::int64_t)>& progress) {
  return TarScan(bytes, progress).run();
}

}  // namespace shardwise::detail
