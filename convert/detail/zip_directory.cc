#include "shardwise/convert/detail/zip_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

// Fields are named as in APPNOTE.TXT, 4.3: https://pkware.cachefly.net/webdocs/APPNOTE
namespace shardwise::detail {
namespace {

constexpr std::string_view kEndSignature("PK\5\6", 4), kEnd64Signature("PK\6\6", 4),
    kLocatorSignature("PK\6\7", 4), kEntrySignature("PK\1\2", 4), kLocalSignature("PK\3\4", 4);
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46,
                      kLocalBytes = 30, kMostCommentBytes = 0xFFFF;
constexpr std::uint64_t kMostDirectoryBytes = 100'000'000;
constexpr std::uint16_t kStored = 0, kDeflated = 8, kZip64Extra = 1;
constexpr std::uint16_t kEncryptedFlags = 1 | 1 << 6 | 1 << 13;

[[noreturn]] void refuse_zip(const std::string& what, ErrorCode code = ErrorCode::corrupt) {
  throw Error(code, "zip archive: " + what);
}

/// A little-endian number of a field.
std::uint64_t number(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

/// Where the central directory is.
struct DirectoryPlace {
  std::uint64_t entries, bytes, offset;
};

/// Finds the end record in the file's last bytes: its comment reaches to the file's end.
std::size_t find_end(std::string_view last) {
  for (std::size_t at = last.size() - std::min(last.size(), kEndBytes) + 1; at-- > 0;) {
    if (!last.substr(at).starts_with(kEndSignature) || last.size() - at < kEndBytes) continue;
    if (number(last, at + 20, 2) == last.size() - at - kEndBytes) return at;
  }
  refuse_zip("it has no end record; needed is one that ends with the file");
}

DirectoryPlace find_directory(File& file) {
  const std::uint64_t size = file.size();
  const std::uint64_t begin = size - std::min<std::uint64_t>(size, kEndBytes + kMostCommentBytes);
  const std::string last = text_at(file, begin, size - begin);
  const std::size_t at = find_end(last);
  std::uint64_t end = begin + at;  // of the directory
  if (number(last, at + 4, 2) != number(last, at + 6, 2) ||
      number(last, at + 8, 2) != number(last, at + 10, 2)) {
    refuse_zip("it is a part of an archive of several", ErrorCode::unsupported);
  }
  DirectoryPlace place{number(last, at + 10, 2), number(last, at + 12, 4),
                       number(last, at + 16, 4)};
  if (place.entries == 0xFFFF || place.bytes == 0xFFFFFFFF || place.offset == 0xFFFFFFFF) {
    const std::string locator = text_at(file, end - std::min<std::uint64_t>(end, kLocatorBytes),
                                        std::min<std::uint64_t>(end, kLocatorBytes));
    if (locator.size() == kLocatorBytes && locator.starts_with(kLocatorSignature)) {
      const std::uint64_t at64 = number(locator, 8, 8);
      end -= kLocatorBytes;
      if (at64 > end || end - at64 != kEnd64Bytes) {
        refuse_zip("its zip64 end record is not right before its end");
      }
      const std::string record = text_at(file, at64, kEnd64Bytes);
      if (!record.starts_with(kEnd64Signature)) refuse_zip("it has no zip64 end record");
      place = {number(record, 32, 8), number(record, 40, 8), number(record, 48, 8)};
      end = at64;
    }
  }
  if (place.offset > end || place.bytes != end - place.offset) {
    refuse_zip(fmt::format("its directory has {} bytes from {} on, needed is that it ends at {}",
                           place.bytes, place.offset, end));
  }
  if (place.bytes > kMostDirectoryBytes) {
    refuse_zip(fmt::format("its directory has {} bytes, allowed are {}", place.bytes,
                           kMostDirectoryBytes));
  }
  return place;
}

/// Reads the zip64 field of an entry: 64 bits for each value that is at its maximum, in this order.
void read_zip64(std::string_view extra, std::initializer_list<std::uint64_t*> values,
                const std::string& member) {
  const auto is_full = [](const std::uint64_t* value) { return *value == 0xFFFFFFFF; };
  if (std::none_of(values.begin(), values.end(), is_full)) return;
  while (extra.size() >= 4) {
    const std::uint64_t kind = number(extra, 0, 2), size = number(extra, 2, 2);
    if (size > extra.size() - 4) break;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (kind != kZip64Extra) continue;
    for (std::uint64_t* const value : values) {
      if (!is_full(value)) continue;
      if (field.size() < 8) refuse_zip(fmt::format("member {}: its zip64 field is short", member));
      *value = number(field, 0, 8);
      field.remove_prefix(8);
    }
    return;
  }
  // Files of nearly 4 GiB need no zip64.
}

/// A member, and where its local header begins.
struct Entry {
  ZipMember member;
  std::uint64_t header = 0;
  std::uint16_t flags = 0;
};

Entry read_entry(std::string_view& directory) {
  if (directory.size() < kEntryBytes || !directory.starts_with(kEntrySignature)) {
    refuse_zip("its directory has fewer entries than it says");
  }
  const std::size_t name_bytes = number(directory, 28, 2), extra_bytes = number(directory, 30, 2);
  const std::size_t bytes = kEntryBytes + name_bytes + extra_bytes + number(directory, 32, 2);
  if (bytes > directory.size()) refuse_zip("its last entry is longer than its directory");
  Entry entry;
  entry.flags = static_cast<std::uint16_t>(number(directory, 8, 2));
  ZipMember& member = entry.member;
  member.name = std::string(directory.substr(kEntryBytes, name_bytes));
  const std::string name = shown(member.name);
  const std::uint64_t method = number(directory, 10, 2);
  if ((entry.flags & kEncryptedFlags) != 0 || (method != kStored && method != kDeflated)) {
    refuse_zip(fmt::format("member {}: it is {}; needed is one that is stored or deflated", name,
                           method == kStored || method == kDeflated
                               ? "encrypted"
                               : fmt::format("compressed by method {}", method)),
               ErrorCode::unsupported);
  }
  member.is_deflated = method == kDeflated;
  member.crc = static_cast<std::uint32_t>(number(directory, 16, 4));
  member.stored_bytes = number(directory, 20, 4);
  member.bytes = number(directory, 24, 4);
  entry.header = number(directory, 42, 4);
  read_zip64(directory.substr(kEntryBytes + name_bytes, extra_bytes),
             {&member.bytes, &member.stored_bytes, &entry.header}, name);
  directory.remove_prefix(bytes);
  if (!member.is_deflated && member.bytes != member.stored_bytes) {
    refuse_zip(fmt::format("member {}: it has {} bytes, stored as {}", name, member.bytes,
                           member.stored_bytes));
  }
  return entry;
}

/// Finds the member's bytes, which end before `end`, where the next one begins.
void read_local(File& file, Entry& entry, std::uint64_t end) {
  ZipMember& member = entry.member;
  const auto refuse_member = [&member](std::string_view what) {
    refuse_zip(fmt::format("member {}: {}", shown(member.name), what));
  };
  if (entry.header > end || end - entry.header < kLocalBytes) {
    refuse_member("its header and what follows are one");
  }
  const std::string local = text_at(file, entry.header, kLocalBytes);
  if (!local.starts_with(kLocalSignature)) refuse_member("it has no header");
  const std::uint64_t method = number(local, 8, 2);
  const std::uint64_t name_bytes = number(local, 26, 2);
  member.offset = entry.header + kLocalBytes + name_bytes + number(local, 28, 2);
  if (member.offset > end || end - member.offset < member.stored_bytes) {
    refuse_member(fmt::format("it has {} bytes from {} on, but what follows begins at {}",
                              member.stored_bytes, member.offset, end));
  }
  if ((method == kDeflated) != member.is_deflated ||
      text_at(file, entry.header + kLocalBytes, name_bytes) != member.name) {
    refuse_member("its header says something else than the directory");
  }
}

}  // namespace

std::vector<ZipMember> read_zip_directory(File& file) {
  const DirectoryPlace place = find_directory(file);
  const std::string text = text_at(file, place.offset, place.bytes);
  if (place.entries > text.size() / kEntryBytes) {
    refuse_zip(fmt::format("its directory of {} bytes says that it has {} entries", text.size(),
                           place.entries));
  }
  std::vector<Entry> entries;
  std::string_view rest = text;
  for (std::uint64_t i = 0; i < place.entries; ++i) entries.push_back(read_entry(rest));
  if (!rest.empty()) refuse_zip("its directory has more entries than it says");
  std::ranges::sort(entries, {}, &Entry::header);
  std::vector<ZipMember> members;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    read_local(file, entries[i], i + 1 < entries.size() ? entries[i + 1].header : place.offset);
    if (!names.insert(entries[i].member.name).second) {
      refuse_zip(fmt::format("member {}: it is there twice", shown(entries[i].member.name)));
    }
  }
  members.reserve(entries.size());
  for (Entry& entry : entries) members.push_back(std::move(entry.member));
  return members;
}

}  // namespace shardwise::detail
