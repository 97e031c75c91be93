#include <algorithm>
#include <vector>

#include "random_program.h"
#include "reference_numbers.h"

// Ops by index.

namespace shardwise {

void RandomProgram::add_indexed() {
  Value value = number();
  const Value all = any(), other = number();
  const Shape shape = value.ref.type().shape;
  const NodeRef& y = other.ref;
  if (shape.empty() || num_elements(shape) > 500 || num_elements(y.type().shape) > 100) return;
  const std::int64_t dim = dim_of(shape), extent = shape[as_size(dim)];
  if (extent == 0 || shape.size() + y.type().shape.size() > 6) return;
  const auto scattered = [&](double updates) {
    Value one{full_like(value.ref, 1), 1};
    fit_product(value, one, updates);
    return value.bound * updates;
  };
  const bool sums = !(has_special_values_ && is_floating_type(value.ref.type().dtype));
  switch (below(10)) {
    case 8:
      return add_scatter(value, y, dim);
    case 9: {
      const NodeRef ids = ids_like(y, extent + 3) - 1.0;
      if (below(2) == 0) return keep(take_clipped(value.ref, ids, dim), value.bound);
      return keep(take_or(value.ref, ids, dim, 5), std::max(value.bound, 5.0));
    }
    case 0:
      return keep(take(value.ref, ids_like(y, extent), dim), value.bound);
    case 1: {
      if (!sums) return;
      const NodeRef ids = ids_like(y, extent);
      const double bound = scattered(static_cast<double>(num_elements(y.type().shape)) + 1);
      return keep(scatter_add(ids, take(value.ref, ids, dim), dim, extent + below(3)), bound);
    }
    case 2:
      if (below(2) == 0) {
        return keep(take_along(value.ref, ids_like(value.ref, extent), dim), value.bound);
      }
      return keep(take_along_or(value.ref, ids_like(value.ref, extent + 3) - 1.0, dim, 5),
                  std::max(value.bound, 5.0));
    case 3: {
      if (!sums) return;
      const double bound = scattered(static_cast<double>(extent));
      return keep(scatter_add_along(ids_like(value.ref, extent), value.ref, dim, extent + below(3)),
                  bound);
    }
    case 4:
      return keep(argsort(value.ref, dim, below(2) == 0), static_cast<double>(extent));
    case 5:
      if (shape.size() > 1 && below(4) == 0) return add_decomposition(floating().ref);
      return keep(sort(value.ref, dim, below(2) == 0).values, value.bound);
    case 6: {
      // Booleans too.
      const Shape& mine = all.ref.type().shape;
      if (mine.empty() || mine[0] == 0) return;
      return keep(take(all.ref, ids_like(y, mine[0]), 0), all.bound);
    }
    default:
      return add_dynamic();
  }
}

/// Decomposes matrices, which are cut along the dims before them.
void RandomProgram::add_decomposition(NodeRef x) {
  const Shape shape = x.type().shape;
  if (shape.size() < 2 || num_elements(shape) > 500) return;
  if (x.type().dtype != DType::f64) x = convert(x, DType::f32);
  const bool is_square = shape[shape.size() - 1] == shape[shape.size() - 2];
  const auto kind = static_cast<Decomposition>(below(5));
  const bool needs_square = kind == Decomposition::cholesky || kind == Decomposition::eigh;
  const auto flag = [&] { return below(2) == 0; };
  if (is_square && below(3) == 0) {
    const TriangularAttributes attributes{flag(), flag(), flag(), flag()};
    keep_rounded(stop_gradient(append_to(x, Op::triangular_solve, {x, x}, attributes)));
  } else if (is_square || !needs_square) {
    keep_rounded(stop_gradient(append_to(x, Op::decompose, {x}, DecompositionAttributes{kind})));
  }
}

/// Scatters rows that were taken before and have changed since; ids may be outside.
void RandomProgram::add_scatter(Value value, const NodeRef& source, std::int64_t dim) {
  const std::int64_t extent = value.ref.type().shape[as_size(dim)];
  const auto mode = static_cast<OutOfRange>(below(3));
  const bool is_error = mode == OutOfRange::error;
  const NodeRef ids = ids_like(source, is_error ? extent : extent + 3) - (is_error ? 0.0 : 1.0);
  auto combination = static_cast<Combination>(below(5));
  const bool floats = is_floating_type(value.ref.type().dtype);
  // Products of floats are not exact in any order of roundings.
  if (floats && combination == Combination::mul) combination = Combination::max;
  if (floats && has_special_values_ && combination == Combination::add) {
    combination = Combination::set;
  }
  Value one{full_like(value.ref, 1), 1};
  const auto updates = static_cast<double>(num_elements(ids.type().shape)) + 2;
  fit_product(value, one, updates);
  const NodeRef rows = take_clipped(value.ref, ids, dim) + 1.0;
  const double bound = combination == Combination::mul ? 1e20 : (value.bound + 1) * updates;
  keep(scatter(value.ref, ids, rows, dim, combination, mode), bound);
}

void RandomProgram::add_dynamic() {
  const Value value = any();
  const NodeRef& x = value.ref;
  const Shape shape = x.type().shape;
  if (num_elements(shape) > 500) return;
  std::vector<NodeRef> starts;
  Shape part;
  for (const std::int64_t whole : shape) {
    const NodeRef start = reduce_sum(ids_like(x, 5), all_dims(shape.size()));
    starts.push_back(below(2) == 0 ? start : start - 7.0);
    part.push_back(below(3) == 0 ? whole : below(whole + 1));
  }
  const NodeRef cut = dynamic_slice(x, starts, part);
  if (below(2) == 0) return keep(cut, value.bound);
  if (x.type().dtype == DType::boolean) {
    return keep(dynamic_update_slice(x, logical_not(cut), starts), 1);
  }
  keep(dynamic_update_slice(x, cut + 1.0, starts), value.bound + 1);
}

}  // namespace shardwise
