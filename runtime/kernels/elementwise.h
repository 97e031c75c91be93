#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/runtime/graph/op.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {

/// What an elementwise kernel reads: an operand in memory, repeated along some dims.
struct ElementwiseInput {
  DType dtype;
};

/// One operation of an elementwise kernel. Operands are numbered: first the inputs, then the
/// results of the instructions before this one.
struct ElementwiseInstruction {
  Op op;        ///< elementwise, convert, or constant
  DType dtype;  ///< of the result
  std::vector<std::int32_t> operands;
  double number = 0;  ///< of a constant
};

/// A chain of elementwise operations that is carried out tile by tile: a tile of each operand is
/// read, all operations are done on it in the cache, and the results are written, so that memory
/// is passed over once however many operations there are. Vectorised (Highway, for the machine's
/// instructions); each element's value depends on its operands alone, not on its place.
///
/// f16 and bf16 are computed in f32 and rounded after each operation, so that fusing changes no
/// bits. Integers wrap around; division by zero gives 0 for integers, the remainder likewise.
/// exp, log, tanh, erf, sin, cos, logistic, pow: at most 4 units in the last place of f32 (from
/// f32), and as the standard library for f64.
///
/// Immutable, thread-safe.
///
///   // y = relu(x + b), x: [8, 128], b: [128]
///   const ElementwiseKernel kernel({{DType::f32}, {DType::f32}},
///                                  {{Op::add, DType::f32, {0, 1}},
///                                   {Op::constant, DType::f32, {}, 0.0},
///                                   {Op::max, DType::f32, {2, 3}}}, {4});
///   kernel.run({8, 128}, {{x, {128, 1}}, {b, {0, 1}}}, {y});
class ElementwiseKernel {
 public:
  struct Operand {
    const std::byte* data;
    Dims strides;  ///< in elements, one per dim of the shape; 0 repeats
  };

  /// `outputs` are the operands (by number, as above) that are written. Throws unsupported, naming
  /// op and dtype, where an op is not defined for a dtype, invalid_argument for an operand that is
  /// not there or of another dtype than the op needs.
  ElementwiseKernel(std::vector<ElementwiseInput> inputs,
                    std::vector<ElementwiseInstruction> instructions,
                    std::vector<std::int32_t> outputs);

  /// Computes all elements of a shape; outputs are row-major without gaps, one address for each. An
  /// output may lie exactly on an input of the same element size whose strides are row-major, and
  /// must not overlap any other memory. On the calling thread alone.
  void run(const Shape& shape, std::span<const Operand> inputs,
           std::span<std::byte* const> outputs) const;

  /// Whether the op is defined for operands of a dtype.
  static bool supports(Op op, DType dtype);

 private:
  std::vector<ElementwiseInput> inputs_;
  std::vector<ElementwiseInstruction> instructions_;
  std::vector<std::int32_t> outputs_;
};

}  // namespace shardwise
