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
  /// Most host bytes held at once, not counting the two readers and, if both are checkpoints, about
  /// 500 bytes for each chunk of a tensor. At least 1 MiB.
  std::size_t memory_budget_bytes = std::size_t{128} << 20;

  /// Worker threads that compare; 0: as many as the machine has cores.
  int threads = 0;

  /// How far a second number may be from the first, as in numpy.allclose: elements are equal if
  /// |first - second| <= atol + rtol * |second|, or if both are NaN or the same infinity. For
  /// complex numbers || is the modulus; one with a NaN in it is NaN. If both are 0, elements are
  /// equal if their bits are.
  double atol = 0, rtol = 0;

  /// Counts the logical bytes of the first's compared tensors.
  ProgressFunction progress = nullptr;
};

/// How the tensors of one name differ.
struct TensorDiff {
  std::string name;

  /// Dtype on each side; absent if that side has no such tensor.
  std::optional<DType> first_dtype, second_dtype;
  Shape first_shape, second_shape;

  /// True if elements were compared: both sides have the tensor, in one shape. If dtypes differ,
  /// numbers are compared.
  bool compared = false;

  std::int64_t elements = 0;   ///< of the first
  std::int64_t differing = 0;  ///< elements

  // Over differing elements without a NaN; a complex element counts as two numbers.
  double max_abs = 0;  ///< largest |first - second|
  double max_rel = 0;  ///< largest |first - second| / max(|first|, |second|)

  /// Largest number of floats of the dtype from one to the other; absent for integers and if
  /// dtypes differ.
  std::optional<std::uint64_t> max_ulp = {};

  std::int64_t first_nan = 0, second_nan = 0;  ///< NaN among the numbers that were read

  /// Global index of the first differing element in row-major order, and its value on each side.
  std::optional<Index> at = {};
  std::string first_value, second_value;

  /// Same dtype and shape on both sides, and no element differs.
  bool equal() const;
};

/// "w  f32 [3]: 1 of 3 differ", and a line that says where the first is and how far apart they are.
std::string to_string(const TensorDiff& tensor);

struct DiffReport {
  std::vector<TensorDiff> tensors;  ///< of all names, sorted
  std::size_t compared_bytes = 0;   ///< of the first, read and compared
  std::size_t skipped_bytes = 0;    ///< of the first; chunks with equal hashes

  bool equal() const;
};

/// The tensors that differ, and the number of equal ones.
std::string to_string(const DiffReport& report);

/// Compares all tensors of two readers: two steps, a checkpoint and a file of another format, or
/// the same state on two meshes. Reads box by box. If both are checkpoints and hold the same chunk
/// of a tensor with the same hash, that chunk is not read: verify_checkpoint() says whether the
/// hashes match the bytes. Throws invalid_argument for a budget that is too small and for
/// tolerances that are negative or NaN; errors of the readers pass through.
///
///   const DiffReport report = diff(CheckpointReader("run/step-00000001"),
///                                  ModelReader("model.safetensors"));
DiffReport diff(const BoxReader& first, const BoxReader& second, const DiffOptions& options = {});

}  // namespace shardwise
