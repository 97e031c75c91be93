#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace gpt {

/// An array from outside: row-major.
struct Given {
  shardwise::DType dtype;
  shardwise::Shape shape;
  std::vector<std::byte> bytes;
};

/// All tensors of a safetensors file, by name. Throws as shardwise::ModelReader.
std::map<std::string, Given> read_all(const std::filesystem::path& path);

}  // namespace gpt
