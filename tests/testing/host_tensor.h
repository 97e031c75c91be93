#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise {

/// Numbers count up in small steps (they compress), or are any (they do not).
enum class Values { ramp, noise };

/// Clears the upper bit of the exponent: without it, floats of one byte are finite.
inline void make_finite(DType dtype, std::span<std::byte> bytes) {
  if (is_computed(dtype) || size_bytes(dtype) != 1) return;
  for (std::byte& byte : bytes) byte &= std::byte{0xBF};
}

/// The values of a tensor, all finite, the same for the same seed.
inline std::vector<std::byte> test_values(DType dtype, const Shape& shape, Values values,
                                          std::uint64_t seed) {
  const bool is_complex = dtype == DType::c64 || dtype == DType::c128;
  const std::size_t count = num_bytes(shape, is_complex ? 2 : 1);
  const DType part = is_computed(dtype)     ? dtype
                     : dtype == DType::c128 ? DType::f64
                     : dtype == DType::c64  ? DType::f32
                                            : DType::i8;
  std::vector<double> numbers(count);
  double* const out = numbers.data();
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's
    const std::uint64_t ramp = dtype == DType::boolean ? (i / 5 + seed) % 2 : (i / 3 + seed) % 97;
    out[i] = values == Values::ramp || dtype == DType::boolean
                 ? static_cast<double>(ramp)
                 : static_cast<double>(static_cast<std::int64_t>(state) >> 20) * 0x1p-36;
  }
  std::vector<std::byte> bytes(count * size_bytes(part));
  convert(DType::f64, reinterpret_cast<const std::byte*>(numbers.data()), part, bytes.data(),
          count);
  make_finite(dtype, bytes);
  return bytes;
}

/// A tensor in ordinary memory, to be saved and compared.
struct HostTensor {
  std::string name;
  ArraySpec spec;
  std::shared_ptr<const std::vector<std::byte>> data;

  /// The elements of the box, row-major.
  std::vector<std::byte> part(const Box& box) const {
    const std::size_t element_bytes = size_bytes(spec.dtype);
    std::vector<std::byte> out(num_bytes(box.shape(), element_bytes));
    copy_box(box, element_bytes, {data->data(), Box::whole(spec.shape)}, {out.data(), box});
    return out;
  }

  /// Shares the data.
  TensorSource source() const {
    return callback_tensor(name, spec, [tensor = *this](const Box& box, std::span<std::byte> out) {
      copy_box(box, size_bytes(tensor.spec.dtype),
               {tensor.data->data(), Box::whole(tensor.spec.shape)}, {out.data(), box});
    });
  }
};

inline HostTensor host_tensor(std::string name, DType dtype, const Shape& shape,
                              std::string_view mesh, std::string_view spec,
                              Values values = Values::noise, std::uint64_t seed = 1) {
  return {std::move(name),
          {dtype, shape, Sharding(Mesh::parse(mesh), PartitionSpec::parse(spec))},
          std::make_shared<const std::vector<std::byte>>(test_values(dtype, shape, values, seed))};
}

inline std::vector<TensorSource> sources_of(std::span<const HostTensor> tensors) {
  std::vector<TensorSource> sources;
  for (const HostTensor& tensor : tensors) sources.push_back(tensor.source());
  return sources;
}

/// Whether the checkpoint holds all of them, to the last byte.
inline bool holds(const CheckpointReader& reader, std::span<const HostTensor> model) {
  return std::all_of(model.begin(), model.end(), [&](const HostTensor& tensor) {
    std::vector<std::byte> found(tensor.data->size());
    reader.read(tensor.name, Box::whole(tensor.spec.shape), found);
    return found == *tensor.data;
  });
}

/// Whether the shards of this process have the elements of the tensor.
inline bool holds_addressable(const ShardedArray& array, const HostTensor& tensor) {
  for (std::int64_t p = 0; p < array.sharding().mesh().size(); ++p) {
    if (!array.is_addressable(p)) continue;
    const ConstBoxView shard = array.shard(p);
    const std::vector<std::byte> part = tensor.part(shard.box);
    if (!std::equal(part.begin(), part.end(), shard.data)) return false;
  }
  return true;
}

/// Arrays of the devices of this process, which then holds no other elements.
inline std::vector<TensorSource> addressable_sources(Devices& devices,
                                                     std::span<const HostTensor> tensors) {
  std::vector<TensorSource> sources;
  for (const HostTensor& tensor : tensors) {
    sources.push_back(
        tensor_source(tensor.name, ShardedArray::from_host(devices, tensor.spec, *tensor.data)));
  }
  return sources;
}

}  // namespace shardwise
