#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {

/// What a node of a graph computes. Names and meaning are those of jax.lax if it has the op. The
/// attributes that an op reads are listed beside it. docs/programs.md has a table of all ops, and
/// says where the meaning differs ("Numbers").
enum class Op : std::uint8_t {
  // Leaves.
  input,     ///< bound from outside
  constant,  ///< `number` everywhere; of any shape
  iota,      ///< the index along dims[0]

  // Of one operand, element by element.
  neg,
  abs,
  sign,
  exp,
  log,
  tanh,
  logistic,
  erf,
  sqrt,
  rsqrt,
  sin,
  cos,
  floor,
  ceil,
  round,  ///< to nearest, ties to even
  is_finite,
  logical_not,
  convert,  ///< to the node's dtype, as shardwise::convert: integers wrap around

  // The value itself.
  identity,              ///< carries a mark of its own
  stop_gradient,         ///< has no gradient
  optimization_barrier,  ///< nothing is fused across it

  // Of two operands of one shape and dtype.
  add,
  sub,
  mul,
  div,  ///< of integers: truncates, -1 (all bits set) by zero
  rem,  ///< has the sign of the dividend, is the dividend by zero
  max,  ///< NaN if one is; -0 is less than 0
  min,  ///< likewise
  pow,  ///< the exponent of a floating base may be an integer; integers too, unlike lax
  eq,
  ne,
  lt,
  le,
  gt,
  ge,  ///< gives boolean
  logical_and,
  logical_or,
  logical_xor,

  select,  ///< (boolean, if true, if false)

  // Layout.
  broadcast,  ///< dim i of the operand is dim dims[i] of the result; it has that extent, or 1
  transpose,  ///< dim i of the result is dim dims[i] of the operand
  reshape,
  slice,        ///< begin, end, stride
  pad,          ///< begin: elements before, end: after, stride: distance of elements; `number`
  concatenate,  ///< along dims[0]
  reverse,      ///< dims

  // Reductions.
  reduce_sum,
  reduce_max,
  reduce_min,  ///< over dims, which go
  argmax,      ///< index of the first largest along dims[0], i32
  cumsum,      ///< along dims[0]

  dot_general,  ///< `text`: an equation, see einsum.h

  // By index. Index operands are i32 or i64; an index outside [0, extent) is an error when run.
  take,                  ///< (x, ids): along dims[0], which becomes the dims of ids
  scatter_add,           ///< (ids, updates): the sum of updates by id; dims[0], of extent dims[1]
  take_along,            ///< (x, ids) of one rank: x at ids along dims[0]
  scatter_add_along,     ///< (ids, updates) of one shape: likewise; dims[0], of extent dims[1]
  dynamic_slice,         ///< (x, start of each dim..): of shape `end`; starts are clamped
  dynamic_update_slice,  ///< (x, update, start of each dim..); starts are clamped

  argsort,      ///< the order along dims[0], i32; stable; number != 0: descending;
                ///< NaN is the largest, and -0 equals 0
  random_bits,  ///< (key, u64 scalar): u32, Philox4x32-10 of the key and the element's index

  // Manual regions: between the first two, tensors are what each device has (nodes are `manual`),
  // and ops work on that. `text`: a spec; its dims divide evenly.
  enter_manual,  ///< a device's shard, as a tensor of its shape
  leave_manual,  ///< the tensor of these shards; dims[0] replicas of each: equal, or to be summed
                 ///< if number != 0
  manual_all_reduce,  ///< over the axes of `text` ("data+model"); number: a Reduction
};
inline constexpr std::size_t kOps = static_cast<std::size_t>(Op::manual_all_reduce) + 1;

/// "dot_general", ...
std::string_view name(Op op);

/// A number of a program: a double, or an integer of up to 64 bits, which a double could not hold.
/// Two are equal if their bits are: NaN equals itself, and -0.0 does not equal 0.0.
class Scalar {
 public:
  Scalar() = default;  ///< 0.0
  template <std::floating_point Number>
  Scalar(Number value)  // NOLINT(google-explicit-constructor): numbers are written as numbers
      : bits_(std::bit_cast<std::uint64_t>(static_cast<double>(value))) {}
  template <std::integral Number>
  Scalar(Number value)  // NOLINT(google-explicit-constructor)
      : dtype_(std::signed_integral<Number> ? DType::i64 : DType::u64),
        bits_(static_cast<std::uint64_t>(value)) {}

  /// f64, i64 or u64.
  DType dtype() const { return dtype_; }
  std::uint64_t bits() const { return bits_; }

  bool is_zero() const { return as_double() == 0; }  ///< of either sign

  /// The nearest double.
  double as_double() const;

  /// As convert() gives it: one element of a dtype that is computed with.
  void write(DType dtype, std::byte* element) const;

  /// What a constant of a dtype holds for it: an i64 or u64 for integers and booleans, else a
  /// double (an integer is rounded to the dtype first). Nothing if an integer type or bool cannot
  /// hold it exactly.
  std::optional<Scalar> of(DType dtype) const;

  /// "0.5", "-0", "nan", "18446744073709551615"
  std::string to_string() const;

  bool operator==(const Scalar&) const = default;
  template <class Number>
  bool operator==(Number) const = delete;  // would compare dtypes too: ask as_double()

 private:
  DType dtype_ = DType::f64;
  std::uint64_t bits_ = 0;
};

/// What a node says beside its operands; Op says which op reads which attribute.
struct Attributes {
  Dims dims = {}, begin = {}, end = {}, stride = {};
  Scalar number = {};
  std::string text = {};

  bool operator==(const Attributes&) const = default;
};

/// Element type and global shape.
struct TensorType {
  DType dtype = DType::f32;
  Shape shape = {};

  bool operator==(const TensorType&) const = default;
};

/// "f32[16, 128]"
std::string to_string(const TensorType& type);

}  // namespace shardwise
