#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/functions.h"

// Helpers for the rows of the table. Each group of rows is a source file next to the table.

namespace shardwise::detail {

/// The rows of one group of ops; the table is all of them.
std::vector<OpRow> leaf_rows();
std::vector<OpRow> elementwise_rows();
std::vector<OpRow> layout_rows();
std::vector<OpRow> reduce_rows();
std::vector<OpRow> cumulative_rows();
std::vector<OpRow> dot_rows();
std::vector<OpRow> convolution_rows();
std::vector<OpRow> linear_algebra_rows();
std::vector<OpRow> window_rows();
std::vector<OpRow> index_rows();
std::vector<OpRow> scatter_rows();
std::vector<OpRow> control_rows();
std::vector<OpRow> manual_rows();

/// Throws invalid_argument or unsupported; append() adds the op and the place.
[[noreturn]] void refuse(const std::string& found_and_needed);
[[noreturn]] void refuse_dtype(DType dtype, std::string_view needed);

/// Any dtype but bool.
void need_numbers(DType dtype);

void need_operands(const TypeCall& call, std::size_t count);
void need_same_dtype(const TypeCall& call);

/// A dim of a tensor of this rank.
std::size_t need_dim(std::int64_t dim, std::size_t rank);

/// Strictly ascending, each below rank.
void need_dims(const Dims& dims, std::size_t rank);

/// A number of at least `least` for each of `count` things.
void need_each(const Dims& numbers, std::size_t count, std::int64_t least, std::string_view what);

/// The extent of a dim with elements `dilation` apart.
std::int64_t dilated(std::int64_t extent, std::int64_t dilation);

/// The number of places, `stride` apart, of a window in a dim with `low` elements before it and
/// `high` after it, which may be negative.
struct PaddedExtent {
  std::int64_t extent, low, high;
};
std::int64_t places(const PaddedExtent& dim, std::int64_t window, std::int64_t stride);

/// Throws unless i32 can count the elements along a dim.
void need_small_index(std::int64_t extent);

bool is_index(DType dtype);  ///< i32 or i64

/// Makes a factor rule, factor by factor.
class RuleBuilder {
 public:
  RuleBuilder(const Node& node, std::span<const TensorType> operands);

  /// One more factor. Adds it to a tensor's dim with in() and out().
  std::int32_t factor(std::int64_t size, Factor::Kind kind = Factor::Kind::pass_through);
  void in(std::size_t operand, std::size_t dim, std::int32_t factor);
  void out(std::size_t dim, std::int32_t factor);

  /// One more factor of the operand's dim: its part needs the elements in the window. The window's
  /// extent is the factor's.
  void window(std::size_t operand, std::size_t dim, std::int32_t factor, Window window);

  /// Dim `dim` of the operand and the result's dim are cut in the same way.
  void same(std::size_t operand, std::size_t dim, std::size_t result_dim);
  /// The operand's dim must be whole.
  void whole(std::size_t operand, std::size_t dim);
  /// The result's dim may be cut in any way.
  void free(std::size_t result_dim);

  /// How results of cut reduction factors combine; else they are summed.
  void combine(Reduction reduction) { rule_.reduction = reduction; }

  FactorRule take() { return std::move(rule_); }

 private:
  const Node& node_;
  std::span<const TensorType> operands_;
  FactorRule rule_;
};

/// No operand has a gradient.
Gradients no_gradient(const GradientCall& call);

/// No dim of any tensor may be cut.
FactorRule whole_rule(const Node& node, std::span<const TensorType> operands);

/// Every dim of the result may be cut in any way; there are no operands to cut.
FactorRule free_rule(const Node& node, std::span<const TensorType> operands);

}  // namespace shardwise::detail
