#pragma once

#include <zlib.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

enum class Stored { plain, deflated };

/// Numbers that a hostile archive states for a member.
struct ZipChange {
  std::optional<std::uint64_t> stored_bytes = {}, bytes = {}, header = {};
  std::optional<std::uint32_t> crc = {};
  std::uint16_t flags = 0;
  std::optional<std::uint16_t> method = {}, local_method = {};
  std::optional<std::string> local_name = {};
  bool damage = false;  ///< of the stored bytes
};

struct ZipFile {
  std::string name, content;
  Stored stored = Stored::plain;
  ZipChange change = {};
};

struct ZipOptions {
  std::string comment = {};
  bool zip64 = false;
  std::optional<std::uint64_t> entries = {};
};

inline std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
  return text;
}

inline std::uint32_t zip_crc_of(std::string_view content) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(content.data()), content.size()));
}

inline std::string deflated(std::string_view content) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, content.size()), '\0');
  std::string in(content);
  stream.next_in = reinterpret_cast<unsigned char*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<unsigned char*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// An archive as other programs write it, but for the changes.
inline std::string zip_of(const std::vector<ZipFile>& files, const ZipOptions& options = {}) {
  std::string archive, directory;
  for (const ZipFile& file : files) {
    const ZipChange& change = file.change;
    std::string stored = file.stored == Stored::deflated ? deflated(file.content) : file.content;
    if (change.damage) stored[stored.size() / 2] ^= 0x55;
    const std::uint64_t method = file.stored == Stored::deflated ? 8 : 0;
    const std::uint32_t crc = change.crc.value_or(zip_crc_of(file.content));
    const std::uint64_t header = change.header.value_or(archive.size());
    const std::uint64_t stored_bytes = change.stored_bytes.value_or(stored.size());
    const std::uint64_t bytes = change.bytes.value_or(file.content.size());
    const std::string name = change.local_name.value_or(file.name);
    archive += "PK\3\4" + little(20, 2) + little(0, 2) +
               little(change.local_method.value_or(static_cast<std::uint16_t>(method)), 2) +
               little(0, 4) + little(crc, 4) + little(stored.size(), 4) +
               little(file.content.size(), 4) + little(name.size(), 2) + little(0, 2) + name +
               stored;
    const bool is_large = options.zip64 || bytes > 0xFFFFFFFF || stored_bytes > 0xFFFFFFFF;
    const std::string extra = is_large ? little(1, 2) + little(24, 2) + little(bytes, 8) +
                                             little(stored_bytes, 8) + little(header, 8)
                                       : "";
    const auto field = [is_large](std::uint64_t value) {
      return little(is_large ? 0xFFFFFFFF : value, 4);
    };
    directory += "PK\1\2" + little(20, 2) + little(20, 2) + little(change.flags, 2) +
                 little(change.method.value_or(static_cast<std::uint16_t>(method)), 2) +
                 little(0, 4) + little(crc, 4) + field(stored_bytes) + field(bytes) +
                 little(file.name.size(), 2) + little(extra.size(), 2) + little(0, 2) +
                 little(0, 2) + little(0, 2) + little(0, 4) + field(header) + file.name + extra;
  }
  const std::uint64_t at = archive.size(), entries = options.entries.value_or(files.size());
  archive += directory;
  const std::uint64_t end64 = archive.size();
  if (options.zip64) {
    archive += "PK\6\6" + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 4) +
               little(0, 4) + little(entries, 8) + little(entries, 8) +
               little(directory.size(), 8) + little(at, 8);
    archive += "PK\6\7" + little(0, 4) + little(end64, 8) + little(1, 4);
  }
  archive += "PK\5\6" + little(0, 4);
  const std::uint64_t shown = options.zip64 ? 0xFFFF : entries;
  archive += little(shown, 2) + little(shown, 2) +
             little(options.zip64 ? 0xFFFFFFFF : directory.size(), 4) +
             little(options.zip64 ? 0xFFFFFFFF : at, 4);
  return archive + little(options.comment.size(), 2) + options.comment;
}

/// A .npy file of version 1.0.
inline std::string npy_bytes(const std::string& descr, const std::string& shape,
                             const std::string& data, const std::string& fortran = "False") {
  std::string dict =
      "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  dict.append(63 - (10 + dict.size()) % 64, ' ');
  dict += '\n';
  return std::string("\x93NUMPY\1\0", 8) + little(dict.size(), 2) + dict + data;
}

}  // namespace shardwise
