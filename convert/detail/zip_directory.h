#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A file in a zip archive.
struct ZipMember {
  std::string name;
  bool is_deflated = false;  ///< else stored
  std::uint64_t offset = 0;  ///< of its stored bytes
  std::uint64_t stored_bytes = 0;
  std::uint64_t bytes = 0;  ///< once inflated
  std::uint32_t crc = 0;    ///< of these
};

/// Reads the members of an archive from outside, in the order of the file. No byte belongs to two
/// of them. Throws corrupt and unsupported, naming the member, not the file.
std::vector<ZipMember> read_zip_directory(File& file);

}  // namespace shardwise::detail
