#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise {

/// Numbers count up in small steps (they compress), or are any (they do not).
enum class Values { ramp, noise };

/// The values of a tensor, all finite, the same for the same seed.
inline std::vector<std::byte> test_values(DType dtype, const Shape& shape, Values values,
                                          std::uint64_t seed) {
  const auto count = static_cast<std::size_t>(num_elements(shape));
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
  std::vector<std::byte> bytes(count * size_bytes(dtype));
  convert(DType::f64, reinterpret_cast<const std::byte*>(numbers.data()), dtype, bytes.data(),
          count);
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
    return callback_source(name, spec, [tensor = *this](const Box& box, std::span<std::byte> out) {
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

}  // namespace shardwise
