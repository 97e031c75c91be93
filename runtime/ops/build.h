#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A node of a graph that is being built. Valid as long as the graph.
struct NodeRef {
  Graph* graph;
  NodeId id;

  const TensorType& type() const { return graph->node(id).type; }
};

/// Appends a node whose operands are nodes of one graph; `context` is any node of it. `wanted`
/// gives what the operands do not give of the result's type. Throws invalid_argument if operands
/// and attributes do not fit, unsupported if the op is not defined for a dtype. The message has op,
/// operands, scope, found and needed.
NodeRef append(const NodeRef& context, Op op, std::span<const NodeRef> operands,
               Attributes attributes = {}, const TensorType& wanted = {});

/// Refuses the operands of an operation that consists of several ops: throws invalid_argument with
/// the operation's name, the scope, and what was found and needed, as append() does for one op.
[[noreturn]] void refuse(const NodeRef& context, std::string_view operation,
                         std::span<const NodeRef> operands, const std::string& found_and_needed);

/// Appends a leaf. In the scope of the last node.
NodeId append_input(Graph& graph, const TensorType& type, std::string_view label,
                    MemoryKind kind = MemoryKind::array);

/// What the functions below work on: a NodeRef, or a Tensor (tensor.h).
template <class T>
concept TensorLike = requires(const T& t, std::span<const T> operands) {
  { t.type() } -> std::convertible_to<TensorType>;
  { append(t, Op::add, operands) } -> std::same_as<T>;
};

template <TensorLike T>
T append_to(const T& first, Op op, std::initializer_list<T> operands, Attributes attributes = {},
            const TensorType& wanted = {}) {
  return append(first, op, std::span<const T>(operands.begin(), operands.size()),
                std::move(attributes), wanted);
}

template <TensorLike T>
[[noreturn]] void refuse_all(std::string_view operation, std::initializer_list<T> operands,
                             const std::string& found_and_needed) {
  refuse(*operands.begin(), operation, std::span<const T>(operands.begin(), operands.size()),
         found_and_needed);
}

/// A dim as it is counted from the front: -1 is the last. One that is not there stays as it is, so
/// that the op refuses it.
template <TensorLike T>
std::int64_t dim_of(const T& x, std::int64_t dim) {
  const auto rank = static_cast<std::int64_t>(x.type().shape.size());
  return dim < 0 && dim >= -rank ? dim + rank : dim;
}
template <TensorLike T>
Dims dims_of(const T& x, Dims dims) {
  for (std::int64_t& dim : dims) dim = dim_of(x, dim);
  return dims;
}

/// The shape that numpy gives two operands; nothing if they do not fit.
std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b);

/// A shape of which one extent may be -1: it becomes what makes as many elements as `of` has. It
/// stays -1, so that the op refuses it, if there is no such extent.
Shape complete_shape(Shape shape, const Shape& of);

/// 0, 1, .., rank - 1
inline Dims all_dims(std::size_t rank) {
  Dims dims;
  for (std::size_t dim = 0; dim < rank; ++dim) dims.push_back(static_cast<std::int64_t>(dim));
  return dims;
}

}  // namespace shardwise
