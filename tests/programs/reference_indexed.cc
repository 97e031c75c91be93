#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "interpreter.h"

// Ops of the reference that go by windows, by index or by trip.

namespace shardwise {

void Interpreter::convolution() {
  const auto& a = get<ConvolutionAttributes>();
  const auto of = [](const Index& at, const Dims& dims, std::size_t i) {
    return at[as_size(dims[i])];
  };
  const std::int64_t groups = std::max(a.feature_groups, a.batch_groups);
  const Shape out_shape = node_->type.shape;
  const std::int64_t kernels = of(out_shape, a.out, 1) / groups, images = of(out_shape, a.out, 0),
                     features = of(shape(1), a.rhs, 1);
  each_index(shape(0), [&](const Index& x) {
    each_index(shape(1), [&](const Index& w) {
      const std::int64_t group = of(w, a.rhs, 0) / kernels;
      std::int64_t image = of(x, a.lhs, 0), feature = of(x, a.lhs, 1);
      if (a.batch_groups > 1) image -= group * images;
      if (a.feature_groups > 1) feature -= group * features;
      if (image < 0 || image >= images || feature != of(w, a.rhs, 1)) return;
      Index to = Dims::filled(x.size(), 0);
      to[as_size(a.out[0])] = image;
      to[as_size(a.out[1])] = of(w, a.rhs, 0);
      for (std::size_t i = 0; i < a.stride.size(); ++i) {
        const std::int64_t place = of(x, a.lhs, i + 2) * a.lhs_dilation[i] + a.low[i] -
                                   of(w, a.rhs, i + 2) * a.rhs_dilation[i];
        if (place < 0 || place % a.stride[i] != 0) return;
        to[as_size(a.out[i + 2])] = place / a.stride[i];
        if (place / a.stride[i] >= of(out_shape, a.out, i + 2)) return;
      }
      const Number p = in(0, x), q = in(1, w);
      accumulate(to, is_floating_type(dtype()) ? p * q : wrapped(dtype(), bits(p) * bits(q)));
    });
  });
  round_all();
}

/// Dims before `dim`, those of the ids, those after.
void Interpreter::take() {
  const std::size_t rank = shape(1).size();
  each([&](const Index& at) {
    Index from, id;
    for (std::size_t d = 0; d < at.size(); ++d) {
      if (d >= dim() && d < dim() + rank) id.push_back(at[d]);
    }
    for (std::size_t d = 0; d < shape(0).size(); ++d) {
      from.push_back(d < dim() ? at[d] : d == dim() ? id_at(1, id) : at[d - 1 + rank]);
    }
    return in(0, from);
  });
}

/// Changes an element of the result by one update of a scatter.
void Interpreter::update(const Index& to, Number value) {
  const auto* const a = std::get_if<ScatterIntoAttributes>(&node_->attributes);
  if (a == nullptr || a->combination == Combination::add) return accumulate(to, value);
  Number& made = out(to);
  if (a->combination == Combination::set) made = value;
  if (a->combination == Combination::mul) made = times(made, value);
  if (a->combination == Combination::min) made = apply(Op::min, dtype(), made, value);
  if (a->combination == Combination::max) made = apply(Op::max, dtype(), made, value);
}

void Interpreter::scatter() {
  const auto* const into = std::get_if<ScatterIntoAttributes>(&node_->attributes);
  const std::size_t ids = into != nullptr ? 1 : 0, rank = shape(ids).size();
  if (into != nullptr) out_.elements = in(0).elements;
  each_index(shape(ids + 1), [&](const Index& at) {
    Index to, id;
    for (std::size_t d = 0; d < rank; ++d) id.push_back(at[dim() + d]);
    for (std::size_t d = 0; d < node_->type.shape.size(); ++d) {
      to.push_back(d < dim() ? at[d] : d == dim() ? id_at(ids, id) : at[d - 1 + rank]);
    }
    const std::int64_t last = node_->type.shape[dim()] - 1;
    if (to[dim()] < 0 || to[dim()] > last) {
      if (into->mode == OutOfRange::drop) return;
      to[dim()] = std::clamp<std::int64_t>(to[dim()], 0, last);
    }
    update(to, in(ids + 1, at));
  });
  round_all();
}

void Interpreter::sort() {
  const bool descending = get<SortAttributes>().descending;
  each_index(node_->type.shape, [&](const Index& at) {
    if (at[dim()] != 0) return;
    std::vector<std::int64_t> order(as_size(shape(0)[dim()]));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
      const Number a = in(0, replaced(at, dim(), i)), b = in(0, replaced(at, dim(), j));
      const auto less = [](Number x, Number y) {
        return std::isnan(x) || std::isnan(y) ? !std::isnan(x) && std::isnan(y) : x < y;
      };
      return descending ? less(b, a) : less(a, b);
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      out(replaced(at, dim(), static_cast<std::int64_t>(i))) = static_cast<Number>(order[i]);
    }
  });
}

/// Trip by trip, each an interpreter of its own.
void Interpreter::scan() {
  const auto& a = get<ScanAttributes>();
  const std::size_t count = node_->operands.size(), carries = as_size(a.carries),
                    first_x = count - as_size(a.xs), consts = first_x - carries;
  std::vector<ReferenceTensor> carry;
  for (std::size_t k = 0; k < carries; ++k) carry.push_back(in(consts + k));
  std::vector<ReferenceTensor> stacked;
  for (std::size_t o = carries; o < a.body->outputs.size(); ++o) {
    TensorType type = a.body->node(a.body->outputs[o]).type;
    Shape shape{a.length};
    for (const std::int64_t extent : type.shape) shape.push_back(extent);
    stacked.push_back({{type.dtype, shape}, std::vector<Number>(as_size(num_elements(shape)), 0)});
  }
  for (std::int64_t trip = 0; trip < a.length; ++trip) {
    const std::size_t at = as_size(a.reverse ? a.length - 1 - trip : trip);
    std::vector<ReferenceTensor> given;
    for (std::size_t i = 0; i < count; ++i) {
      if (i >= consts && i < first_x) {
        given.push_back(carry[i - consts]);
        continue;
      }
      given.push_back(in(i));
      if (i < consts) continue;
      ReferenceTensor& x = given.back();
      x.type = a.body->node(a.body->inputs[i].node).type;
      const auto size = std::ssize(x.elements) / a.length;
      const auto begin = in(i).elements.begin() + static_cast<std::ptrdiff_t>(at) * size;
      x.elements.assign(begin, begin + size);
    }
    const std::vector<ReferenceTensor> made = Interpreter(*a.body, std::move(given)).run();
    for (std::size_t o = 0; o < a.body->outputs.size(); ++o) {
      const ReferenceTensor& result = made[as_size(a.body->outputs[o])];
      if (o < carries) {
        carry[o] = result;
        continue;
      }
      ReferenceTensor& all = stacked[o - carries];
      all.inexact |= result.inexact;
      std::copy(result.elements.begin(), result.elements.end(),
                all.elements.begin() + static_cast<std::ptrdiff_t>(at * result.elements.size()));
    }
  }
  std::vector<ReferenceTensor>& results = results_[static_cast<NodeId>(tensors_.size())];
  results = std::move(carry);
  results.insert(results.end(), stacked.begin(), stacked.end());
}

/// An inexact scalar makes everything inexact: it may decide otherwise.
void Interpreter::cond() {
  const auto& a = get<CondAttributes>();
  const Graph& body = in(0).elements[0] != 0 ? *a.body : *a.otherwise;
  std::vector<ReferenceTensor> given;
  for (std::size_t i = 1; i < node_->operands.size(); ++i) given.push_back(in(i));
  const std::vector<ReferenceTensor> made = Interpreter(body, std::move(given)).run();
  std::vector<ReferenceTensor>& results = results_[static_cast<NodeId>(tensors_.size())];
  for (const NodeId output : body.outputs) {
    results.push_back(made[as_size(output)]);
    results.back().inexact |= in(0).inexact;
  }
}

Index Interpreter::start(std::size_t first, const Shape& part, const Shape& whole) const {
  Index at;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    at.push_back(std::clamp<std::int64_t>(id_at(first + d, {}), 0, whole[d] - part[d]));
  }
  return at;
}

}  // namespace shardwise
