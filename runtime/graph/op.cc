#include "shardwise/runtime/graph/op.h"

#include <fmt/format.h>

#include <ostream>

namespace shardwise {

std::string to_string(const TensorType& type) {
  return fmt::format("{}{}", name(type.dtype), to_string(type.shape));
}

std::ostream& operator<<(std::ostream& out, const TensorType& type) {
  return out << to_string(type);
}

}  // namespace shardwise
