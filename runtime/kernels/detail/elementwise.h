#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/graph/op.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {
namespace detail {
struct ElementwiseProgram;
}

/// An input of an elementwise kernel: an operand in memory, repeated along some dims.
struct ElementwiseInput {
  DType dtype;
};

/// One operation of an elementwise kernel. Operands are numbered: first the inputs, then the
/// results of the instructions before this one.
struct ElementwiseInstruction {
  Op op;        ///< elementwise, convert, or constant
  DType dtype;  ///< of the result
  std::vector<std::int32_t> operands;
  Scalar number = {};  ///< of a constant; one that the dtype has
};

/// A chain of elementwise operations that runs tile by tile: a tile of each operand is read, all
/// operations are done on it in the cache, and the results are written, so that memory is traversed
/// once for any number of operations. Vectorised (Highway, for the machine's instructions). On one
/// machine each element's value depends only on its operands, not on its place or on fusion.
///
/// f16 and bf16 are computed in f32 and rounded after each operation. max and min give NaN if one
/// operand is NaN, and treat -0 as less than 0. exp, log, tanh, erf, sin, cos, logistic and pow of
/// f32 are off by at most 4 units in the last place; those of f64 equal the standard library's.
///
/// Integers wrap around. Division truncates; a quotient by zero is -1 (all bits set) and a
/// remainder by zero is the dividend, whose sign every remainder has. A negative power is the
/// truncated reciprocal. Logical ops on integers are bitwise. A boolean is true unless its byte is
/// 0.
///
/// Immutable, thread-safe.
///
///   // y = relu(x + b), x: [2, 3], b: [3]
///   const ElementwiseKernel kernel({{DType::f32}, {DType::f32}},
///                                  {{Op::add, DType::f32, {0, 1}},
///                                   {Op::constant, DType::f32, {}, 0.0},
///                                   {Op::max, DType::f32, {2, 3}}}, {4});
///   const ElementwiseKernel::Operand operands[] = {{x, {3, 1}}, {b, {0, 1}}};
///   kernel.run({2, 3}, operands, {&y, 1});
class ElementwiseKernel {
 public:
  struct Operand {
    const std::byte* data;
    Dims strides;  ///< in elements, one per dim of the shape; 0 repeats
  };

  /// `outputs` are the operands (by number, as above) that are written. Throws unsupported, naming
  /// op and dtype, if an op is not defined for a dtype; invalid_argument for an operand that does
  /// not exist or has another dtype than the op needs. identity, stop_gradient and
  /// optimization_barrier give their operand.
  ElementwiseKernel(std::vector<ElementwiseInput> inputs,
                    std::vector<ElementwiseInstruction> instructions,
                    std::vector<std::int32_t> outputs);

  /// Computes all elements of a shape; outputs are row-major without gaps, one address for each. An
  /// output may have exactly the memory of an input of the same element size whose strides are
  /// row-major. It must not overlap any other memory. Runs on the calling thread only. Throws
  /// invalid_argument if there are too few or too many operands or strides.
  void run(const Shape& shape, std::span<const Operand> inputs,
           std::span<std::byte* const> outputs) const;

  /// True if the op is defined for operands of a dtype.
  static bool supports(Op op, DType dtype);

  /// True if pow is defined for these: one dtype, or an integer exponent of a floating base, which
  /// is converted to the base's dtype.
  static bool takes_exponent(DType base, DType exponent);

 private:
  std::shared_ptr<const detail::ElementwiseProgram> program_;
};

}  // namespace shardwise
