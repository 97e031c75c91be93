#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "reference.h"
#include "shardwise/shard/dims.h"

namespace shardwise {

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

inline std::size_t offset(const Shape& shape, const Index& at) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) offset = offset * shape[dim] + at[dim];
  return as_size(offset);
}

inline bool has(const Dims& dims, std::size_t dim) {
  return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) != dims.end();
}

inline Index without(const Index& at, const Dims& dims) {
  Index kept;
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    if (!has(dims, dim)) kept.push_back(at[dim]);
  }
  return kept;
}

inline Index replaced(Index at, std::size_t dim, std::int64_t value) {
  at[dim] = value;
  return at;
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, std::vector<ReferenceTensor> inputs) : graph_(graph) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      input_[graph.inputs[i].node] = std::move(inputs[i]);
    }
  }

  std::vector<ReferenceTensor> run() {
    for (std::size_t id = 0; id < graph_.nodes.size(); ++id) {
      node_ = &graph_.nodes[id];
      out_ = {node_->type, std::vector<Number>(as_size(num_elements(node_->type.shape)), 0)};
      for (const NodeId operand : node_->operands)
        out_.inexact |= tensors_[as_size(operand)].inexact;
      const auto input = input_.find(static_cast<NodeId>(id));
      if (input != input_.end()) {
        out_ = input->second;
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
  /// The dim of an op along one dim.
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

  /// An attribute's number, rounded to the dtype.
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
  void scan();
  void cond();
  Index start(std::size_t first, const Shape& part, const Shape& whole) const;

  const Graph& graph_;
  std::map<NodeId, ReferenceTensor> input_;
  std::map<NodeId, std::vector<ReferenceTensor>> results_;  ///< by scan or cond
  std::vector<ReferenceTensor> tensors_;
  const Node* node_ = nullptr;
  ReferenceTensor out_;
};

}  // namespace shardwise
