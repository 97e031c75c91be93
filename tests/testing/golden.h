#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

/// The contents of the checkpoints in tests/data/checkpoint-v2. They were written once: step 6 in
/// three files and step 7 in those of writers 0 and 64, without an index, by the first builds that
/// wrote format 2; steps 1 to 3 in one file and step 4 in three by the last build that read format
/// 1, from files of that format. They are never written again: every later build must read them.
struct GoldenTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::string spec;  ///< over golden_mesh()
  std::string policy = "ceil";
};

inline std::string golden_mesh(int step) {
  return step == 7 ? "data=2,model=1@0,64" : "data=4,model=2";
}

inline std::vector<GoldenTensor> golden_tensors(int step) {
  std::vector<GoldenTensor> tensors = {{"scalar", DType::f32, {}, ""},
                                       {"empty", DType::f32, {0, 3}, "data,-"},
                                       {"layers/0/smooth", DType::f32, {96, 200}, "-,-"},
                                       {"layers/0/noise", DType::u8, {66000}, "-"},
                                       {"names may. have \xC3\xBC", DType::i64, {5}, "data+model"}};
  for (const DType dtype : compute_dtypes()) {
    tensors.push_back({"dtypes/" + std::string(name(dtype)), dtype, {6, 5}, "data,model"});
  }
  if (step < 4) return tensors;
  if (step >= 6) {
    // Its replicas share it in two parts.
    tensors.push_back({"split", DType::i32, {600001}, "-"});
    tensors.push_back(
        {"sizes", DType::u16, {40001, 2}, "model,-", step == 6 ? "sizes:1+40000,-" : "ceil"});
    // The second of its chunks reaches over the edge.
    tensors.push_back({"ragged", DType::i32, {300001}, "-"});
    tensors.push_back({"weights/f32", DType::f32, {17000}, "-"});
    tensors.push_back({"weights/bf16", DType::bf16, {2, 34000}, "data,-", "balanced"});
    return tensors;
  }
  tensors.push_back({"weights/f32", DType::f32, {5, 17000}, "data,-", "balanced"});
  tensors.push_back({"weights/bf16", DType::bf16, {5, 34000}, "data,-", "balanced"});
  return tensors;
}

/// About normal, with all bits of a float in use, the same on every machine.
inline std::vector<std::byte> golden_weights(const GoldenTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(num_elements(tensor.shape)));
  std::uint64_t state = 1;
  for (float& value : values) {
    std::int64_t sum = -6 * 65536;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<std::int64_t>(state >> 48);
    }
    value = static_cast<float>(sum) / 3;
  }
  std::vector<std::byte> bytes(values.size() * size_bytes(tensor.dtype));
  convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()), tensor.dtype, bytes.data(),
          values.size());
  return bytes;
}

/// All elements, row-major: for most the element's index, for "noise" bytes that do not compress.
inline std::vector<std::byte> golden_values(const GoldenTensor& tensor) {
  if (tensor.name.starts_with("weights/")) return golden_weights(tensor);
  const auto count = static_cast<std::size_t>(num_elements(tensor.shape));
  std::vector<std::int64_t> numbers(count);
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const bool noise = tensor.name == "layers/0/noise";
    numbers[i] = static_cast<std::int64_t>(noise ? state >> 56 : i);
    // The builds that wrote them did not wrap integers around.
    if (tensor.dtype == DType::u16) numbers[i] = std::min(numbers[i], std::int64_t{0xFFFF});
  }
  std::vector<std::byte> bytes(count * size_bytes(tensor.dtype));
  convert(DType::i64, reinterpret_cast<const std::byte*>(numbers.data()), tensor.dtype,
          bytes.data(), count);
  return bytes;
}

}  // namespace shardwise
