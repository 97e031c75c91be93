#include "shardwise/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/restore.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/runtime/device.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
struct CheckpointReader::Impl {
  Impl(detail::StoredCheckpoint checkpoint, const ReadOptions& options)
      : directory(checkpoint.directory),
        step(checkpoint.manifest.step),
        has_index(checkpoint.manifest.has_index()),
        user_json(checkpoint.manifest.user_json),
        objects_json(checkpoint.manifest.objects_json),
        infos(detail::tensor_infos(checkpoint)),
        chunks(std::move(checkpoint), options) {}

  /// Number in the manifest; absent if no tensor has that name. `guess` is looked at first.
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

  /// Number in the manifest. Throws no_such_name.
  std::size_t number(const char* operation, std::string_view name) const {
    if (const auto found = find(name)) return *found;
    throw Error(ErrorCode::no_such_name, fmt::format("{} of checkpoint {}: {}", operation,
                                                     directory.string(), missing(name)));
  }

  /// Throws invalid_argument if a box leaves its tensor.
  void check_inside(const TensorInfo& info, const Box& box) const {
    if (box.rank() == info.shape.size() && Box::whole(info.shape).contains(box)) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read of checkpoint {}: box {} leaves tensor {:?} of shape {}",
                            directory.string(), to_string(box), info.name, to_string(info.shape)));
  }

  /// Lists the tensors that a restore of these numbers leaves out; empty if it leaves out none.
  std::string unasked(std::span<const std::size_t> numbers) const;

  /// Says why a tensor does not fit its request; empty if it fits.
  std::string mismatch(const TensorRequest& request, std::optional<std::size_t> number,
                       const Devices& devices) const;

  const std::filesystem::path directory;
  const std::int64_t step;
  const bool has_index;
  const std::string user_json, objects_json;
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
  try {
    static_cast<void>(spec.sharding.shard_shape(spec.shape));
  } catch (const Error& error) {
    return fmt::format("tensor {:?} cannot be cut as is wanted: {}", request.name, error.what());
  }
  return {};
}

std::string CheckpointReader::Impl::unasked(std::span<const std::size_t> numbers) const {
  constexpr std::size_t kMostNames = 10;
  std::vector<bool> asked(infos.size());
  for (const std::size_t number : numbers) asked[number] = true;
  std::vector<std::string> names;
  std::size_t count = 0;
  for (std::size_t t = 0; t < infos.size(); ++t) {
    if (asked[t]) continue;
    if (++count <= kMostNames) names.push_back(fmt::format("{:?}", infos[t].name));
  }
  if (count == 0) return {};
  return fmt::format("{} of {} tensors that are there are not asked for: {}{}", count, infos.size(),
                     fmt::join(names, ", "), count > kMostNames ? ", ..." : "");
}

CheckpointReader::CheckpointReader(const std::filesystem::path& directory,
                                   const ReadOptions& options)
    : CheckpointReader(directory, options, false) {}

CheckpointReader::CheckpointReader(const std::filesystem::path& directory,
                                   const ReadOptions& options, bool as_needed) {
  const auto file_system = file_system_of(directory, options.file_system);
  std::unique_ptr<detail::Pin> pin;
  if (options.pin) pin = std::make_unique<detail::Pin>(*file_system, directory);
  impl_ =
      std::make_unique<Impl>(detail::open_checkpoint(*file_system, directory, as_needed), options);
  impl_->file_system = file_system;
  impl_->pin = std::move(pin);
}

CheckpointReader::CheckpointReader(detail::StoredCheckpoint checkpoint)
    : impl_(std::make_unique<Impl>(std::move(checkpoint), ReadOptions())) {}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

const std::filesystem::path& CheckpointReader::directory() const { return impl_->directory; }

std::int64_t CheckpointReader::step() const { return impl_->step; }

bool CheckpointReader::has_index() const { return impl_->has_index; }

const std::string& CheckpointReader::user_json() const { return impl_->user_json; }

const std::string& CheckpointReader::objects_json() const { return impl_->objects_json; }

Metrics CheckpointReader::metrics() const { return detail::metrics_of(impl_->objects_json); }

std::span<const TensorInfo> CheckpointReader::tensors() const { return impl_->infos; }

bool CheckpointReader::contains(std::string_view name) const {
  return std::ranges::binary_search(tensors(), name, {}, &TensorInfo::name);
}

const TensorInfo& CheckpointReader::tensor(std::string_view name) const {
  return impl_->infos[impl_->number("tensor", name)];
}

void CheckpointReader::read(std::string_view name, const Box& box, std::span<std::byte> out) const {
  read(impl_->number("read", name), box, out);
}

void CheckpointReader::read(std::string_view name, std::span<std::byte> out) const {
  const std::size_t tensor = impl_->number("read", name);
  read(tensor, Box::whole(impl_->infos[tensor].shape), out);
}

std::vector<std::byte> CheckpointReader::whole_tensor(const std::string& name,
                                                      const ArraySpec& needed) const {
  check_read(name, {}, needed.dtype);
  const Shape& shape = tensor(name).shape;
  if (!(shape == needed.shape)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read of checkpoint {}: tensor {:?}: found shape {}, needed {}",
                            directory().string(), name, to_string(shape), to_string(needed.shape)));
  }
  std::vector<std::byte> bytes(num_bytes(shape, size_bytes(needed.dtype)));
  read(name, bytes);
  return bytes;
}

void CheckpointReader::check_read(std::string_view name, const std::optional<Box>& box,
                                  DType needed) const {
  const TensorInfo& info = impl_->infos[impl_->number("read", name)];
  check_dtype(fmt::format("read of checkpoint {}: tensor {:?}", directory().string(), name),
              info.dtype, needed);
  if (box) impl_->check_inside(info, *box);
}

void CheckpointReader::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  const BoxTarget target{tensor, box, out};
  read({&target, 1});
}

void CheckpointReader::read(std::span<const BoxTarget> targets) const {
  const auto fail = [&](ErrorCode code, const std::string& problem) {
    throw Error(code, fmt::format("read of checkpoint {}: {}", directory().string(), problem));
  };
  std::vector<std::byte*> places;
  places.reserve(targets.size());
  for (const auto& [tensor, box, out] : targets) {
    if (tensor >= impl_->infos.size()) {
      fail(ErrorCode::no_such_name,
           fmt::format("there is no tensor number {}, there are {}", tensor, impl_->infos.size()));
    }
    const TensorInfo& info = impl_->infos[tensor];
    impl_->check_inside(info, box);
    const std::size_t bytes = num_bytes(box.shape(), size_bytes(info.dtype));
    if (out.size() != bytes) {
      fail(ErrorCode::invalid_argument,
           fmt::format("box {} of tensor {:?} has {} bytes, the output {}", to_string(box),
                       info.name, bytes, out.size()));
    }
    places.push_back(out.data());
  }
  std::vector<detail::ReadTarget> wanted;
  wanted.reserve(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    wanted.push_back({targets[i].tensor, &targets[i].box, {&places[i], 1}});
  }
  impl_->chunks.fill(wanted);
}

std::vector<StoredChunk> CheckpointReader::chunks(std::size_t tensor) const {
  if (tensor >= impl_->infos.size()) {
    throw Error(ErrorCode::no_such_name,
                fmt::format("chunks of checkpoint {}: there is no tensor number {}, there are {}",
                            directory().string(), tensor, impl_->infos.size()));
  }
  const Box whole = Box::whole(impl_->infos[tensor].shape);
  const detail::ReadTarget target{tensor, &whole, {}};
  const auto view = impl_->chunks.checkpoint_for({&target, 1});
  const detail::StoredCheckpoint& checkpoint = *view;
  std::vector<StoredChunk> chunks;
  std::size_t p = 0;
  for (const detail::PieceEntry& piece : checkpoint.manifest.tensors[tensor].pieces) {
    const std::int64_t count = num_chunks(piece);
    for (std::int64_t c = 0; c < count; ++c) {
      chunks.push_back({chunk_box(piece, c), piece.chunk, checkpoint.decoded_hash({tensor, p, c})});
    }
    ++p;
  }
  return chunks;
}

ShardedArray CheckpointReader::restore(Devices& devices, std::string_view name,
                                       const Sharding& sharding) const {
  const TensorInfo& info = impl_->infos[impl_->number("restore", name)];
  const TensorRequest request{info.name, {info.dtype, info.shape, sharding}};
  return std::move(restore(devices, {&request, 1}).front());
}

std::map<std::string, ShardedArray> CheckpointReader::restore(
    Devices& devices, const std::map<std::string, Sharding>& shardings,
    const RestoreOptions& options) const {
  std::vector<TensorRequest> requests;
  for (const auto& [name, sharding] : shardings) {
    // A name that is not there is refused below, together with all other mismatches.
    const ArraySpec stored =
        contains(name) ? ArraySpec{tensor(name).dtype, tensor(name).shape} : ArraySpec{};
    requests.push_back({name, {stored.dtype, stored.shape, sharding}});
  }
  std::vector<ShardedArray> arrays = restore(devices, requests, options);
  std::map<std::string, ShardedArray> named;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    named.emplace(requests[i].name, std::move(arrays[i]));
  }
  return named;
}

std::vector<ShardedArray> CheckpointReader::restore(Devices& devices,
                                                    std::span<const TensorRequest> requests,
                                                    const RestoreOptions& options) const {
  if (options.if_missing) return restore_with_missing(devices, requests, options);
  std::vector<std::string> wrong;
  std::vector<std::size_t> numbers;  // of the tensors: mostly all, in their order
  std::vector<std::size_t> asked;    // those that are there
  numbers.reserve(requests.size());
  for (const TensorRequest& request : requests) {
    const auto number = impl_->find(request.name, numbers.empty() ? 0 : numbers.back() + 1);
    std::string text = impl_->mismatch(request, number, devices);
    if (!text.empty()) wrong.push_back(std::move(text));
    numbers.push_back(number.value_or(0));
    if (number) asked.push_back(*number);
  }
  std::string problem;
  if (!wrong.empty()) {
    problem = fmt::format("{} of {} requests do not fit: {}", wrong.size(), requests.size(),
                          fmt::join(wrong, "; "));
  }
  if (const std::string text = options.exact ? impl_->unasked(asked) : ""; !text.empty()) {
    problem += (problem.empty() ? "" : "; ") + text;
  }
  if (!problem.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("restore of checkpoint {}: {}", directory().string(), problem));
  }
  return detail::restore_arrays(impl_->chunks, devices, requests, numbers);
}

std::vector<ShardedArray> CheckpointReader::restore_with_missing(
    Devices& devices, std::span<const TensorRequest> requests,
    const RestoreOptions& options) const {
  std::vector<TensorRequest> there;
  std::vector<bool> is_there;
  for (const TensorRequest& request : requests) {
    is_there.push_back(impl_->find(request.name, there.size()).has_value());
    if (is_there.back()) there.push_back(request);
  }
  RestoreOptions of_those = options;
  of_those.if_missing = nullptr;
  std::vector<ShardedArray> read = restore(devices, there, of_those), arrays;
  arrays.reserve(requests.size());
  for (std::size_t r = 0, next = 0; r < requests.size(); ++r) {
    arrays.push_back(is_there[r] ? std::move(read[next++]) : options.if_missing(requests[r]));
  }
  return arrays;
}

ReadStats CheckpointReader::stats() const { return impl_->chunks.stats(); }

bool CheckpointReader::pinned() const { return impl_->pin && impl_->pin->holds(); }

}  // namespace shardwise
