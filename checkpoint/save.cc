#include "shardwise/checkpoint/save.h"

#include <utility>

namespace shardwise {

TensorSource tensor_source(std::string name, ShardedArray array) {
  ArraySpec spec = array.spec();
  return {std::move(name), std::move(spec),
          [array = std::move(array)](const Box& box, std::span<std::byte> out) {
            array.read(box, out);
          }};
}

}  // namespace shardwise
