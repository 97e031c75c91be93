#include "reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace shardwise {
namespace {

/// Calls body(index) for every index of a shape, row-major.
template <class Body>
void each_index(const Shape& shape, const Body& body) {
  if (num_elements(shape) == 0) return;
  Index at = Dims::filled(shape.size(), 0);
  while (true) {
    body(at);
    std::size_t dim = shape.size();
    while (dim > 0 && ++at[dim - 1] == shape[dim - 1]) at[--dim] = 0;
    if (dim == 0) return;
  }
}

std::size_t offset(const Shape& shape, const Index& at) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) offset = offset * shape[dim] + at[dim];
  return as_size(offset);
}

bool has(const Dims& dims, std::size_t dim) {
  return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) != dims.end();
}

Index without(const Index& at, const Dims& dims) {
  Index kept;
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    if (!has(dims, dim)) kept.push_back(at[dim]);
  }
  return kept;
}

Index replaced(Index at, std::size_t dim, std::int64_t value) {
  at[dim] = value;
  return at;
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, std::span<const std::vector<std::byte>> inputs) : graph_(graph) {
    for (std::size_t i = 0; i < inputs.size(); ++i) input_[graph.inputs[i].node] = &inputs[i];
  }

  std::vector<ReferenceTensor> run() {
    for (std::size_t id = 0; id < graph_.nodes.size(); ++id) {
      node_ = &graph_.nodes[id];
      out_ = {node_->type, std::vector<Number>(as_size(num_elements(node_->type.shape)), 0)};
      for (const NodeId operand : node_->operands)
        out_.inexact |= tensors_[as_size(operand)].inexact;
      const auto input = input_.find(static_cast<NodeId>(id));
      if (input != input_.end()) {
        out_.elements = decode(node_->type.dtype, *input->second);
      } else {
        compute();
      }
      tensors_.push_back(std::move(out_));
    }
    return std::move(tensors_);
  }

 private:
  const ReferenceTensor& in(std::size_t i) const { return tensors_[as_size(node_->operands[i])]; }
  Number in(std::size_t i, const Index& at) const {
    return in(i).elements[offset(in(i).type.shape, at)];
  }
  const Shape& shape(std::size_t i) const { return in(i).type.shape; }
  template <class A>
  const A& get() const {
    return std::get<A>(node_->attributes);
  }
  Dims dims() const {
    const auto* const one = std::get_if<DimAttributes>(&node_->attributes);
    return one != nullptr ? Dims{one->dim} : get<DimsAttributes>().dims;
  }
  /// Of an op along one dim.
  std::size_t dim() const {
    if (const auto* const a = std::get_if<ScatterAttributes>(&node_->attributes)) {
      return as_size(a->dim);
    }
    if (const auto* const a = std::get_if<ScatterIntoAttributes>(&node_->attributes)) {
      return as_size(a->dim);
    }
    if (const auto* const a = std::get_if<CumulativeAttributes>(&node_->attributes)) {
      return as_size(a->dim);
    }
    if (const auto* const a = std::get_if<SortAttributes>(&node_->attributes)) {
      return as_size(a->dim);
    }
    return as_size(get<DimAttributes>().dim);
  }
  DType dtype() const { return node_->type.dtype; }
  Number& out(const Index& at) { return out_.elements[offset(node_->type.shape, at)]; }

  /// out[at] = value(at), of the dtype.
  template <class Value>
  void each(const Value& value) {
    each_index(node_->type.shape, [&](const Index& at) { out(at) = rounded(dtype(), value(at)); });
  }

  /// Adds to an element of the result; halves are rounded at the end.
  void accumulate(const Index& at, Number value) {
    Number& sum = out(at);
    sum = is_floating_type(dtype()) ? sum + value : wrapped(dtype(), bits(sum) + bits(value));
  }
  void round_all() {
    for (Number& element : out_.elements) element = rounded(dtype(), element);
  }

  /// Of an attribute, as the dtype has it.
  Number number_of(const Scalar& scalar) const {
    std::array<std::byte, sizeof(double)> element{};
    scalar.write(dtype(), element.data());
    return decode(dtype(), std::span(element).first(size_bytes(dtype())))[0];
  }

  std::int64_t id_at(std::size_t operand, const Index& at) const {
    return static_cast<std::int64_t>(in(operand, at));
  }

  void compute();
  void reduce(Op op);
  template <class Body>
  void each_in_window(const Index& place, const Body& body) const;
  void reduce_windows();
  Number times(Number a, Number b) const {
    return is_floating_type(dtype()) ? a * b : wrapped(dtype(), bits(a) * bits(b));
  }
  void cumulate();
  void product();
  void convolution();
  void take();
  void scatter();
  void update(const Index& to, Number value);
  void sort();
  Index start(std::size_t first, const Shape& part, const Shape& whole) const;

  const Graph& graph_;
  std::map<NodeId, const std::vector<std::byte>*> input_;
  std::vector<ReferenceTensor> tensors_;
  const Node* node_ = nullptr;
  ReferenceTensor out_;
};

void Interpreter::compute() {
  const auto of = [&](std::size_t i) { return in(i).type.dtype; };
  switch (node_->op) {
    case Op::constant:
      return each([&](const Index&) { return number_of(get<NumberAttributes>().number); });
    case Op::literal:
      out_.elements = decode(dtype(), get<LiteralAttributes>().bytes());
      return;
    case Op::iota:
      return each([&](const Index& at) {
        return converted(DType::i64, dtype(), static_cast<Number>(at[dim()]));
      });
    case Op::random_bits:
      for (std::size_t i = 0; i < out_.elements.size(); ++i) {
        out_.elements[i] = random_word(static_cast<std::uint64_t>(in(0, {})), i);
      }
      return;
    case Op::exp:
    case Op::exp2:
    case Op::expm1:
    case Op::log:
    case Op::log1p:
    case Op::erf_inv:
    case Op::cbrt:
    case Op::tanh:
    case Op::logistic:
    case Op::erf:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::sin:
    case Op::cos:
      out_.inexact = true;
      [[fallthrough]];
    case Op::neg:
    case Op::abs:
    case Op::sign:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::logical_not:
    case Op::population_count:
    case Op::is_finite:
      return each([&](const Index& at) { return apply(node_->op, of(0), in(0, at)); });
    case Op::convert:
      return each([&](const Index& at) { return converted(of(0), dtype(), in(0, at)); });
    case Op::bitcast:
      out_.elements = decode(dtype(), encode(of(0), in(0).elements));
      return;
    case Op::identity:
    case Op::stop_gradient:
    case Op::optimization_barrier:
      out_.elements = in(0).elements;
      return;
    case Op::pow:
    case Op::atan2:
      out_.inexact |= is_floating_type(dtype());
      [[fallthrough]];
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
    case Op::rem:
    case Op::logical_and:
    case Op::logical_or:
    case Op::logical_xor:
    case Op::shift_left:
    case Op::shift_right_logical:
    case Op::shift_right_arithmetic:
    case Op::max:
    case Op::min:
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
      return each([&](const Index& at) { return apply(node_->op, of(0), in(0, at), in(1, at)); });
    case Op::select:
      return each([&](const Index& at) { return in(0, at) != 0 ? in(1, at) : in(2, at); });
    case Op::broadcast:
      return each([&](const Index& at) {
        Index from;
        for (std::size_t i = 0; i < shape(0).size(); ++i) {
          from.push_back(shape(0)[i] == 1 ? 0 : at[as_size(dims()[i])]);
        }
        return in(0, from);
      });
    case Op::transpose:
      return each([&](const Index& at) {
        Index from = at;
        for (std::size_t i = 0; i < at.size(); ++i) from[as_size(dims()[i])] = at[i];
        return in(0, from);
      });
    case Op::reshape:
      out_.elements = in(0).elements;
      return;
    case Op::slice:
      return each([&](Index at) {
        for (std::size_t i = 0; i < at.size(); ++i)
          at[i] = get<SliceAttributes>().begin[i] + at[i] * get<SliceAttributes>().stride[i];
        return in(0, at);
      });
    case Op::pad:
      each([&](const Index&) { return number_of(get<PadAttributes>().number); });
      each_index(shape(0), [&](Index at) {
        const Number value = in(0, at);
        for (std::size_t i = 0; i < at.size(); ++i)
          at[i] = get<PadAttributes>().low[i] + at[i] * get<PadAttributes>().stride[i];
        out(at) = value;
      });
      return;
    case Op::concatenate: {
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < node_->operands.size(); ++i) {
        each_index(shape(i), [&](const Index& at) {
          out(replaced(at, dim(), begin + at[dim()])) = in(i, at);
        });
        begin += shape(i)[dim()];
      }
      return;
    }
    case Op::reverse:
      return each([&](Index at) {
        for (std::size_t i = 0; i < at.size(); ++i) {
          if (has(dims(), i)) at[i] = shape(0)[i] - 1 - at[i];
        }
        return in(0, at);
      });
    case Op::reduce_sum:
    case Op::reduce_max:
    case Op::reduce_min:
      return reduce(node_->op);
    case Op::reduce_prod:
      std::fill(out_.elements.begin(), out_.elements.end(), 1);
      each_index(shape(0), [&](const Index& at) {
        Number& product = out(without(at, dims()));
        product = times(product, in(0, at));
      });
      return round_all();
    case Op::argmax:
    case Op::argmin: {
      std::map<std::size_t, Number> best;
      const Op pick = node_->op == Op::argmax ? Op::gt : Op::lt;
      each_index(shape(0), [&](const Index& at) {
        const Index to = without(at, dims());
        const Number value = in(0, at);
        const auto [known, is_first] = best.try_emplace(offset(node_->type.shape, to), value);
        const bool is_better = apply(pick, of(0), value, known->second) != 0 ||
                               (std::isnan(value) && !std::isnan(known->second));
        if (!is_first && !is_better) return;
        known->second = value;
        out(to) = static_cast<Number>(at[dim()]);
      });
      return;
    }
    case Op::cumlogsumexp:
      out_.inexact = true;
      [[fallthrough]];
    case Op::cumsum:
    case Op::cumprod:
    case Op::cummax:
    case Op::cummin:
      return cumulate();
    case Op::dot_general:
      return product();
    case Op::convolution:
      return convolution();
    case Op::reduce_window_sum:
    case Op::reduce_window_max:
      return reduce_windows();
    case Op::select_and_scatter_add:
      each_index(shape(1), [&](const Index& place) {
        std::optional<Index> best;
        each_in_window(place, [&](const Index& at) {
          const bool is_larger = best && (in(0, at) > in(0, *best) ||
                                          (std::isnan(in(0, at)) && !std::isnan(in(0, *best))));
          if (!best || is_larger) best = at;
        });
        if (best) accumulate(*best, in(1, place));
      });
      return round_all();
    case Op::take:
      return take();
    case Op::scatter:
    case Op::scatter_add:
      return scatter();
    case Op::take_along:
      return each([&](const Index& at) { return in(0, replaced(at, dim(), id_at(1, at))); });
    case Op::scatter_add_along:
      each_index(shape(1), [&](const Index& at) {
        accumulate(replaced(at, dim(), id_at(0, at)), in(1, at));
      });
      return round_all();
    case Op::dynamic_slice: {
      const Index from = start(1, node_->type.shape, shape(0));
      return each([&](Index at) {
        for (std::size_t i = 0; i < at.size(); ++i) at[i] += from[i];
        return in(0, at);
      });
    }
    case Op::dynamic_update_slice: {
      const Index to = start(2, shape(1), shape(0));
      out_.elements = in(0).elements;
      each_index(shape(1), [&](Index at) {
        const Number value = in(1, at);
        for (std::size_t i = 0; i < at.size(); ++i) at[i] += to[i];
        out(at) = value;
      });
      return;
    }
    case Op::argsort:
      return sort();
    case Op::input:
    case Op::enter_manual:
    case Op::leave_manual:
    case Op::manual_all_reduce:
      break;
  }
  throw std::logic_error("no reference for " + std::string(name(node_->op)) + " of " +
                         std::string(shardwise::name(of(0))));
}

void Interpreter::reduce(Op op) {
  if (op != Op::reduce_sum) {
    const Number worst = op == Op::reduce_max ? least_of(dtype()) : largest_of(dtype());
    std::fill(out_.elements.begin(), out_.elements.end(), worst);
  }
  each_index(shape(0), [&](const Index& at) {
    const Index to = without(at, dims());
    if (op == Op::reduce_sum) {
      accumulate(to, in(0, at));
    } else {
      out(to) = apply(op == Op::reduce_max ? Op::max : Op::min, dtype(), out(to), in(0, at));
    }
  });
  round_all();
}

/// Each element from all that come before it, anew.
void Interpreter::cumulate() {
  const bool reverse = get<CumulativeAttributes>().reverse;
  const std::int64_t extent = shape(0)[dim()];
  each_index(shape(0), [&](const Index& at) {
    const std::int64_t end = reverse ? extent - 1 - at[dim()] : at[dim()];
    for (std::int64_t i = 0; i <= end; ++i) {
      const Number next = in(0, replaced(at, dim(), reverse ? extent - 1 - i : i));
      Number& made = out(at);
      if (i == 0) {
        made = next;
      } else if (node_->op == Op::cumsum) {
        accumulate(at, next);
      } else if (node_->op == Op::cumprod) {
        made = times(made, next);
      } else if (node_->op == Op::cumlogsumexp) {
        made = std::log(std::exp(made) + std::exp(next));
      } else {
        made = apply(node_->op == Op::cummax ? Op::max : Op::min, dtype(), made, next);
      }
    }
  });
  round_all();
}

void Interpreter::product() {
  const std::string text = get<DotAttributes>().equation.to_string();
  const std::string lhs = text.substr(0, text.find(',')), result = text.substr(text.find('>') + 1);
  const std::string rhs = text.substr(lhs.size() + 1, text.find('-') - lhs.size() - 1);
  std::string letters;
  Shape all;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string& mine = i == 0 ? lhs : rhs;
    for (std::size_t d = 0; d < mine.size(); ++d) {
      if (letters.find(mine[d]) != std::string::npos) continue;
      letters += mine[d];
      all.push_back(shape(i)[d]);
    }
  }
  const auto pick = [&](const std::string& wanted, const Index& at) {
    Index picked;
    for (const char letter : wanted) picked.push_back(at[letters.find(letter)]);
    return picked;
  };
  each_index(all, [&](const Index& at) {
    const Number a = in(0, pick(lhs, at)), b = in(1, pick(rhs, at));
    const Number product = is_floating_type(dtype()) ? a * b : wrapped(dtype(), bits(a) * bits(b));
    accumulate(pick(result, at), product);
  });
  round_all();
}

/// Calls body(index) for each element of the operand that the window at a place has, in order.
template <class Body>
void Interpreter::each_in_window(const Index& place, const Body& body) const {
  const auto& a = get<WindowAttributes>();
  each_index(a.window, [&](Index at) {
    for (std::size_t d = 0; d < at.size(); ++d) {
      at[d] = place[d] * a.stride[d] + at[d] * a.dilation[d] - a.low[d];
      if (at[d] < 0 || at[d] >= shape(0)[d]) return;
    }
    body(at);
  });
}

void Interpreter::reduce_windows() {
  const bool is_max = node_->op == Op::reduce_window_max;
  each_index(node_->type.shape, [&](const Index& place) {
    if (is_max) out(place) = least_of(dtype());
    each_in_window(place, [&](const Index& at) {
      if (is_max) {
        out(place) = apply(Op::max, dtype(), out(place), in(0, at));
      } else {
        accumulate(place, in(0, at));
      }
    });
  });
  round_all();
}

/// Each product of an element of the operand with one of the kernel that there is, added to where
/// it goes.
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

/// Of the result, by one update of a scatter.
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

Index Interpreter::start(std::size_t first, const Shape& part, const Shape& whole) const {
  Index at;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    at.push_back(std::clamp<std::int64_t>(id_at(first + d, {}), 0, whole[d] - part[d]));
  }
  return at;
}

}  // namespace

std::vector<ReferenceTensor> interpret(const Graph& graph,
                                       std::span<const std::vector<std::byte>> inputs) {
  return Interpreter(graph, inputs).run();
}

}  // namespace shardwise
