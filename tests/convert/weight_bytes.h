#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"

namespace shardwise {

/// A safetensors file: the header's length, the header, the data.
inline std::string weight_bytes(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  bytes += header;
  bytes += data;
  return bytes;
}

/// "a;b;"
inline std::string names_of(const BoxReader& reader) {
  std::string names;
  for (const TensorInfo& info : reader.tensors()) names += info.name + ";";
  return names;
}

/// All elements of a tensor.
inline std::vector<std::byte> all_of(const BoxReader& reader, std::size_t tensor) {
  const TensorInfo& info = reader.tensors()[tensor];
  std::vector<std::byte> out(num_bytes(info.shape, size_bytes(info.dtype)));
  reader.read(tensor, Box::whole(info.shape), out);
  return out;
}

}  // namespace shardwise
