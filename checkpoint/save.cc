#include "shardwise/checkpoint/save.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"

namespace shardwise {

TensorSource tensor_source(std::string name, ShardedArray array) {
  ArraySpec spec = array.spec();
  return {std::move(name), std::move(spec),
          [array = std::move(array)](const Box& box, std::span<std::byte> out) {
            array.read(box, out);
          }};
}

TensorSource host_source(std::string name, ArraySpec spec, std::span<const std::byte> bytes) {
  const std::size_t element_bytes = size_bytes(spec.dtype);
  const std::size_t needed = num_bytes(spec.shape, element_bytes);
  if (bytes.size() != needed) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("host_source: tensor {} is given {} bytes, {} {} needs {}", name, bytes.size(),
                    shardwise::name(spec.dtype), to_string(spec.shape), needed));
  }
  auto read = [from = ConstBoxView{bytes.data(), Box::whole(spec.shape)}, element_bytes](
                  const Box& box, std::span<std::byte> out) {
    copy_box(box, element_bytes, from, {out.data(), box});
  };
  return {std::move(name), std::move(spec), std::move(read), bytes};
}

}  // namespace shardwise
