#include "shardwise/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/runtime/device.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/nearest_names.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

using Shards = std::vector<std::shared_ptr<Buffer>>;

/// A batch for each device of this process.
class Batches {
 public:
  explicit Batches(const Devices& devices) : devices_(devices) {
    for (const DeviceId id : devices.addressable()) batches_.emplace_back(devices.at(id));
  }

  /// Null for a device of another process. Throws not_found where there is no such device.
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
  explicit ArrayLayout(const ArraySpec& array) : spec(array) {
    const Mesh& mesh = spec.sharding.mesh();
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      devices.push_back(mesh.device_at(position));
      shard_bytes.push_back(
          num_bytes(spec.sharding.box_at(position, spec.shape).shape(), size_bytes(spec.dtype)));
    }
    pieces = spec.sharding.distinct_pieces(spec.shape);
  }

  // Shardings that are equal may number the devices differently; then their meshes differ.
  bool fits(const ArraySpec& array) const {
    return array.dtype == spec.dtype && array.shape == spec.shape &&
           array.sharding == spec.sharding && array.sharding.mesh() == spec.sharding.mesh();
  }

  /// Throws not_found where there is no device for a shard.
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

/// The layout of the spec, made where none of the last ones fits. A deque's elements stay in place.
const ArrayLayout& layout_of(const ArraySpec& spec, std::deque<ArrayLayout>& layouts) {
  for (std::size_t back = 1; back <= std::min(kRecentLayouts, layouts.size()); ++back) {
    const ArrayLayout& layout = layouts[layouts.size() - back];
    if (layout.fits(spec)) return layout;
  }
  return layouts.emplace_back(spec);
}

}  // namespace

struct CheckpointReader::Impl {
  Impl(detail::StoredCheckpoint checkpoint, const ReadOptions& options)
      : directory(checkpoint.directory),
        step(checkpoint.manifest.step),
        has_index(checkpoint.manifest.has_index()),
        user_json(checkpoint.manifest.user_json),
        infos(detail::tensor_infos(checkpoint)),
        chunks(std::move(checkpoint), options) {}

  /// Number in the manifest; absent where there is none of that name. `guess` is looked at first.
  std::optional<std::size_t> find(std::string_view name, std::size_t guess = 0) const {
    if (guess < infos.size() && infos[guess].name == name) return guess;
    const auto found = std::lower_bound(
        infos.begin(), infos.end(), name,
        [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
    if (found == infos.end() || found->name != name) return std::nullopt;
    return static_cast<std::size_t>(found - infos.begin());
  }

  /// "there is no tensor "x"", and which may have been meant.
  std::string missing(std::string_view name) const {
    std::vector<std::string_view> names;
    for (const TensorInfo& info : infos) names.push_back(info.name);
    std::string text = fmt::format("there is no tensor {:?}", name);
    const char* separator = ", nearest: ";
    for (const std::string_view near : nearest_names(names, name)) {
      text += fmt::format("{}{:?}", separator, near);
      separator = ", ";
    }
    return text;
  }

  /// Number in the manifest. Throws not_found.
  std::size_t number(const char* operation, std::string_view name) const {
    if (const auto found = find(name)) return *found;
    throw Error(ErrorCode::not_found, fmt::format("{} of checkpoint {}: {}", operation,
                                                  directory.string(), missing(name)));
  }

  /// What is wrong with a request for a tensor, if there is one; empty where nothing is.
  std::string mismatch(const TensorRequest& request, std::optional<std::size_t> number,
                       const Devices& devices) const;

  const std::filesystem::path directory;
  const std::int64_t step;
  const bool has_index;
  const std::string user_json;
  const std::vector<TensorInfo> infos;
  detail::ChunkReader chunks;
  std::shared_ptr<FileSystem> file_system;  // outlives the pin
  std::unique_ptr<detail::Pin> pin;
};

std::string CheckpointReader::Impl::mismatch(const TensorRequest& request,
                                             std::optional<std::size_t> number,
                                             const Devices& devices) const {
  if (!number) return missing(request.name);
  const TensorInfo& info = infos[*number];
  const ArraySpec& spec = request.spec;
  if (info.dtype != spec.dtype || info.shape != spec.shape) {
    return fmt::format("tensor {:?} is {} {}, wanted is {} {}", request.name,
                       shardwise::name(info.dtype), to_string(info.shape),
                       shardwise::name(spec.dtype), to_string(spec.shape));
  }
  if (spec.sharding.rank() != info.shape.size()) {
    return fmt::format("tensor {:?} has {} dims, its spec \"{}\" has {}", request.name,
                       info.shape.size(), spec.sharding.spec().to_string(), spec.sharding.rank());
  }
  if (spec.sharding.mesh().size() > devices.size()) {
    return fmt::format("tensor {:?} is wanted on {} devices, there are {}", request.name,
                       spec.sharding.mesh().size(), devices.size());
  }
  return {};
}

CheckpointReader::CheckpointReader(const std::filesystem::path& directory,
                                   const ReadOptions& options) {
  const auto file_system = options.file_system ? options.file_system : posix_file_system();
  std::unique_ptr<detail::Pin> pin;
  if (options.pin) pin = std::make_unique<detail::Pin>(*file_system, directory);
  impl_ = std::make_unique<Impl>(detail::open_checkpoint(*file_system, directory), options);
  impl_->file_system = file_system;
  impl_->pin = std::move(pin);
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

const std::filesystem::path& CheckpointReader::directory() const { return impl_->directory; }

std::int64_t CheckpointReader::step() const { return impl_->step; }

bool CheckpointReader::has_index() const { return impl_->has_index; }

const std::string& CheckpointReader::user_json() const { return impl_->user_json; }

std::span<const TensorInfo> CheckpointReader::tensors() const { return impl_->infos; }

const TensorInfo& CheckpointReader::tensor(std::string_view name) const {
  return impl_->infos[impl_->number("tensor", name)];
}

void CheckpointReader::read(std::string_view name, const Box& box, std::span<std::byte> out) const {
  read(impl_->number("read", name), box, out);
}

void CheckpointReader::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  if (tensor >= impl_->infos.size()) {
    throw Error(ErrorCode::not_found,
                fmt::format("read of checkpoint {}: there is no tensor number {}, there are {}",
                            directory().string(), tensor, impl_->infos.size()));
  }
  const TensorInfo& info = impl_->infos[tensor];
  if (box.rank() != info.shape.size() || !Box::whole(info.shape).contains(box)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("read of checkpoint {}: box {} leaves tensor {:?} of shape {}",
                    directory().string(), to_string(box), info.name, to_string(info.shape)));
  }
  const std::size_t bytes = num_bytes(box.shape(), size_bytes(info.dtype));
  if (out.size() != bytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read of checkpoint {}: box {} of tensor {:?} has {} bytes, the "
                            "output {}",
                            directory().string(), to_string(box), info.name, bytes, out.size()));
  }
  std::byte* const place = out.data();
  const detail::ReadTarget target{tensor, &box, {&place, 1}};
  impl_->chunks.fill({&target, 1});
}

ShardedArray CheckpointReader::restore(Devices& devices, std::string_view name,
                                       const Sharding& sharding) const {
  const TensorInfo& info = impl_->infos[impl_->number("restore", name)];
  const TensorRequest request{info.name, {info.dtype, info.shape, sharding}};
  return std::move(restore(devices, {&request, 1}).front());
}

std::vector<ShardedArray> CheckpointReader::restore(Devices& devices,
                                                    std::span<const TensorRequest> requests) const {
  std::vector<std::string> wrong;
  std::vector<std::size_t> numbers;  // of the tensors: mostly all, in their order
  numbers.reserve(requests.size());
  for (const TensorRequest& request : requests) {
    const auto number = impl_->find(request.name, numbers.empty() ? 0 : numbers.back() + 1);
    std::string text = impl_->mismatch(request, number, devices);
    if (!text.empty()) wrong.push_back(std::move(text));
    numbers.push_back(number.value_or(0));
  }
  if (!wrong.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("restore of checkpoint {}: {} of {} requests do not fit: {}",
                    directory().string(), wrong.size(), requests.size(), fmt::join(wrong, "; ")));
  }

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
  std::vector<detail::ReadTarget> targets;
  targets.reserve(num_shards);
  std::vector<Shards> buffers;
  buffers.reserve(requests.size());
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const ArrayLayout& layout = *layout_of_request[r];
    const Shards& shards = buffers.emplace_back(layout.allocate(batches, requests[r].name));
    for (const DistinctPiece& piece : layout.pieces) {
      const std::size_t first = places.size();
      for (const std::int64_t position : piece.positions) {
        const std::shared_ptr<Buffer>& shard = shards[static_cast<std::size_t>(position)];
        if (shard) places.push_back(shard->data());
      }
      if (places.size() == first) continue;
      targets.push_back({numbers[r], &piece.box, std::span(places).subspan(first)});
    }
  }
  impl_->chunks.fill(targets);

  std::vector<ShardedArray> arrays;
  arrays.reserve(requests.size());
  for (std::size_t r = 0; r < requests.size(); ++r) {
    arrays.push_back(ShardedArray::from_shards(devices, requests[r].spec, std::move(buffers[r])));
  }
  return arrays;
}

ReadStats CheckpointReader::stats() const { return impl_->chunks.stats(); }

bool CheckpointReader::pinned() const { return impl_->pin && impl_->pin->holds(); }

}  // namespace shardwise
