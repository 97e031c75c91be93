#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/hash.h"

// The content of a parity file: docs/checkpoint_format.md, heading "Parity".
namespace shardwise::detail {

inline constexpr std::size_t kParityBlockBytes = std::size_t{1} << 20;
inline constexpr std::int64_t kMostParityBlocks = 127;
inline constexpr std::size_t kMostGroupBlocks = 255;  ///< data and parity blocks together
inline constexpr std::size_t kParityStepBytes = 64;   ///< divides the bytes of a block

/// Which file a parity file is of.
struct ParityOf {
  std::uint64_t bytes = 0;
  Hash128 hash = {};  ///< of its description
};

/// The values of a shard file, whose entry is as its manifest has it.
ParityOf parity_of(const FileEntry& entry);
ParityOf parity_of(const LinkedFile& linked);

/// Places of the blocks. Block i of the file is data block i / groups() of group i mod groups().
struct ParityLayout {
  std::uint64_t file_bytes = 0;    ///< at least 1
  std::int64_t parity_blocks = 1;  ///< of each group, 1 to kMostParityBlocks
  std::size_t most_block_bytes = kParityBlockBytes;

  std::size_t block_bytes() const;  ///< the last one may end before, as if zeros followed
  std::uint64_t blocks() const;
  std::uint64_t groups() const;
  std::uint64_t header_bytes() const;
  std::uint64_t bytes() const;  ///< of the parity file

  std::uint64_t group_of(std::uint64_t block) const { return block % groups(); }
  std::size_t source_of(std::uint64_t block) const {
    return static_cast<std::size_t>(block / groups());
  }
  std::size_t sources(std::uint64_t group) const;  ///< its data blocks
  std::size_t bytes_of(std::uint64_t block) const;
  std::uint64_t parity_number(std::uint64_t group, std::size_t row) const {
    return group * static_cast<std::uint64_t>(parity_blocks) + row;
  }
  std::uint64_t address(std::uint64_t parity_number) const {
    return header_bytes() + parity_number * block_bytes();
  }
  std::uint64_t second_header() const { return bytes() - header_bytes(); }
};

struct ParityHeader {
  ParityLayout layout;
  Hash128 hash = {};            ///< ParityOf::hash
  std::vector<Hash128> data;    ///< of each block of the file
  std::vector<Hash128> parity;  ///< of each parity block, by parity_number()
};

std::vector<std::byte> print_parity_header(const ParityHeader& header);

/// One copy. Requires layout.header_bytes() bytes. Throws corrupt if they are not the header of
/// this layout and this file; `path` is for messages.
ParityHeader parse_parity_header(std::span<const std::byte> bytes, const ParityLayout& layout,
                                 const ParityOf& of, const std::string& path);

struct ReadParityHeader {
  ParityHeader header;
  std::string problem;  ///< of the other copy, or of the file's size; empty: none
};

/// Either copy. Throws corrupt if neither is whole or it is the parity of another file; io.
ReadParityHeader read_parity_header(File& file, const std::string& path, const ParityOf& of,
                                    std::size_t most_block_bytes = kParityBlockBytes);

}  // namespace shardwise::detail
