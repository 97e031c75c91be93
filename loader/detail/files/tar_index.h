#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/detail/files/name_list.h"

namespace shardwise::detail {

/// A file in a tar archive, or a link to one, which has no bytes.
struct TarMember {
  std::string_view name;  ///< any bytes, as the archive has them; never used as a path
  std::uint64_t header_offset, offset,
      size_bytes;  ///< within the archive; [offset, + size) is in it
  bool is_link;
};

/// The files of a tar archive (ustar, old, GNU, pax), in its order. Folders, devices, and pax and
/// GNU headers about the next member are not among them. Immutable, thread-safe.
class TarIndex {
 public:
  std::size_t size() const { return places_.size(); }

  /// Valid as long as the index.
  TarMember operator[](std::size_t i) const {
    const Place& place = places_[i];
    return {names_[i], place.header_offset, place.offset, place.size_bytes, place.is_link};
  }

 private:
  friend class TarScan;
  struct Place {
    std::uint64_t header_offset, offset, size_bytes;
    bool is_link;
  };
  NameList names_;
  std::vector<Place> places_;
};

/// The source of an archive's bytes.
struct TarBytes {
  std::uint64_t size_bytes;
  /// Reads from an offset and returns the number of bytes: fewer than out.size() only at the end.
  std::function<std::size_t(std::uint64_t offset, std::span<std::byte> out)> read_at;
};

/// Reads only the headers, once. `progress` is called now and then with the number of members so
/// far, the last time with all of them. Every member is inside the archive. Throws corrupt, naming
/// member and offset, for a wrong checksum or number, a member that is cut off, bytes after the end
/// or a missing end; unsupported for sparse members, those of several volumes, and compressed
/// archives. An exception from `progress` ends the reading.
TarIndex read_tar_index(const TarBytes& bytes,
                        const std::function<void(std::int64_t entries)>& progress);

}  // namespace shardwise::detail
