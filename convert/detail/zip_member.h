#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "shardwise/convert/detail/zip_directory.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The checksum of zip archives; `crc` is the checksum of the bytes before, 0 at first.
std::uint32_t zip_crc(std::uint32_t crc, std::span<const std::byte> bytes);

/// The checksum of two runs of bytes that follow one another, from their checksums.
std::uint32_t zip_crc_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

/// A member's bytes as a read-only file, inflated if need be. A deflated member is inflated from
/// the nearest kept place; at most 32 are kept, of about 40 KiB each. Reads throw corrupt, not
/// naming the member.
///
/// Thread-safe; reads of a deflated member wait for each other.
class ZipMemberFile final : public File {
 public:
  ZipMemberFile(std::shared_ptr<File> archive, ZipMember member);
  ~ZipMemberFile() override;

  /// Reads all of it, and throws corrupt if its checksum differs. Later reads of a deflated member
  /// can then start from any kept place.
  void check();

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override;
  std::uint64_t size() override { return member_.bytes; }

  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override;
  void resize(std::uint64_t size) override;
  void sync() override {}
  void close() override {}

 private:
  class Inflated;

  const std::shared_ptr<File> archive_;
  const ZipMember member_;
  std::unique_ptr<Inflated> inflated_;  // of a deflated one
};

}  // namespace shardwise::detail
