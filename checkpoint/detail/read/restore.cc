#include "shardwise/checkpoint/detail/read/restore.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>

namespace shardwise::detail {
namespace {

using Shards = std::vector<std::shared_ptr<Buffer>>;

/// A batch for each device of this process.
class Batches {
 public:
  explicit Batches(const Devices& devices) : devices_(devices) {
    for (const DeviceId id : devices.addressable()) batches_.emplace_back(devices.at(id));
  }

  /// Null for a device of another process. Throws not_found if there is no such device.
  BufferBatch* of(DeviceId id) {
    if (!devices_.is_addressable(id)) return nullptr;
    return &batches_[static_cast<std::size_t>(id - devices_.addressable().front())];
  }

 private:
  const Devices& devices_;
  std::vector<BufferBatch> batches_;
};

/// The shards of arrays of one spec on a mesh's devices: a model has many arrays of few specs.
struct ArrayLayout {
  explicit ArrayLayout(const ArraySpec& array) : spec(array) {
    const Mesh& mesh = spec.sharding.mesh();
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      devices.push_back(mesh.device_at(position));
      shard_bytes.push_back(
          num_bytes(spec.sharding.box_at(position, spec.shape).shape(), size_bytes(spec.dtype)));
    }
    pieces = spec.sharding.distinct_pieces(spec.shape);
  }

  bool fits(const ArraySpec& array) const {
    return array.dtype == spec.dtype && array.shape == spec.shape &&
           same_pieces(array.sharding, spec.sharding);
  }

  /// Throws not_found if there is no device for a shard.
  void expect(Batches& batches) const {
    for (std::size_t i = 0; i < shard_bytes.size(); ++i) {
      if (BufferBatch* const batch = batches.of(devices[i])) batch->expect(shard_bytes[i]);
    }
  }

  /// Null for the shards of other processes.
  Shards allocate(Batches& batches, std::string_view label) const {
    Shards shards;
    shards.reserve(shard_bytes.size());
    for (std::size_t i = 0; i < shard_bytes.size(); ++i) {
      std::shared_ptr<Buffer>& shard = shards.emplace_back();
      if (BufferBatch* const batch = batches.of(devices[i])) {
        shard = batch->allocate(shard_bytes[i], MemoryKind::array, label);
      }
    }
    return shards;
  }

  ArraySpec spec;
  std::vector<DeviceId> devices;         ///< at each position of the mesh
  std::vector<std::size_t> shard_bytes;  ///< there
  std::vector<DistinctPiece> pieces;
};

// A layer's arrays follow one another, and then come the next layer's: the specs of that many.
constexpr std::size_t kRecentLayouts = 16;

/// The layout of the spec, made if none of the last ones fits. A deque's elements stay in place.
const ArrayLayout& layout_of(const ArraySpec& spec, std::deque<ArrayLayout>& layouts) {
  for (std::size_t back = 1; back <= std::min(kRecentLayouts, layouts.size()); ++back) {
    const ArrayLayout& layout = layouts[layouts.size() - back];
    if (layout.fits(spec)) return layout;
  }
  return layouts.emplace_back(spec);
}

}  // namespace

std::vector<ShardedArray> restore_arrays(ChunkReader& chunks, Devices& devices,
                                         std::span<const TensorRequest> requests,
                                         std::span<const std::size_t> numbers) {
  // All memory first: what does not fit fails before anything is read. The targets point into
  // layouts and places.
  std::deque<ArrayLayout> layouts;
  std::vector<const ArrayLayout*> layout_of_request;
  layout_of_request.reserve(requests.size());
  Batches batches(devices);
  std::vector<std::byte*> places;
  std::size_t num_shards = 0;
  for (const TensorRequest& request : requests) {
    layout_of_request.push_back(&layout_of(request.spec, layouts));
    layout_of_request.back()->expect(batches);
    num_shards += layout_of_request.back()->shard_bytes.size();
  }
  places.reserve(num_shards);
  std::vector<ReadTarget> targets;
  targets.reserve(num_shards);
  std::vector<Shards> buffers(requests.size());
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const ArrayLayout& layout = *layout_of_request[r];
    const Shards& shards = buffers[r] = layout.allocate(batches, requests[r].name);
    for (const DistinctPiece& piece : layout.pieces) {
      const std::size_t first = places.size();
      for (const std::int64_t position : piece.positions) {
        const std::shared_ptr<Buffer>& shard = shards[static_cast<std::size_t>(position)];
        if (shard) places.push_back(shard->data());
      }
      const std::span own = std::span(places).subspan(first);
      if (!own.empty()) targets.push_back({numbers[r], &piece.box, own});
    }
  }
  chunks.fill(targets);

  std::vector<ShardedArray> arrays;
  arrays.reserve(requests.size());
  for (std::size_t r = 0; r < requests.size(); ++r) {
    arrays.push_back(ShardedArray::from_shards(devices, requests[r].spec, std::move(buffers[r])));
  }
  return arrays;
}

}  // namespace shardwise::detail
