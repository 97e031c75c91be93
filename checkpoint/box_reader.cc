#include "shardwise/checkpoint/box_reader.h"

#include <fmt/format.h>

#include "shardwise/shard/text.h"
#include "shardwise/storage/utf8.h"

namespace shardwise {

std::string_view dtype_name(const TensorInfo& tensor) {
  return tensor.foreign_dtype.empty() ? name(tensor.dtype) : tensor.foreign_dtype;
}

void check_readable(const TensorInfo& tensor, std::string_view operation) {
  if (tensor.foreign_dtype.empty()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: tensor {}: dtype {} of shape {} is not supported, the others can be "
                          "read",
                          operation, shown(tensor.name), shown(tensor.foreign_dtype),
                          to_string(tensor.shape)));
}

std::vector<std::size_t> find_tensors(const BoxReader& reader,
                                      std::span<const std::string> patterns,
                                      const std::function<void(const std::string&)>& missed) {
  const std::span<const TensorInfo> tensors = reader.tensors();
  std::vector<bool> wanted(tensors.size(), patterns.empty());
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string& name = tensors[i].name;
      if (name == pattern || match_pattern(pattern, name)) found = wanted[i] = true;
    }
    if (!found) missed(pattern);
  }
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (wanted[i]) numbers.push_back(i);
  }
  return numbers;
}

}  // namespace shardwise
