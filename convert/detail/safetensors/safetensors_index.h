#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace shardwise::detail {

inline constexpr std::string_view kFileSuffix = ".safetensors";
inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

/// Tensor -> name of its file.
using WeightMap = std::map<std::string, std::string>;

/// Reads an index from outside, {"metadata": .., "weight_map": {tensor: file}}; only the map
/// counts. Files have plain names. Throws corrupt, naming the tensor, not the index.
WeightMap parse_index(std::string_view text);

/// The index as transformers writes it.
std::string index_text(const WeightMap& weight_map, std::uint64_t total_bytes);

}  // namespace shardwise::detail
