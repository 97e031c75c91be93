#include "shardwise/runtime/sharded_array.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/owned_tiles.h"

namespace shardwise {
namespace {

using Shards = std::vector<std::shared_ptr<Buffer>>;

std::string describe(const ArraySpec& spec) {
  return fmt::format("{} {}", name(spec.dtype), to_string(spec.shape));
}

std::size_t bytes_of(const ArraySpec& spec, const Box& box) {
  return num_bytes(box.shape(), size_bytes(spec.dtype));
}

Shards allocate(Devices& devices, const ArraySpec& spec, std::string_view label,
                MemoryKind kind = MemoryKind::array) {
  const Mesh& mesh = spec.sharding.mesh();
  Shards shards;
  shards.reserve(as_size(mesh.size()));
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const DeviceId device = mesh.device_at(position);
    if (!devices.is_addressable(device)) {
      shards.emplace_back();
      continue;
    }
    const Box box = spec.sharding.box_at(position, spec.shape);
    shards.push_back(devices.at(device).allocate(bytes_of(spec, box), kind, label));
  }
  return shards;
}

BoxView view(const ArraySpec& spec, const Shards& shards, std::int64_t position) {
  return {shards[as_size(position)]->data(), spec.sharding.box_at(position, spec.shape)};
}

void check_inside(const ArraySpec& spec, const Box& box) {
  if (box.rank() != spec.shape.size() || !Box::whole(spec.shape).contains(box)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read an array: {} is not inside the {} array", to_string(box),
                            describe(spec)));
  }
}

}  // namespace

ShardedArray ShardedArray::from_host(Devices& devices, const ArraySpec& spec,
                                     std::span<const std::byte> data, std::string_view label,
                                     MemoryKind kind) {
  const Box whole = Box::whole(spec.shape);
  if (data.size() != bytes_of(spec, whole)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("make an array from host memory: {} bytes for {}, needed {}",
                            data.size(), describe(spec), bytes_of(spec, whole)));
  }
  Shards shards = allocate(devices, spec, label, kind);
  devices.executor().parallel_for(spec.sharding.mesh().size(), [&](std::int64_t position) {
    if (!shards[as_size(position)]) return;
    const BoxView target = view(spec, shards, position);
    copy_box(target.box, size_bytes(spec.dtype), {data.data(), whole}, target);
  });
  return from_shards(devices, spec, std::move(shards));
}

ShardedArray ShardedArray::from_callback(Devices& devices, const ArraySpec& spec,
                                         const std::function<void(const BoxView&)>& fill,
                                         std::string_view label) {
  Shards shards = allocate(devices, spec, label);
  std::vector<DistinctPiece> pieces = spec.sharding.distinct_pieces(spec.shape);
  for (DistinctPiece& piece : pieces) {
    std::erase_if(piece.positions, [&](std::int64_t p) { return !shards[as_size(p)]; });
  }
  std::erase_if(pieces, [](const DistinctPiece& piece) { return piece.positions.empty(); });
  const Executor& executor = devices.executor();
  executor.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t piece) {
    fill(view(spec, shards, pieces[as_size(piece)].positions.front()));
  });
  executor.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t piece) {
    const std::vector<std::int64_t>& positions = pieces[as_size(piece)].positions;
    const Buffer& first = *shards[as_size(positions.front())];
    executor.parallel_for(static_cast<std::int64_t>(positions.size()) - 1, [&](std::int64_t i) {
      std::memcpy(shards[as_size(positions[as_size(i + 1)])]->data(), first.data(),
                  first.size_bytes());
    });
  });
  return from_shards(devices, spec, std::move(shards));
}

ShardedArray ShardedArray::from_shards(const ArraySpec& spec, Shards shards) {
  return make(spec, std::move(shards), [](DeviceId) { return true; });
}

ShardedArray ShardedArray::from_shards(const Devices& devices, const ArraySpec& spec,
                                       Shards shards) {
  return make(spec, std::move(shards),
              [&](DeviceId device) { return devices.is_addressable(device); });
}

ShardedArray ShardedArray::make(const ArraySpec& spec, Shards shards,
                                const std::function<bool(DeviceId)>& is_addressable) {
  const Mesh& mesh = spec.sharding.mesh();
  if (shards.size() != as_size(mesh.size())) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("make an array of shards: {} shards for a mesh of {} devices, needed one each",
                    shards.size(), mesh.size()));
  }
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const std::shared_ptr<Buffer>& shard = shards[as_size(position)];
    const std::size_t needed = bytes_of(spec, spec.sharding.box_at(position, spec.shape));
    const DeviceId device = mesh.device_at(position);
    if (!is_addressable(device)) {
      if (shard == nullptr) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("make an array of shards: a shard at position {}, whose device {} is "
                              "another process's, needed none",
                              position, device));
    }
    if (shard == nullptr) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("make an array of shards: no shard at position {}, needed one at each",
                      position));
    }
    if (shard->device() != device || shard->size_bytes() != needed) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("make an array of shards: the shard at position {} has {} bytes on "
                              "device {}, needed {} "
                              "bytes on device {}",
                              position, shard->size_bytes(), shard->device(), needed, device));
    }
  }
  return ShardedArray(std::make_shared<const Data>(Data{spec, std::move(shards)}));
}

ConstBoxView ShardedArray::shard(std::int64_t position) const {
  if (!is_addressable(position)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("look at a shard: position {} of the {} array, on device {}, is in "
                            "another process",
                            position, describe(spec()), sharding().mesh().device_at(position)));
  }
  return {data_->shards[as_size(position)]->data(), sharding().box_at(position, shape())};
}

std::shared_ptr<const Buffer> ShardedArray::buffer(std::int64_t position) const {
  return data_->shards[as_size(position)];
}

bool ShardedArray::is_held_alone() const {
  return data_.use_count() == 1 &&
         std::all_of(data_->shards.begin(), data_->shards.end(),
                     [](const auto& shard) { return !shard || shard.use_count() == 1; });
}

std::optional<std::vector<std::shared_ptr<Buffer>>> ShardedArray::release() && {
  if (!is_held_alone()) return std::nullopt;
  std::vector<std::shared_ptr<Buffer>> shards = data_->shards;
  data_.reset();
  return shards;
}

std::vector<ConstBoxView> ShardedArray::shards() const {
  std::vector<ConstBoxView> all;
  for (std::int64_t position = 0; position < sharding().mesh().size(); ++position) {
    if (is_addressable(position)) all.push_back(shard(position));
  }
  return all;
}

std::vector<std::byte> ShardedArray::to_host() const {
  const Box whole = Box::whole(shape());
  std::vector<std::byte> values(bytes_of(spec(), whole));
  read(whole, values);
  return values;
}

void ShardedArray::read(const Box& box, std::span<std::byte> out) const {
  check_inside(spec(), box);
  if (out.size() != bytes_of(spec(), box)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read an array: {} bytes for {} of {}, needed {}", out.size(),
                            to_string(box), describe(spec()), bytes_of(spec(), box)));
  }
  for (const OwnedTile& owned : OwnedTiles(sharding(), shape(), box)) {
    const std::int64_t position = addressable_position(owned.tile);
    if (position < 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("read an array: {} of {} is in other processes alone, on device {}; "
                              "redistribute the array first",
                              to_string(owned.part), describe(spec()),
                              sharding().mesh().device_at(sharding().position_of(owned.tile, 0))));
    }
    copy_box(owned.part, size_bytes(dtype()), shard(position), {out.data(), box});
  }
}

std::int64_t ShardedArray::addressable_position(const Index& tile) const {
  for (std::int64_t replica = 0; replica < sharding().num_replicas(); ++replica) {
    const std::int64_t position = sharding().position_of(tile, replica);
    if (is_addressable(position)) return position;
  }
  return -1;
}

const std::byte* ShardedArray::contiguous(const Box& box) const {
  check_inside(spec(), box);
  for (const OwnedTile& owned : OwnedTiles(sharding(), shape(), box)) {
    const std::int64_t position = addressable_position(owned.tile);
    if (position < 0 || !(owned.part == box)) return nullptr;
    return find_contiguous(box, size_bytes(dtype()), shard(position));
  }
  return nullptr;  // nothing to hold
}

}  // namespace shardwise
