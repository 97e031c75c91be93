#include "shardwise/checkpoint/save.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"

namespace shardwise {

TensorSource tensor_source(std::string name, ShardedArray array) {
  ArraySpec spec = array.spec();
  TensorSource source{std::move(name), std::move(spec), nullptr};
  source.read = [array](const Box& box, std::span<std::byte> out) { array.read(box, out); };
  source.view = [array = std::move(array)](const Box& box) { return array.contiguous(box); };
  return source;
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
  const ConstBoxView from{bytes.data(), Box::whole(spec.shape)};
  TensorSource source{std::move(name), std::move(spec), nullptr, bytes};
  source.read = [from, element_bytes](const Box& box, std::span<std::byte> out) {
    copy_box(box, element_bytes, from, {out.data(), box});
  };
  source.view = [from, element_bytes](const Box& box) {
    return find_contiguous(box, element_bytes, from);
  };
  return source;
}

}  // namespace shardwise
