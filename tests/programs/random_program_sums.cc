#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "random_convolution.h"
#include "random_program.h"
#include "reference_numbers.h"

namespace shardwise {

void RandomProgram::add_product() {
  Value a = number(), b = like(a);
  static const std::vector<std::vector<const char*>> kByRank = {
      {",->"},
      {"a,a->", "a,b->ab", "a,a->a", "a,b->ba"},
      {"ab,cb->ac", "ab,ac->cb", "ab,ab->b", "ab,ab->", "ab,cb->ca", "ab,cd->cabd"},
      {"abc,dbc->ad", "abc,adc->abd", "abc,abd->dc", "abc,abc->ca", "abc,abd->adc"}};
  const Shape shape = a.ref.type().shape;
  if (shape.size() >= kByRank.size() || num_elements(shape) > 500) return;
  const auto& equations = kByRank[shape.size()];
  const std::string equation = equations[as_size(below(equations.size()))];
  double summed = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool kept = equation.find(equation[d], equation.find('>')) != std::string::npos;
    if (!kept) summed *= static_cast<double>(shape[d]);
  }
  fit_product(a, b, std::max(1.0, summed));
  std::optional<DType> result;
  const DType dtype = a.ref.type().dtype;
  if (below(4) == 0) {
    if (dtype == DType::bf16 || dtype == DType::f16) result = DType::f32;
    if (dtype == DType::f32) result = DType::f64;
    if (dtype == DType::i8 || dtype == DType::i16) result = DType::i32;
    if (dtype == DType::u8) result = DType::u16;
  }
  keep(einsum(equation, a.ref, b.ref, result), std::max(1.0, a.bound * b.bound * summed));
}

/// Adds cumulative ops along a dim, and the product of all.
void RandomProgram::add_cumulative(Value value, std::int64_t dim) {
  if (value.ref.type().dtype == DType::boolean) return;
  const bool reverse = below(2) == 0;
  const auto extent = static_cast<double>(value.ref.type().shape[as_size(dim)]);
  const bool floats = is_floating_type(value.ref.type().dtype);
  switch (below(6)) {
    case 0: {
      if (has_special_values_ && floats) return;
      Value one{full_like(value.ref, 1), 1};
      fit_product(value, one, extent);
      return keep(cumsum(value.ref, dim, reverse), std::max(1.0, value.bound * extent));
    }
    case 1:
      // Of -1, 0 and 1, unless products wrap around.
      if (floats) return keep(cumprod(sign(value.ref), dim, reverse), 1);
      return keep(cumprod(value.ref, dim, reverse), 1e20);
    case 2:
      return keep(cummax(value.ref, dim, reverse), value.bound);
    case 3:
      return keep(cummin(value.ref, dim, reverse), value.bound);
    case 4:
      if (floats) return keep_rounded(cumlogsumexp(value.ref / 8.0, dim, reverse));
      return keep(reduce_prod(value.ref, all_dims(value.ref.type().shape.size())), 1e20);
    default:
      if (floats) return keep(reduce_prod(sign(value.ref), {dim}), 1);
      return keep(reduce_prod(value.ref, {dim}), 1e20);
  }
}

void RandomProgram::add_convolution() {
  Value a = number(), b = like(a);
  Shape lhs = a.ref.type().shape;
  const std::int64_t elements = num_elements(lhs);
  if (elements > 300 || elements == 0) return;
  while (lhs.size() < 3) lhs.push_back(1);
  std::shuffle(lhs.begin(), lhs.end(), random_);
  const RandomConvolution c = random_convolution(random_, lhs);
  // The kernel is as many elements of the other value, again and again.
  const std::int64_t needed = num_elements(c.rhs);
  if (needed > 300) return;
  fit_product(a, b, static_cast<double>(needed));
  const NodeRef flat = reshape(b.ref, {elements});
  const std::vector<NodeRef> copies(as_size((needed - 1) / elements + 1), flat);
  const NodeRef kernel = reshape(slice(concatenate(copies, 0), {0}, {needed}), c.rhs);
  const NodeRef made = convolution(reshape(a.ref, lhs), kernel, c.attributes);
  keep(made, std::max(1.0, a.bound * b.bound * static_cast<double>(needed)));
}

void RandomProgram::add_windows() {
  Value value = number();
  const Shape shape = value.ref.type().shape;
  if (num_elements(shape) > 300) return;
  const WindowAttributes a = random_windows(random_, shape);
  const auto elements = static_cast<double>(num_elements(a.window));  // most that one is made of
  const bool is_sum = below(2) == 0;
  Value one{full_like(value.ref, 1), 1};
  fit_product(value, one, elements);
  if (is_sum) return keep(reduce_window_sum(value.ref, a), value.bound * elements);
  const NodeRef most = reduce_window_max(value.ref, a);
  if (below(2) == 0) {
    return keep(
        select_and_scatter_add(
            value.ref, max(most, full_like(most, is_unsigned_type(most.type().dtype) ? 0 : -8)), a),
        std::max(value.bound, 8.0) * elements);
  }
  // A window may hold nothing.
  keep(max(most, full_like(most, 0)), value.bound);
}

/// Without one dim: combined, where that is cut.
RandomProgram::Value RandomProgram::contract(const Value& value, std::int64_t dim) {
  const auto extent = static_cast<double>(value.ref.type().shape[as_size(dim)]);
  if (below(6) == 0) return {reduce_max(value.ref, {dim}), value.bound};
  if (below(2) == 0) return {reduce_sum(value.ref, {dim}), value.bound * extent};
  static const char* const kEquations[3][3] = {
      {"a,a->"}, {"ab,ab->b", "ab,ab->a"}, {"abc,abc->bc", "abc,abc->ac", "abc,abc->ab"}};
  const char* const equation = kEquations[value.ref.type().shape.size() - 1][dim];
  return {einsum(equation, value.ref, sign(value.ref + 1.0)), value.bound * extent};
}

/// A result that is parts of a sum if the value is; `source` without `dim` is one more such.
RandomProgram::Value RandomProgram::linear(const Value& value, const Value& source,
                                           std::int64_t dim) {
  const NodeRef& x = value.ref;
  const Shape shape = x.type().shape;
  const std::size_t rank = shape.size();
  Dims zeros = Dims::filled(rank, 0), half = shape;
  for (std::int64_t& extent : half) extent = (extent + 1) / 2;
  switch (below(12)) {
    case 0:
      return {neg(x), value.bound};
    case 1: {
      Dims order = all_dims(rank);
      std::reverse(order.begin(), order.end());
      return {transpose(x, order), value.bound};
    }
    case 2:
      return {reshape(x, {num_elements(shape)}), value.bound};
    case 3:
      return {below(2) == 0 ? identity(x) : optimization_barrier(x), value.bound};
    case 4:
      return {stop_gradient(x), value.bound};
    case 5: {
      if (rank == 0) return value;
      return {reduce_sum(x, {0}), value.bound * static_cast<double>(shape[0])};
    }
    case 6:
      return {slice(x, zeros, half), value.bound};
    case 7:
      return {reverse(x, all_dims(rank)), value.bound};
    case 8: {
      if (rank == 0 || shape[0] > 12) return {x * 2.0, value.bound * 2};
      const NodeRef whole = iota(x, x.type(), 0) - 3.0;
      return {below(2) == 0 ? x * whole : whole * x, value.bound * 9};
    }
    case 9:
      return {pad(x, Dims::filled(rank, 1), zeros, below(2) == 0 ? 0 : 2), value.bound + 2};
    default: {
      Value other = contract(source, dim);
      if (!(other.ref.type() == x.type())) return value;
      const double sum = value.bound + other.bound;
      if (rank > 0 && below(3) == 0) {
        const std::vector<NodeRef> parts{x, other.ref};
        return {concatenate(parts, dim_of(shape)), sum};
      }
      return {below(2) == 0 ? x + other.ref : other.ref - x, sum};
    }
  }
}

/// Sums over a dim, and ops linear in them: if the dim is cut, parts of sums go far.
void RandomProgram::add_sums() {
  Value source = number();
  const DType dtype = source.ref.type().dtype;
  if (is_floating_type(dtype) && dtype != DType::f64) source.ref = convert(source.ref, DType::f32);
  if (is_unsigned_type(dtype)) source.ref = convert(source.ref, DType::i32);
  const Shape shape = source.ref.type().shape;
  if (shape.empty() || shape.size() > 3 || num_elements(shape) == 0) return;
  source = within(source, 8);
  const std::int64_t dim = dim_of(shape);
  Value sum = contract(source, dim);
  for (int i = below(5); i > 0; --i) {
    const Value next = linear(sum, source, dim);
    if (next.bound < exact_limit(DType::f32) / 16) sum = next;
  }
  keep(sum.ref, sum.bound);
}

}  // namespace shardwise
