#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {

/// The computation of a graph's node. Names and meaning are those of jax.lax if it has the op. The
/// attributes of each op are in graph/attributes.h. docs/programs.md has a table of all ops, and
/// says where the meaning differs ("Numbers").
enum class Op : std::uint8_t {
  // Leaves.
  input,     ///< bound from outside
  constant,  ///< one number everywhere; of any shape
  literal,   ///< elements that the graph holds, of any dtype
  iota,      ///< the index along a dim

  // One operand, element by element.
  neg,
  abs,
  sign,
  exp,
  exp2,
  expm1,  ///< exp(x) - 1, exact near 0
  log,
  log1p,  ///< log(1 + x), exact near 0
  tanh,
  logistic,
  erf,
  erf_inv,
  sqrt,
  rsqrt,
  cbrt,
  sin,
  cos,
  floor,
  ceil,
  round,  ///< to nearest, ties to even
  is_finite,
  logical_not,       ///< of integers, bit by bit; so are the other logical_ ops
  population_count,  ///< bits of an integer that are set
  convert,           ///< to the node's dtype, as shardwise::convert: integers wrap around

  // The value itself.
  bitcast,               ///< its bits, as those of another dtype of the same width
  identity,              ///< carries a mark of its own
  stop_gradient,         ///< has no gradient
  optimization_barrier,  ///< nothing is fused across it

  // Two operands of one shape and dtype.
  add,
  sub,
  mul,
  div,    ///< integers truncate; by zero: -1 (all bits set)
  rem,    ///< has the sign of the dividend; by zero: the dividend
  max,    ///< NaN if one is; -0 is less than 0
  min,    ///< likewise
  pow,    ///< the exponent of a floating base may be an integer; integers too, unlike lax
  atan2,  ///< (y, x): the angle
  eq,
  ne,
  lt,
  le,
  gt,
  ge,  ///< gives boolean
  logical_and,
  logical_or,
  logical_xor,
  shift_left,  ///< integers; a shift by the width or more, or by less than 0, gives 0
  shift_right_logical,
  shift_right_arithmetic,  ///< likewise; bits of the sign move in

  select,  ///< (boolean, if true, if false)

  // Layout.
  broadcast,  ///< dim i of the operand is dim dims[i] of the result; it has that extent, or 1
  transpose,  ///< dim i of the result is dim dims[i] of the operand
  reshape,
  slice,
  pad,
  concatenate,  ///< along a dim
  reverse,      ///< dims

  // Reductions.
  reduce_sum,
  reduce_max,
  reduce_min,  ///< over dims, which are removed
  reduce_prod,
  index_of,  ///< (x, y): first index along a dim of x where x equals y, i32
  cumsum,    ///< along a dim, from its first element on or from its last
  cumprod,
  cummax,
  cummin,
  cumlogsumexp,

  dot_general,  ///< by an equation
  convolution,  ///< (operand, kernel): jax.lax.conv_general_dilated

  // Matrices in the last two dims, f32 or f64.
  decompose,         ///< into factors, as LAPACK has them: one matrix for all (Decomposition)
  triangular_solve,  ///< (a, b): x of a x = b, or of x a = b; one triangle of a is read

  // Over windows: each element of the result combines the elements in a window at its place.
  reduce_window_sum,
  reduce_window_max,
  select_and_scatter_add,  ///< (x, source): each is added to where its window of x is largest first

  // By index. Index operands are i32 or i64; an index outside [0, extent) is an error at run time.
  take,                  ///< (x, ids): along a dim, which becomes the dims of ids
  scatter_add,           ///< (ids, updates): the sum of updates by id, along a dim of an extent
  scatter,               ///< (x, ids, updates): x, with updates set, added, .. by id along a dim
  take_along,            ///< (x, ids) of one rank: x at ids along a dim
  scatter_add_along,     ///< (ids, updates) of one shape: likewise
  dynamic_slice,         ///< (x, start of each dim..): of a shape; starts are clamped
  dynamic_update_slice,  ///< (x, update, start of each dim..); starts are clamped

  argsort,      ///< the order along a dim, i32; stable; NaN is the largest, and -0 equals 0
  random_bits,  ///< (key, u64 scalar): u32, Philox4x32-10 of the key and the element's index

  // Control: bodies are graphs of their own, in the attributes (ops/control.h).
  scan,    ///< (values used from outside.., first carries.., stacked values..): has results
  cond,    ///< (boolean scalar, values used from outside..): has results
  result,  ///< (a scan or cond): its result number i; a scan's carries come first

  // Manual regions: between the first two, a tensor is each device's own part (nodes are `manual`),
  // and ops work on that.
  enter_manual,       ///< a device's shard, as a tensor of its shape
  leave_manual,       ///< the tensor of these shards
  manual_all_reduce,  ///< over axes of the mesh
};
inline constexpr std::size_t kOps = static_cast<std::size_t>(Op::manual_all_reduce) + 1;

/// True if nodes of the op have bodies, and `result` nodes for their results.
constexpr bool has_bodies(Op op) { return op == Op::scan || op == Op::cond; }

namespace detail {

/// The enumerator's own name, which g++ and clang print in the signature.
template <Op op>
constexpr std::string_view enumerator() {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.rfind("Op::") + 4);
  return text.substr(0, text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789"));
}

template <std::size_t... Number>
constexpr std::array<std::string_view, kOps> enumerators(std::index_sequence<Number...>) {
  return {enumerator<static_cast<Op>(Number)>()...};
}

inline constexpr auto kOpNames = enumerators(std::make_index_sequence<kOps>());
static_assert(kOpNames.front() == "input" && kOpNames.back() == "manual_all_reduce");

}  // namespace detail

/// "dot_general", ...
constexpr std::string_view name(Op op) { return detail::kOpNames[static_cast<std::size_t>(op)]; }

/// A decomposition of a matrix [m, n], and the matrix that it gives; k is the lesser of m and n.
enum class Decomposition : std::uint8_t {
  cholesky,  ///< [n, n]: the lower factor; reads the lower triangle; NaN if there is no factor
  lu,        ///< [m + 1, n]: L below the diagonal, U; last row: k pivots, counted from 0
  qr,        ///< [m + 1, n]: LAPACK's reflections below R; last row: their k factors
  eigh,  ///< [n + 1, n]: eigenvectors; last row: eigenvalues, ascending; reads the lower triangle
  svd,   ///< [m + n + 1, k]: u, v (not transposed); last row: singular values, descending
};

/// Element type and global shape.
struct TensorType {
  DType dtype = DType::f32;
  Shape shape = {};

  bool operator==(const TensorType&) const = default;
};

/// "f32[16, 128]"
std::string to_string(const TensorType& type);
std::ostream& operator<<(std::ostream& out, const TensorType& type);

}  // namespace shardwise
