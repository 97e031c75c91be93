#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "shardwise/runtime/sharded_array.h"
#include "shardwise/runtime/stopwatch.h"

// Shared by the checkpoint benchmarks: the tensors they save and how they measure.
namespace shardwise::bench {

constexpr std::int64_t kTensors = 64;
constexpr std::int64_t kColumns = 4096;
constexpr int kRounds = 5;

inline std::int64_t rows_of(std::int64_t mib) { return (mib << 20) / (kTensors * kColumns * 4); }

inline std::string tensor_name(std::int64_t number) {
  return "layers/" + std::to_string(number) + "/w";
}

/// Normally distributed, like weights, with a scale from 0.005 to 0.08 that depends on the seed
/// (the layer), and other values for each seed and shard. f32 or bf16.
inline ShardedArray random_tensor(Devices& devices, const ArraySpec& spec, std::int64_t seed) {
  return ShardedArray::from_callback(devices, spec, [&](const BoxView& view) {
    std::int64_t first = seed * 1000;
    for (std::size_t d = 0; d < view.box.rank(); ++d) first += view.box.begin(d);
    std::mt19937_64 random(static_cast<std::uint64_t>(first));
    const float scale = 0.02f * std::exp2(static_cast<float>(seed * 7 % 17 - 8) / 4.0f);
    std::normal_distribution<float> normal(0, scale);
    assert(spec.dtype == DType::f32 || spec.dtype == DType::bf16);
    const std::size_t element = size_bytes(spec.dtype);
    for (std::int64_t i = 0; i < view.box.num_elements(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(normal(random));
      const std::uint32_t stored = element == 4 ? bits : (bits + 0x8000) >> 16;
      std::memcpy(view.data + static_cast<std::size_t>(i) * element, &stored, element);
    }
  });
}

inline double seconds(const std::function<void()>& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace shardwise::bench
