#include "random_program.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

void RandomProgram::add_op() {
  switch (below(8)) {
    case 0:
      return add_unary();
    case 1:
    case 2:
      return add_binary();
    case 3:
      return add_layout();
    case 4:
      return add_reduction();
    case 5:
      return add_product();
    case 6:
      return add_indexed();
    default:
      return add_leaf();
  }
}

void RandomProgram::add_unary() {
  const Value value = floating();
  const NodeRef& x = value.ref;
  switch (below(22)) {
    case 0:
      return keep(neg(x), value.bound);
    case 1:
      return keep(abs(x), value.bound);
    case 2:
      return keep(sign(x), 1);
    case 3:
      return keep(floor(x / 3.0), value.bound);
    case 4:
      return keep(ceil(x / 3.0), value.bound);
    case 5:
      return keep(round(x / 2.0), value.bound);
    case 6:
      return keep(is_finite(x / x), 1);
    case 7:
      return keep(logical_not(gt(x, full_like(x, 1))), 1);
    case 8:
      return keep(convert(x, DType::i32), value.bound);
    case 9:
      return keep(convert(x, x.type().dtype == DType::f32 ? DType::f64 : DType::f32), value.bound);
    case 10:
      return keep(identity(x), value.bound);
    case 11:
      return keep(optimization_barrier(x), value.bound);
    case 12:
      return keep(stop_gradient(x), value.bound);
    case 13:
      return keep_rounded(exp(x / 4.0));
    case 14:
      return keep_rounded(log(x));
    case 15:
      return keep_rounded(tanh(x));
    case 16:
      return keep_rounded(logistic(x));
    case 17:
      return keep_rounded(erf(x / 8.0));
    case 18:
      return keep_rounded(sqrt(x) + rsqrt(x));
    case 19:
      return keep_rounded(sin(x) * cos(x));
    case 20:
      // bf16 holds integers up to 256, f16 up to 2048.
      return keep(convert(convert(rem(x, full_like(x, 17)), DType::bf16), DType::f32), 16);
    default:
      return keep(convert(convert(rem(x, full_like(x, 17)), DType::f16), DType::f64), 16);
  }
}

void RandomProgram::add_binary() {
  const Value a = floating(), b = like(a);
  const NodeRef &x = a.ref, &y = b.ref;
  const NodeRef nonzero = select(eq(y, full_like(y, 0)), full_like(y, 1), y);
  switch (below(14)) {
    case 0:
      return keep(x + y, a.bound + b.bound);
    case 1:
      return keep(x - y, a.bound + b.bound);
    case 2:
      return keep(x * y, a.bound * b.bound);
    case 3:
      return keep(floor(x / nonzero), a.bound);
    case 4:
      return keep(rem(x, nonzero), a.bound);
    case 5:
      return keep(max(x, y), std::max(a.bound, b.bound));
    case 6:
      return keep(min(x, y), std::max(a.bound, b.bound));
    case 7:
      return keep_rounded(pow(abs(x) / 8.0, y / 8.0));
    case 8:
      return keep(logical_or(eq(x, y), lt(x, y)), 1);
    case 9:
      return keep(logical_and(ne(x, y), le(x, y)), 1);
    case 10:
      return keep(logical_xor(gt(x, y), ge(y, x)), 1);
    case 11:
      return keep(select(gt(x, y), x, y), std::max(a.bound, b.bound));
    default: {
      // A smaller one is broadcast as numpy does.
      if (x.type().shape.empty()) return keep(x + y, a.bound + b.bound);
      Dims dims;
      for (std::size_t d = 1; d < x.type().shape.size(); ++d) {
        dims.push_back(static_cast<std::int64_t>(d));
      }
      return keep(y * reduce_max(convert(gt(x, y), x.type().dtype), {0}) + 1.0, 1e9);
    }
  }
}

void RandomProgram::add_layout() {
  const Value value = any();
  const NodeRef& x = value.ref;
  const Shape shape = x.type().shape;
  const std::size_t rank = shape.size();
  const double number = x.type().dtype == DType::boolean ? 1 : 3;
  Dims low, high, stride, order;
  for (std::size_t d = 0; d < rank; ++d) order.push_back(static_cast<std::int64_t>(d));
  switch (below(7)) {
    case 0: {
      if (rank > 3) return;
      Shape wider;
      Dims dims;
      for (std::size_t d = 0; d < rank; ++d) {
        if (below(3) == 0) wider.push_back(1 + below(5));
        dims.push_back(static_cast<std::int64_t>(wider.size()));
        wider.push_back(shape[d] == 1 ? 1 + below(5) : shape[d]);
      }
      wider.push_back(1 + below(3));
      return keep(broadcast(x, wider, dims), value.bound);
    }
    case 1: {
      std::shuffle(order.begin(), order.end(), random_);
      return keep(transpose(x, order), value.bound);
    }
    case 2: {
      // The elements, split into factors and put together anew.
      std::vector<std::int64_t> factors;
      for (std::int64_t extent : shape) {
        for (const std::int64_t prime : {2, 2, 3, 5, 7}) {
          if (extent % prime == 0 && extent > 0 && below(2) == 0) {
            factors.push_back(prime);
            extent /= prime;
          }
        }
        factors.push_back(extent);
      }
      Shape other;
      for (const std::int64_t factor : factors) {
        if (!other.empty() && (below(2) == 0 || other.size() == 5)) {
          other[other.size() - 1] *= factor;
        } else {
          other.push_back(factor);
        }
      }
      return keep(reshape(x, other), value.bound);
    }
    case 3: {
      for (const std::int64_t extent : shape) {
        low.push_back(below(extent + 1));
        high.push_back(low[low.size() - 1] + below(extent - low[low.size() - 1] + 1));
        stride.push_back(1 + below(3));
      }
      return keep(slice(x, low, high, stride), value.bound);
    }
    case 4: {
      for (std::size_t d = 0; d < rank; ++d) {
        low.push_back(below(3));
        high.push_back(below(3));
        stride.push_back(1 + below(2));
      }
      return keep(pad(x, low, high, stride, below(2) * number), std::max(value.bound, 3.0));
    }
    case 5: {
      if (rank == 0 || x.type().dtype == DType::boolean) return;
      const Value other = like(value);
      return keep(concatenate<NodeRef>({x, other.ref, x}, dim_of(shape)),
                  std::max(value.bound, other.bound));
    }
    default: {
      Dims dims;
      for (const std::int64_t d : order) {
        if (below(2) == 0) dims.push_back(d);
      }
      return keep(reverse(x, dims), value.bound);
    }
  }
}

void RandomProgram::add_reduction() {
  const Value value = floating();
  const NodeRef& x = value.ref;
  const Shape shape = x.type().shape;
  Dims dims;
  double elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (below(2) == 0) continue;
    dims.push_back(static_cast<std::int64_t>(d));
    elements *= static_cast<double>(shape[d]);
  }
  const auto finite = [](const NodeRef& y) { return select(is_finite(y), y, full_like(y, 0)); };
  switch (below(5)) {
    case 0:
      return keep(reduce_sum(x, dims), std::max(1.0, value.bound * elements));
    case 1:
      return keep(finite(reduce_max(x, dims)), value.bound);
    case 2:
      return keep(finite(reduce_min(x, dims)), value.bound);
    default: {
      if (shape.empty()) return;
      const std::int64_t dim = dim_of(shape);
      const auto extent = static_cast<double>(shape[as_size(dim)]);
      if (below(2) == 0) return keep(cumsum(x, dim), std::max(1.0, value.bound * extent));
      if (extent > 0) keep(argmax(x, dim), extent);
    }
  }
}

void RandomProgram::add_product() {
  const Value a = floating(), b = like(a);
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
  keep(einsum(equation, a.ref, b.ref), std::max(1.0, a.bound * b.bound * summed));
}

void RandomProgram::add_indexed() {
  const Value value = floating(), other = floating();
  const NodeRef &x = value.ref, &y = other.ref;
  const Shape shape = x.type().shape;
  if (shape.empty() || num_elements(shape) > 500 || num_elements(y.type().shape) > 100) return;
  const std::int64_t dim = dim_of(shape), extent = shape[as_size(dim)];
  if (extent == 0 || shape.size() + y.type().shape.size() > 6) return;
  const auto updates = static_cast<double>(num_elements(y.type().shape)) + 1;
  switch (below(7)) {
    case 0:
      return keep(take(x, ids_like(y, extent), dim), value.bound);
    case 1: {
      const NodeRef ids = ids_like(y, extent);
      return keep(scatter_add(ids, take(x, ids, dim), dim, extent + below(3)),
                  value.bound * updates);
    }
    case 2:
      return keep(take_along(x, ids_like(x, extent), dim), value.bound);
    case 3:
      return keep(scatter_add_along(ids_like(x, extent), x, dim, extent + below(3)),
                  value.bound * static_cast<double>(extent));
    case 4:
      return keep(argsort(x, dim, below(2) == 0), static_cast<double>(extent));
    case 5: {
      std::vector<NodeRef> starts;
      Shape part;
      for (const std::int64_t whole : shape) {
        const NodeRef start = reduce_sum(ids_like(x, 5), [&] {
          Dims all;
          for (std::size_t d = 0; d < shape.size(); ++d) {
            all.push_back(static_cast<std::int64_t>(d));
          }
          return all;
        }());
        starts.push_back(below(2) == 0 ? start : start - 7.0);
        part.push_back(below(3) == 0 ? whole : below(whole + 1));
      }
      const NodeRef cut = dynamic_slice(x, starts, part);
      if (below(2) == 0) return keep(cut, value.bound);
      return keep(dynamic_update_slice(x, cut + 1.0, starts), value.bound + 1);
    }
    default:
      return keep(sort(x, dim).values, value.bound);
  }
}

void RandomProgram::add_leaf() {
  const Shape shape = random_shape();
  switch (below(3)) {
    case 0:
      return keep(constant(root_, {DType::f32, shape}, below(9) - 4), 4);
    case 1:
      if (shape.empty()) return;
      return keep(iota(root_, {below(2) == 0 ? DType::f32 : DType::i32, shape}, dim_of(shape)), 12);
    default: {
      const NodeRef key = constant(root_, {DType::u64, {}}, 7 + below(100));
      const NodeRef bits = random_bits(key, shape);
      return keep(convert(rem(bits, full_like(bits, 9)), DType::f32), 8);
    }
  }
}

}  // namespace shardwise
