#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/convert/detail/string_map.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

inline constexpr std::size_t kLengthBytes = 8;  ///< little-endian, before the header
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
inline constexpr std::string_view kMetadataName = "__metadata__";

/// A tensor's bytes are [begin, end) of the data after the header.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
  std::string foreign_dtype = {};  ///< as TensorInfo has it
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;
  StringMap metadata;
};

/// Reads a header from outside. `data_bytes` follow it, and each of them belongs to exactly one
/// tensor. Throws corrupt and unsupported, naming the tensor, not the file.
SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_bytes);

/// The length and the header, padded with blanks to a multiple of 8 bytes. Entries keep their
/// order. Throws unsupported if it would be too long to be read.
std::string header_text(std::span<const SafetensorsEntry> tensors, const StringMap& metadata);

}  // namespace shardwise::detail
