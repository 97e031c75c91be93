#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_program.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/control.h"

// Scans: of any ops in the body, and of layers that have a gradient.

namespace shardwise {
namespace {

/// Bound of a carry, which may not grow from trip to trip.
constexpr double kMostCarried = 16;

/// So that the reference is done in time.
constexpr std::int64_t kMostTrips = 6, kMostElements = 100;

}  // namespace

/// x, or its remainder if it may be over the bound of a carry.
NodeRef RandomProgram::carried(const Value& value) {
  const NodeRef& x = value.ref;
  const DType dtype = x.type().dtype;
  if (dtype == DType::boolean || value.bound <= kMostCarried) return x;
  return rem(x, full_like(x, kMostCarried + 1));
}

void RandomProgram::add_scan() {
  std::vector<Value> init, xs;
  for (int i = below(3); i > 0; --i) {
    const Value value = any();
    if (num_elements(value.ref.type().shape) > kMostElements) continue;
    init.push_back({carried(value), kMostCarried});
  }
  std::optional<std::int64_t> length;
  for (int i = below(3); i > 0; --i) {
    const Value value = any();
    const Shape& shape = value.ref.type().shape;
    if (shape.empty() || shape[0] > kMostTrips || (length && *length != shape[0])) continue;
    length = shape[0];
    xs.push_back(value);
  }
  if (xs.empty()) length = below(4);
  if (init.empty() && xs.empty()) return;
  const auto nodes = [](const std::vector<Value>& values) {
    detail::Leaves<NodeRef> leaves;
    for (const Value& value : values) {
      leaves.tensors.push_back(value.ref);
      leaves.paths.push_back('[' + std::to_string(leaves.paths.size()) + ']');
    }
    return leaves;
  };
  std::vector<Value> outside = values_, ys;
  const auto body = [&](const std::vector<NodeRef>& carry, const std::vector<NodeRef>& slices) {
    std::vector<Value> inside;
    for (const NodeRef& one : carry) inside.push_back({one, kMostCarried});
    for (std::size_t i = 0; i < slices.size(); ++i) inside.push_back({slices[i], xs[i].bound});
    // Some values from outside.
    for (int i = below(3); i > 0; --i) {
      const Value& value = outside[as_size(below(outside.size()))];
      if (num_elements(value.ref.type().shape) > kMostElements) continue;
      inside.insert(inside.begin(), value);
    }
    values_ = std::move(inside);
    const bool was_in_body = std::exchange(in_body_, true);
    for (int i = 1 + below(5); i > 0; --i) add_op();
    in_body_ = was_in_body;
    std::vector<Value> next;
    for (std::size_t i = 0; i < carry.size(); ++i) {
      std::vector<Value> fit;
      for (const Value& value : values_) {
        if (value.ref.type() == carry[i].type()) fit.push_back(value);
      }
      next.push_back(fit.empty() ? Value{carry[i], kMostCarried} : fit[as_size(below(fit.size()))]);
      next.back().ref = carried(next.back());
    }
    for (int i = below(3); i > 0; --i) ys.push_back(values_[as_size(below(values_.size()))]);
    return detail::CarryAndSlices<NodeRef>{nodes(next), nodes(ys)};
  };
  const detail::CarryAndSlices<NodeRef> made =
      record_scan(detail::FlatBody<NodeRef>(body), {nodes(init), nodes(xs)},
                  {.length = length, .reverse = below(2) == 0});
  values_ = std::move(outside);
  for (const NodeRef& carry : made.carry.tensors) keep(carry, kMostCarried);
  for (std::size_t i = 0; i < ys.size(); ++i) keep(made.slices.tensors[i], ys[i].bound);
}

void RandomProgram::add_cond() {
  const Value some = any();
  const Shape shape = some.ref.type().shape;
  if (num_elements(shape) == 0) return;
  const NodeRef first =
      reshape(slice(some.ref, Dims::filled(shape.size(), 0), Dims::filled(shape.size(), 1)), {});
  const NodeRef decides =
      first.type().dtype == DType::boolean ? first : gt(first, full_like(first, 0));
  const std::vector<Value> outside = values_;
  std::vector<Value> given[2];
  const auto branch = [&](std::size_t which) {
    return [&, which] {
      values_ = outside;
      const bool was_in_body = std::exchange(in_body_, true);
      for (int i = 1 + below(4); i > 0; --i) add_op();
      in_body_ = was_in_body;
      for (std::size_t i = 0; i < 2; ++i) {
        Value value = values_[as_size(below(values_.size()))];
        // The other branch gives something of the type that the first one gave, from there or from
        // outside.
        for (std::size_t tries = 0; which == 1 && tries <= values_.size(); ++tries) {
          value = values_[(as_size(below(values_.size())) + tries) % values_.size()];
          if (value.ref.type() == given[0][i].ref.type()) break;
          value = {constant(root_, given[0][i].ref.type(), 1), 1};
        }
        given[which].push_back(value);
      }
      detail::Leaves<NodeRef> leaves;
      for (const Value& value : given[which]) leaves.tensors.push_back(value.ref);
      leaves.paths = {"[0]", "[1]"};
      return leaves;
    };
  };
  const std::vector<NodeRef> made = record_cond(decides, detail::FlatBranch<NodeRef>(branch(0)),
                                                detail::FlatBranch<NodeRef>(branch(1)));
  values_ = outside;
  for (std::size_t i = 0; i < 2; ++i) {
    keep(made[i], std::max(given[0][i].bound, given[1][i].bound));
  }
}

/// A recurrent net of f64, and its gradients: the steps' derivatives are at most 3.
void RandomProgram::add_scan_gradient() {
  const Value some = number();
  const NodeRef xs = convert(some.ref, DType::f64);
  const Shape shape = xs.type().shape;
  if (shape.empty() || shape[0] > 8 || num_elements(shape) > 300) return;
  const Shape slice(std::span(shape.begin() + 1, shape.end()));
  const NodeRef first{&graph, append_input(graph, {DType::f64, slice}, "first")},
      w{&graph, append_input(graph, {DType::f64, slice}, "w", MemoryKind::parameter)};
  const bool recomputes = below(2) == 0 && recomputes_, flips = below(2) == 0 && slice.size() > 0;
  const auto body = [&](const NodeRef& h, const NodeRef& x) {
    const auto step = [&](const NodeRef& state) {
      const NodeRef next = clamp(-2.0, state - w, 2.0) + (flips ? reverse(x, {0}) : x);
      return clamp(-8.0, next, 8.0);
    };
    const NodeRef next = recomputes ? checkpoint(step, h) : step(h);
    return std::pair(next, h * w);
  };
  const auto [last, ys] =
      scan(body, first, within(Value{xs, some.bound}, 8).ref, {.reverse = flips});
  const NodeRef loss = sum(last * last) + sum(ys);
  const std::vector<NodeId> wrt{xs.id, first.id, w.id};
  for (const NodeId id : grad(graph, loss.id, wrt)) keep({&graph, id}, 1e20);
}

}  // namespace shardwise
