#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shardwise/runtime/graph/op.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

struct Graph;

/// A number of a program: a double, or an integer of up to 64 bits that a double could not hold.
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

  /// Writes one element of a dtype that kernels compute with, as convert() does.
  void write(DType dtype, std::byte* element) const;

  /// The value of a constant of this dtype: an i64 or u64 for integers and booleans, else a double
  /// (an integer is rounded to the dtype first). Absent if an integer type or bool cannot hold it
  /// exactly.
  std::optional<Scalar> of(DType dtype) const;

  /// "0.5", "-0", "nan", "18446744073709551615"; the shortest text from which parse() makes the
  /// same number. A NaN with other bits than the usual ones shows them: "nan(0x7ff8000000000001)".
  std::string to_string() const;

  /// Reads the output of to_string() for a constant of the dtype: a double for a floating one, else
  /// an integer. Absent for any other text, and beyond 64 bits.
  static std::optional<Scalar> parse(std::string_view text, DType dtype);

  bool operator==(const Scalar&) const = default;
  template <class Number>
  bool operator==(Number) const = delete;  // would compare dtypes too: ask as_double()

 private:
  /// A double. Copied as a double, a signalling NaN could change.
  static Scalar of_bits(std::uint64_t bits) {
    Scalar number;
    number.bits_ = bits;
    return number;
  }

  DType dtype_ = DType::f64;
  std::uint64_t bits_ = 0;
};

/// A product of two tensors that sums over some dims, in numpy.einsum's notation: one letter per
/// dim. Each letter occurs at most once in each operand and in the result; a letter of the result
/// is in an operand; a letter of only one operand is in the result.
///
///   Equation::parse("btd,df->btf");
struct Equation {
  std::string lhs, rhs, result;

  /// Throws invalid_argument if the text is not such an equation.
  static Equation parse(std::string_view text);

  /// "btd,df->btf"
  std::string to_string() const;

  bool operator==(const Equation&) const = default;
};

// The parameters of a node in addition to its operands. Each op takes one of these
// (ops/detail/row.h).

struct NoAttributes {
  bool operator==(const NoAttributes&) const = default;
};

/// constant
struct NumberAttributes {
  Scalar number;

  bool operator==(const NumberAttributes&) const = default;
};

/// literal: the elements, row-major. Two are equal if their bits are. Copies share the bytes.
class LiteralAttributes {
 public:
  LiteralAttributes() : LiteralAttributes(std::span<const std::byte>()) {}
  explicit LiteralAttributes(std::span<const std::byte> bytes);

  std::span<const std::byte> bytes() const { return *bytes_; }
  std::uint64_t hash() const { return hash_; }  ///< of the bytes; the same in every build

  bool operator==(const LiteralAttributes& other) const;

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::uint64_t hash_;
};

/// iota, concatenate, index_of, take, take_along: along one dim.
struct DimAttributes {
  std::int64_t dim;

  bool operator==(const DimAttributes&) const = default;
};

/// broadcast, transpose, reverse, reductions.
struct DimsAttributes {
  Dims dims;

  bool operator==(const DimsAttributes&) const = default;
};

/// slice: in each dim the elements begin, begin + stride, .. below end.
struct SliceAttributes {
  Dims begin, end, stride;

  bool operator==(const SliceAttributes&) const = default;
};

/// pad: in each dim `low` elements before, `high` after, elements of the operand `stride` apart.
struct PadAttributes {
  Dims low, high, stride;
  Scalar number;

  bool operator==(const PadAttributes&) const = default;
};

/// dot_general: in the operands' dtype unless the result names another one.
struct DotAttributes {
  Equation equation;
  std::optional<DType> result = {};

  bool operator==(const DotAttributes&) const = default;
};

/// convolution. Each list begins with two dims: the images and the features of the operand (lhs);
/// the features of the result and of the operand (in one group) for the kernel (rhs); the images
/// and the features of the result (out). The spatial dims of all three follow. The other lists go
/// by spatial dim; padding may be negative.
struct ConvolutionAttributes {
  Dims lhs, rhs, out;
  Dims stride, low, high, lhs_dilation, rhs_dilation;
  std::int64_t feature_groups = 1, batch_groups = 1;

  bool operator==(const ConvolutionAttributes&) const = default;
};

/// decompose
struct DecompositionAttributes {
  Decomposition kind = Decomposition::cholesky;

  bool operator==(const DecompositionAttributes&) const = default;
};

/// triangular_solve: the triangle is on the right of x, is an upper one, is transposed, has ones.
struct TriangularAttributes {
  bool right = false, upper = false, transpose = false, unit = false;

  bool operator==(const TriangularAttributes&) const = default;
};

/// reduce_window_sum, reduce_window_max, select_and_scatter_add: by dim of the operand, the extent
/// of the window, whose elements are `dilation` apart, and the distance of windows; empty elements
/// before the operand and after it. Padding may be negative.
struct WindowAttributes {
  Dims window, stride, low, high, dilation;

  bool operator==(const WindowAttributes&) const = default;
};

/// scatter_add, scatter_add_along: the result has `extent` elements along `dim`.
struct ScatterAttributes {
  std::int64_t dim, extent;

  bool operator==(const ScatterAttributes&) const = default;
};

/// The effect of updates on an element, one after the other.
enum class Combination : std::uint8_t { set, add, mul, min, max };

/// For an id outside [0, extent): an error at run time, the nearest id inside, or no update.
enum class OutOfRange : std::uint8_t { error, clip, drop };

/// scatter: along one dim.
struct ScatterIntoAttributes {
  std::int64_t dim;
  Combination combination = Combination::set;
  OutOfRange mode = OutOfRange::error;

  bool operator==(const ScatterIntoAttributes&) const = default;
};

/// dynamic_slice: the result's shape.
struct ShapeAttributes {
  Shape shape;

  bool operator==(const ShapeAttributes&) const = default;
};

/// argsort
struct SortAttributes {
  std::int64_t dim;
  bool descending = false;

  bool operator==(const SortAttributes&) const = default;
};

/// cumsum, cumprod, cummax, cummin, cumlogsumexp: along one dim; in reverse from its last element
/// on.
struct CumulativeAttributes {
  std::int64_t dim;
  bool reverse = false;

  bool operator==(const CumulativeAttributes&) const = default;
};

/// enter_manual, leave_manual: how the tensor is cut; its dims divide evenly. A shard that leaves
/// has `replicas` copies, which are equal, or parts of a sum if `sums`.
struct ManualAttributes {
  PartitionSpec spec;
  std::int64_t replicas = 1;
  bool sums = false;

  bool operator==(const ManualAttributes&) const = default;
};

/// manual_all_reduce: over these axes of the mesh.
struct ReduceAttributes {
  std::vector<std::string> axes;
  Reduction reduction = Reduction::sum;

  bool operator==(const ReduceAttributes&) const = default;
};

/// scan: runs the body `length` times. The body's inputs are, like the operands, the values that it
/// uses from outside, then `carries` carried values, then one slice of each of the `xs`; its
/// outputs are the carried values for the next time, then one slice of each stacked result. In
/// reverse it begins with the last slices. Two are equal if their bodies are the same program.
struct ScanAttributes {
  std::shared_ptr<const Graph> body = {};
  std::int64_t length = 0, carries = 0, xs = 0;
  bool reverse = false;

  bool operator==(const ScanAttributes& other) const;
};

/// cond: runs the first body if the scalar is true. Both take the other operands.
struct CondAttributes {
  std::shared_ptr<const Graph> body = {}, otherwise = {};

  bool operator==(const CondAttributes& other) const;
};

/// result: the number of the result.
struct ResultAttributes {
  std::int64_t index;

  bool operator==(const ResultAttributes&) const = default;
};

using Attributes =
    std::variant<NoAttributes, NumberAttributes, LiteralAttributes, DimAttributes, DimsAttributes,
                 SliceAttributes, PadAttributes, DotAttributes, ConvolutionAttributes,
                 DecompositionAttributes, TriangularAttributes, WindowAttributes, ScatterAttributes,
                 ScatterIntoAttributes, ShapeAttributes, SortAttributes, CumulativeAttributes,
                 ScanAttributes, CondAttributes, ResultAttributes, ManualAttributes,
                 ReduceAttributes>;

/// The attributes in a dump, with a space before each: ` dims=[0, 1]`; "" without attributes.
std::string to_string(const Attributes& attributes);

}  // namespace shardwise
