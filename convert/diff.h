#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct DiffOptions {
  /// Most host bytes held at once beyond what the two readers hold, and about 500 bytes for each
  /// chunk of a tensor, if both are checkpoints. At least 1 MiB.
  std::size_t memory_budget_bytes = std::size_t{128} << 20;

  /// Workers that compare; 0: as many as the machine has cores.
  int threads = 0;

  /// How far a second number may be from the first, as numpy.allclose says it: elements are equal
  /// if |first - second| <= atol + rtol * |second|, or if both are NaN or the same infinity. Of
  /// complex numbers || is the modulus; one with a NaN in it is NaN. Both 0: if their bits are
  /// equal.
  double atol = 0, rtol = 0;

  /// Of all logical bytes of the first's tensors that are compared.
  ProgressFunction progress = nullptr;
};

/// How the tensors of one name differ.
struct TensorDiff {
  std::string name;

  /// Of each; absent: it has no such tensor.
  std::optional<DType> first_dtype, second_dtype;
  Shape first_shape, second_shape;

  /// Whether elements were compared: both have the tensor, in one shape. If dtypes differ, numbers
  /// are compared.
  bool compared = false;

  std::int64_t elements = 0;   ///< of the first
  std::int64_t differing = 0;  ///< elements

  // Over the differing elements, of which neither is NaN; a complex element is two numbers.
  double max_abs = 0;  ///< largest |first - second|
  double max_rel = 0;  ///< largest |first - second| / max(|first|, |second|)

  /// Largest number of floats of the dtype from one to the other; absent for integers and if
  /// dtypes differ.
  std::optional<std::uint64_t> max_ulp = {};

  std::int64_t first_nan = 0, second_nan = 0;  ///< numbers that are NaN, in what was read

  /// Global index of the first one in row-major order, and what the two hold there.
  std::optional<Index> at = {};
  std::string first_value, second_value;

  /// Same dtype and shape on both sides, and no element differs.
  bool equal() const;
};

/// "w  f32 [3]: 1 of 3 differ", and a line of where the first is and how far apart they are.
std::string to_string(const TensorDiff& tensor);

struct DiffReport {
  std::vector<TensorDiff> tensors;  ///< of all names, sorted
  std::size_t compared_bytes = 0;   ///< of the first, read and compared
  std::size_t skipped_bytes = 0;    ///< of the first; the hashes of chunks said that they are equal

  bool equal() const;
};

/// The tensors that differ, and a line of how many are equal.
std::string to_string(const DiffReport& report);

/// Compares all tensors of two readers: two steps, a checkpoint and a file of another format, the
/// same state on two meshes. Reads box by box. If both are checkpoints and hold the same chunk of a
/// tensor with the same hash, that chunk is not read: verify_checkpoint() says whether the hashes
/// are those of the bytes. Throws invalid_argument for a budget that is too small or tolerances
/// that are negative or NaN, and what the readers throw.
///
///   const DiffReport report = diff(CheckpointReader("run/step-00000001"),
///                                  ModelReader("model.safetensors"));
DiffReport diff(const BoxReader& first, const BoxReader& second, const DiffOptions& options = {});

}  // namespace shardwise
