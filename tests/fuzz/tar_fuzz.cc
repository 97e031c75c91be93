// Tar archives: any bytes, as they are and with the checksums of their headers made right, without
// which hardly any would get further, make an index or are refused with an Error. Every member is
// inside the archive, and they do not overlap.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/loader/detail/files/tar_index.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

constexpr std::size_t kBlockBytes = 512;

void check(std::string_view archive) {
  const detail::TarBytes bytes{
      archive.size(), [&](std::uint64_t offset, std::span<std::byte> out) {
        const std::size_t begin = std::min(static_cast<std::size_t>(offset), archive.size());
        const std::size_t count = std::min(out.size(), archive.size() - begin);
        if (count > 0) std::memcpy(out.data(), archive.data() + begin, count);
        return count;
      }};
  try {
    const detail::TarIndex index = detail::read_tar_index(bytes, {});
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      const detail::TarMember member = index[i];
      require(member.header_offset >= end, "overlaps", member.name);
      require(member.offset >= member.header_offset + kBlockBytes, "place", member.name);
      end = member.offset + member.size_bytes;
      require(end >= member.offset && end <= archive.size(), "outside", member.name);
      require(!detail::shown_name(member.name).empty(), "shown", member.name);
    }
  } catch (const Error& e) {
    const std::string_view message = e.what();
    require(e.code() == ErrorCode::corrupt || e.code() == ErrorCode::unsupported, "code", message);
    require(message.find('\n') == std::string_view::npos, "message of several lines", message);
    require(message.size() < 2000, "long message", message);
  }
}

// Sets the checksum of every block as if it were a header; this changes data blocks, too.
std::string with_checksums(std::string archive) {
  for (std::size_t at = 0; at + kBlockBytes <= archive.size(); at += kBlockBytes) {
    const std::span<char> block(archive.data() + at, kBlockBytes);
    if (std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; })) continue;
    std::fill_n(block.begin() + 148, 8, ' ');
    unsigned sum = 0;
    for (const char c : block) sum += static_cast<unsigned char>(c);
    char text[8];
    std::snprintf(text, sizeof text, "%06o", sum);
    std::copy_n(text, 7, block.begin() + 148);
  }
  return archive;
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string archive(reinterpret_cast<const char*>(data), size);
  shardwise::check(archive);
  shardwise::check(shardwise::with_checksums(archive));
  return 0;
}
