#include "shardwise/checkpoint/detail/host_reader.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

void HostReader::read(std::size_t /*tensor*/, const Box& box, std::span<std::byte> out) const {
  std::int64_t found = 0;
  for (const ConstBoxView& shard : shards_) {
    const Box part = intersect(box, shard.box);
    if (part.empty()) continue;
    copy_box(part, size_bytes(info_.dtype), shard, {out.data(), box});
    found += part.num_elements();
  }
  if (found == box.num_elements()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("tensor {:?}: found {} of the {} elements of {} in this process's "
                          "shards, needed all",
                          info_.name, found, box.num_elements(), to_string(box)));
}

const std::byte* HostReader::contiguous(std::size_t /*tensor*/, const Box& box) const {
  for (const ConstBoxView& shard : shards_) {
    if (shard.box.contains(box)) return find_contiguous(box, size_bytes(info_.dtype), shard);
  }
  return nullptr;
}

}  // namespace shardwise::detail
