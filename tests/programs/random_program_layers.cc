#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_program.h"
#include "reference_numbers.h"
#include "shardwise/runtime/ops/autodiff.h"

// Parts of networks: dims that are flattened and split again, layers, gradients.

namespace shardwise {
namespace {

/// Bound of losses and their parts: f64 has all integers up to it.
constexpr double kMostLoss = 0x1p45;

/// Dims `dim` and `dim` + 1 as one.
Shape flattened(const Shape& shape, std::size_t dim) {
  Shape flat;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d == dim + 1) {
      flat[dim] *= shape[d];
    } else {
      flat.push_back(shape[d]);
    }
  }
  return flat;
}

}  // namespace

/// Two dims as one, something done with that, and the two again, as linear layers do with batch and
/// sequence.
void RandomProgram::add_flattened() {
  Value value = number();
  const Shape shape = value.ref.type().shape;
  if (shape.size() < 2) return add_reshape();
  const std::size_t dim = as_size(below(shape.size() - 1));
  NodeRef flat = reshape(value.ref, flattened(shape, dim));
  keep(flat, value.bound);
  const bool sums = !(has_special_values_ && is_floating_type(flat.type().dtype));
  switch (below(3)) {
    case 0:
      flat = max(flat, full_like(flat, 1));
      break;
    case 1: {
      if (!sums) break;
      Value one{full_like(flat, 1), 1};
      value.ref = flat;
      fit_product(value, one, static_cast<double>(flat.type().shape[dim]));
      return keep(reduce_sum(value.ref, {static_cast<std::int64_t>(dim)}),
                  std::max(1.0, value.bound * static_cast<double>(flat.type().shape[dim])));
    }
    default:
      flat = identity(flat);
  }
  keep(reshape(flat, shape), std::max(value.bound, 1.0));
}

/// One step of a network on numbers of f64; weights that it makes are added to `weights`.
RandomProgram::Value RandomProgram::layer(const Value& value, std::vector<NodeId>& weights) {
  const NodeRef& x = value.ref;
  const Shape shape = x.type().shape;
  const std::size_t rank = shape.size();
  const std::int64_t dim = rank == 0 ? 0 : dim_of(shape);
  switch (rank == 0 ? 0 : below(7)) {
    case 0:
      return {below(2) == 0 ? neg(x) : x * x, std::max(value.bound, value.bound * value.bound)};
    case 1: {
      Dims order = all_dims(rank);
      std::shuffle(order.begin(), order.end(), random_);
      return {transpose(x, order), value.bound};
    }
    case 2:
    case 3: {
      if (rank == 1) return {reshape(x, {1, shape[0]}), value.bound};
      return {reshape(x, flattened(shape, as_size(below(rank - 1)))), value.bound};
    }
    case 4: {
      const std::int64_t inner = shape[rank - 1];
      const NodeId weight =
          append_input(graph, {DType::f64, {inner, 1 + below(4)}}, "weight", MemoryKind::parameter);
      weights.push_back(weight);
      static const char* const kEquations[] = {"a,az->z", "ab,bz->az", "abc,cz->abz",
                                               "abcd,dz->abcz"};
      if (rank > 4) return value;
      return {einsum(kEquations[rank - 1], x, {&graph, weight}),
              value.bound * 8 * static_cast<double>(std::max<std::int64_t>(inner, 1))};
    }
    case 5: {
      Dims begin = Dims::filled(rank, 0), end = shape;
      end[as_size(dim)] = (shape[as_size(dim)] + 1) / 2;
      const NodeRef half = slice(x, begin, end);
      return {below(2) == 0 ? half : concatenate<NodeRef>({half, x}, dim), value.bound};
    }
    default:
      return {pad(x, Dims::filled(rank, 1), Dims::filled(rank, 0), Dims::filled(rank, 1), 1),
              value.bound};
  }
}

/// Some layers, a loss, and its gradients. A derivative of a polynomial of degree d is no larger
/// than d times what bounds the polynomial, as no number in it is bounded by less than 1.
void RandomProgram::add_gradient() {
  Value source = number();
  if (num_elements(source.ref.type().shape) > 500) return;
  source.ref = convert(source.ref, DType::f64);
  source = within(source, 8);
  std::vector<NodeId> wrt{source.ref.id};
  Value value{source.ref, std::max(source.bound, 1.0)};
  for (int i = 1 + below(5); i > 0; --i) {
    std::optional<detail::OpenBlock> block;
    if (below(2) == 0 && recomputes_) {
      block.emplace(graph_of(value.ref), CheckpointPolicy{.save_products = i % 2 == 0});
    }
    const Value next = layer(value, wrt);
    if (next.bound < 0x1p20 && num_elements(next.ref.type().shape) < 2000) value = next;
  }
  Value loss{below(2) == 0 ? value.ref : value.ref * value.ref, value.bound * value.bound};
  const Shape shape = value.ref.type().shape;
  loss.ref = reduce_sum(loss.ref, all_dims(shape.size()));
  loss.bound *= static_cast<double>(std::max<std::int64_t>(num_elements(shape), 1));
  if (loss.bound > kMostLoss) return;
  for (const NodeId id : grad(graph, loss.ref.id, wrt)) keep({&graph, id}, 1e20);
}

}  // namespace shardwise
