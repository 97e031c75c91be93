#include "shardwise/checkpoint/detail/together/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/detail/together/fan_out.h"
#include "shardwise/checkpoint/detail/together/same_requests.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace detail {
namespace {

using ProcessOf = std::function<int(DeviceId)>;
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

/// What the devices of a mesh hold of arrays of one spec: a model has many arrays of few specs.
struct ArrayLayout {
  ArrayLayout(const ArraySpec& array, const ProcessOf& process_of) : spec(array) {
    const Mesh& mesh = spec.sharding.mesh();
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      devices.push_back(mesh.device_at(position));
      shard_bytes.push_back(
          num_bytes(spec.sharding.box_at(position, spec.shape).shape(), size_bytes(spec.dtype)));
    }
    pieces = spec.sharding.distinct_pieces(spec.shape);
    for (const DistinctPiece& piece : pieces) {
      std::vector<int>& processes = holders.emplace_back();
      for (const std::int64_t position : piece.positions) {
        processes.push_back(process_of(devices[static_cast<std::size_t>(position)]));
      }
      std::ranges::sort(processes);
      processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
    }
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

  std::size_t piece_bytes(std::size_t piece) const {
    return num_bytes(pieces[piece].box.shape(), size_bytes(spec.dtype));
  }

  ArraySpec spec;
  std::vector<DeviceId> devices;         ///< at each position of the mesh
  std::vector<std::size_t> shard_bytes;  ///< there
  std::vector<DistinctPiece> pieces;
  std::vector<std::vector<int>> holders;  ///< of each piece: processes, ascending
};

// A layer's arrays follow one another, and then come the next layer's: the specs of that many.
constexpr std::size_t kRecentLayouts = 16;

/// The layout of the spec, made if none of the last ones fits. A deque's elements stay in place.
const ArrayLayout& layout_of(const ArraySpec& spec, const ProcessOf& process_of,
                             std::deque<ArrayLayout>& layouts) {
  for (std::size_t back = 1; back <= std::min(kRecentLayouts, layouts.size()); ++back) {
    const ArrayLayout& layout = layouts[layouts.size() - back];
    if (layout.fits(spec)) return layout;
  }
  return layouts.emplace_back(spec, process_of);
}

int neighbours(int processes, const RestoreOptions& options) {
  if (options.processes_per_read < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("restore: processes_per_read is {}, needed 1 or more",
                            options.processes_per_read));
  }
  return std::min(options.processes_per_read, processes);
}

/// Where in its tensor a box is, for those who send and take it.
std::uint64_t box_id(const TensorRequest& request, const Box& box) {
  return hash64(request.name + to_string(box));
}

// Of every `together` processes of the group one reads what several of them hold. The requests come
// in `order`, which is the same on all: so is the choice of readers.
std::vector<ShardedArray> restore_together(ChunkReader& chunks, Devices& devices,
                                           std::span<const TensorRequest> requests,
                                           std::span<const std::size_t> numbers,
                                           std::span<const std::size_t> order, int together,
                                           const ProcessGroup& group) {
  // All memory first: what does not fit fails before anything is read. The targets point into
  // layouts and places.
  const int rank = group.rank();
  const ProcessOf process_of = [&](DeviceId id) { return devices.process_of(id); };
  std::deque<ArrayLayout> layouts;
  std::vector<const ArrayLayout*> layout_of_request;
  layout_of_request.reserve(requests.size());
  Batches batches(devices);
  std::vector<std::byte*> places;
  std::size_t num_shards = 0;
  for (const TensorRequest& request : requests) {
    layout_of_request.push_back(&layout_of(request.spec, process_of, layouts));
    layout_of_request.back()->expect(batches);
    num_shards += layout_of_request.back()->shard_bytes.size();
  }
  places.reserve(num_shards);
  std::vector<ReadTarget> targets;
  targets.reserve(num_shards);
  std::vector<Shards> buffers(requests.size());
  BoxReaders readers(devices.group().size(), together);
  std::vector<SharedBox> shared;
  for (const std::size_t r : order) {
    const ArrayLayout& layout = *layout_of_request[r];
    const Shards& shards = buffers[r] = layout.allocate(batches, requests[r].name);
    for (std::size_t p = 0; p < layout.pieces.size(); ++p) {
      const DistinctPiece& piece = layout.pieces[p];
      const std::size_t first = places.size();
      for (const std::int64_t position : piece.positions) {
        const std::shared_ptr<Buffer>& shard = shards[static_cast<std::size_t>(position)];
        if (shard) places.push_back(shard->data());
      }
      const std::span own = std::span(places).subspan(first);
      bool is_mine = true;
      if (together > 1) {
        for (const int reader : readers.choose(layout.holders[p], layout.piece_bytes(p))) {
          if (reader / together != rank / together) continue;
          is_mine = reader == rank;
          SharedBox box{box_id(requests[r], piece.box), layout.piece_bytes(p), reader, {}, own};
          for (const int holder : layout.holders[p]) {
            if (holder / together == rank / together) box.holders.push_back(holder);
          }
          if (box.holders.size() > 1) shared.push_back(std::move(box));
        }
      }
      if (is_mine && !own.empty()) targets.push_back({numbers[r], &piece.box, own});
    }
  }
  chunks.fill(targets);
  fan_out(group, shared);

  std::vector<ShardedArray> arrays;
  arrays.reserve(requests.size());
  for (std::size_t r = 0; r < requests.size(); ++r) {
    arrays.push_back(ShardedArray::from_shards(devices, requests[r].spec, std::move(buffers[r])));
  }
  return arrays;
}

}  // namespace

std::vector<ShardedArray> restore_arrays(ChunkReader& chunks, Devices& devices,
                                         std::span<const TensorRequest> requests,
                                         std::span<const std::size_t> numbers,
                                         const RestoreOptions& options,
                                         const std::string& problem) {
  const int together = neighbours(devices.group().size(), options);
  if (together == 1) {
    if (!problem.empty()) throw Error(ErrorCode::invalid_argument, problem);
    std::vector<std::size_t> order(requests.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    return restore_together(chunks, devices, requests, numbers, order, together, devices.group());
  }
  const ProcessGroup group = devices.group().duplicate();
  bool is_refused = false;
  try {
    const RestoreList list = restore_list(chunks.checkpoint_id(), together, requests);
    // What all know needs no abort, which could reach others before they know it.
    const std::string refused = refusal(group, list, problem);
    is_refused = !refused.empty();
    if (!is_refused) {
      return restore_together(chunks, devices, requests, numbers, common_order(requests), together,
                              group);
    }
    throw Error(ErrorCode::invalid_argument, refused);
  } catch (const std::exception& e) {
    if (!is_refused) group.abort(e.what());
    throw;
  }
}

}  // namespace detail

RestoreTraffic restore_traffic(std::span<const TensorRequest> requests, std::int64_t devices,
                               int processes, const RestoreOptions& options) {
  if (devices < 1 || processes < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("restore onto {} devices of {} processes: needed are 1 of each or more",
                            devices, processes));
  }
  RestoreTraffic traffic{.processes_per_read = detail::neighbours(processes, options)};
  detail::BoxReaders readers(processes, traffic.processes_per_read);
  const detail::ProcessOf process_of = [&](DeviceId id) {
    return Devices::process_of(id, devices, processes);
  };
  std::deque<detail::ArrayLayout> layouts;
  for (const TensorRequest& request : requests) {
    const detail::ArrayLayout& layout = detail::layout_of(request.spec, process_of, layouts);
    for (std::size_t p = 0; p < layout.pieces.size(); ++p) {
      const std::size_t bytes = layout.piece_bytes(p),
                        reads = readers.choose(layout.holders[p], bytes).size();
      traffic.read_bytes += bytes * reads;
      traffic.sent_bytes += bytes * (layout.holders[p].size() - reads);
    }
  }
  traffic.most_read_bytes = std::ranges::max(readers.bytes());
  return traffic;
}

std::string RestoreTraffic::to_string() const {
  const auto size = [](std::size_t bytes) {
    constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
    const auto number = static_cast<double>(bytes);
    return number < kGiB ? fmt::format("{:.1f} MiB", number / kMiB)
                         : fmt::format("{:.1f} GiB", number / kGiB);
  };
  return fmt::format(
      "{}: {} read, at most {} by one process, {} sent",
      processes_per_read == 1 ? "each process reads for itself"
                              : fmt::format("one of {} processes reads", processes_per_read),
      size(read_bytes), size(most_read_bytes), sent_bytes == 0 ? "nothing" : size(sent_bytes));
}

}  // namespace shardwise
