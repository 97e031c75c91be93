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

#include "interpreter.h"

namespace shardwise {

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
    case Op::scan:
      return scan();
    case Op::cond:
      return cond();
    case Op::result:
      out_ = results_.at(node_->operands[0])[as_size(get<ResultAttributes>().index)];
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
    case Op::index_of: {
      constexpr Number kNowhere = 2147483647;
      std::fill(out_.elements.begin(), out_.elements.end(), kNowhere);
      return each_index(shape(0), [&](const Index& at) {
        const Index to = without(at, dims());
        const Number a = in(0, at), b = in(1, to);
        const bool is_equal = apply(Op::eq, of(0), a, b) != 0 || (std::isnan(a) && std::isnan(b));
        if (is_equal && out(to) == kNowhere) out(to) = static_cast<Number>(at[dim()]);
      });
    }
    case Op::cumlogsumexp:
      out_.inexact = true;
      [[fallthrough]];
    case Op::cumsum:
    case Op::cumprod:
    case Op::cummax:
    case Op::cummin:
      return cumulate();
    case Op::decompose:
    case Op::triangular_solve:
      out_.inexact = true;
      return;
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

/// Computes each element from all that come before it.
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

std::vector<ReferenceTensor> interpret(const Graph& graph,
                                       std::span<const std::vector<std::byte>> inputs) {
  std::vector<ReferenceTensor> tensors;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorType& type = graph.node(graph.inputs[i].node).type;
    tensors.push_back({type, decode(type.dtype, inputs[i])});
  }
  return Interpreter(graph, std::move(tensors)).run();
}

}  // namespace shardwise
