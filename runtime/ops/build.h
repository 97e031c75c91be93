#pragma once

#include <algorithm>
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

/// A node of a graph that is being built. Valid as long as the builder.
struct NodeRef {
  GraphBuilder* graph;
  NodeId id;

  const TensorType& type() const { return graph->node(id).type; }
};

/// Marks a node, as mark_sharding() of tensors does. The spec has an entry for each dim.
inline void mark_sharding(const NodeRef& node, const PartitionSpec& spec) {
  node.graph->node(node.id).mark = spec;
}

/// Appends a node whose operands are nodes of one graph; `context` is any node of it. While the
/// body of a scan is recorded, the node belongs to the body, and operands from around it become
/// inputs. `wanted` gives the parts of the result's type that the operands do not determine. Throws
/// invalid_argument if operands and attributes do not fit, unsupported if the op is not defined for
/// a dtype. The message has op, operands, scope, found and needed.
NodeRef append(const NodeRef& context, Op op, std::span<const NodeRef> operands,
               Attributes attributes = {}, const TensorType& wanted = {});

/// Refuses the operands of an operation that consists of several ops: throws invalid_argument with
/// the operation's name, the scope, found and needed, as append() does for one op.
[[noreturn]] void refuse(const NodeRef& context, std::string_view operation,
                         std::span<const NodeRef> operands, const std::string& found_and_needed);

/// Appends a leaf. In the scope of the last node.
NodeId append_input(GraphBuilder& graph, const TensorType& type, std::string_view label,
                    MemoryKind kind = MemoryKind::array);

/// Reads a text of dump(), with the literals that it names: dump() of the result is the same text.
/// docs/programs.md defines the lines. Each node is checked as by append(). Throws
/// invalid_argument, and the errors of append(), with the number of the line, found and needed.
///
///   const std::string text = "%0 = input() \"x\" : f32[4]\n%1 = neg(%0) : f32[4]\nreturn %1\n";
///   dump(parse_graph(text)) == text;
Graph parse_graph(std::string_view text, std::span<const LiteralAttributes> literals = {});

/// An operand of the functions below: a NodeRef, or a Tensor (tensor.h).
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

/// A dim counted from the front: -1 is the last. A dim that does not exist stays unchanged, so that
/// the op refuses it.
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

/// The same, ascending, for ops where the order of dims does not matter.
template <TensorLike T>
Dims dims_in_order(const T& x, const Dims& dims) {
  Dims ordered = dims_of(x, dims);
  std::sort(ordered.begin(), ordered.end());
  return ordered;
}

/// The shape that numpy broadcasts two operands to; absent if they do not fit.
std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b);

/// A shape with its -1, if it has one, replaced so that it has as many elements as `of`. It stays
/// -1, so that the op refuses it, if no extent fits.
Shape complete_shape(Shape shape, const Shape& of);

/// 0, 1, .., rank - 1
inline Dims all_dims(std::size_t rank) {
  Dims dims;
  for (std::size_t dim = 0; dim < rank; ++dim) dims.push_back(static_cast<std::int64_t>(dim));
  return dims;
}

// Leaves, layout, and helpers for functions of two operands.

/// `number` everywhere, in the graph of `context`: rounded to a floating dtype; an integer dtype
/// must hold it exactly, so that 0.5 and 300 are refused for i8. Integers are kept exactly, up to
/// 64 bits.
template <TensorLike T>
T constant(const T& context, const TensorType& type, Scalar number) {
  return append(context, Op::constant, std::span<const T>(), NumberAttributes{number}, type);
}
/// `number` in the shape and dtype of x.
template <TensorLike T>
T full_like(const T& x, Scalar number) {
  return constant(x, x.type(), number);
}
/// Elements that are part of the graph, row-major and native endian: of any dtype, every bit kept.
template <TensorLike T>
T literal(const T& context, const TensorType& type, std::span<const std::byte> elements) {
  return append(context, Op::literal, std::span<const T>(), LiteralAttributes(elements), type);
}
template <TensorLike T>
T iota(const T& context, const TensorType& type, std::int64_t dim) {
  const auto rank = static_cast<std::int64_t>(type.shape.size());
  const DimAttributes along{dim < 0 && dim >= -rank ? dim + rank : dim};
  return append(context, Op::iota, std::span<const T>(), along, type);
}
/// `key`: a u64 scalar. Gives u32.
template <TensorLike T>
T random_bits(const T& key, const Shape& shape) {
  return append_to(key, Op::random_bits, {key}, {}, {DType::u32, shape});
}

/// Dim i of x is dim dims[i] of the result.
template <TensorLike T>
T broadcast(const T& x, const Shape& shape, const Dims& dims) {
  return append_to(x, Op::broadcast, {x}, DimsAttributes{dims}, {x.type().dtype, shape});
}
/// As numpy broadcasts: x's dims are the last of `shape`.
template <TensorLike T>
T broadcast_to(const T& x, const Shape& shape) {
  const TensorType& type = x.type();
  if (type.shape == shape) return x;
  Dims dims;
  const std::size_t rank = type.shape.size(), wider = shape.size();
  for (std::size_t i = 0; i < rank; ++i)
    dims.push_back(static_cast<std::int64_t>(wider - rank + i));
  return broadcast(x, shape, dims);
}

/// Dim i of the result is dim dims[i] of x.
template <TensorLike T>
T transpose(const T& x, const Dims& dims) {
  return append_to(x, Op::transpose, {x}, DimsAttributes{dims_of(x, dims)});
}
/// Reverses the order of the dims, as in numpy: transposes a matrix.
template <TensorLike T>
T transpose(const T& x) {
  Dims dims = all_dims(x.type().shape.size());
  std::reverse(dims.begin(), dims.end());
  return transpose(x, dims);
}
/// Swaps two dims, as in torch. They may be counted from the end: -1 is the last.
template <TensorLike T>
T transpose(const T& x, std::int64_t one, std::int64_t other) {
  const Dims pair = dims_of(x, {one, other});
  Dims dims = all_dims(x.type().shape.size());
  for (const std::int64_t dim : pair) {
    if (dim < 0 || as_size(dim) >= dims.size()) {
      refuse_all("transpose", {x},
                 "found dims " + to_string(pair) + ", needed two of the tensor's");
    }
  }
  std::swap(dims[as_size(pair[0])], dims[as_size(pair[1])]);
  return transpose(x, dims);
}
/// One extent may be -1: it follows from the others.
template <TensorLike T>
T reshape(const T& x, const Shape& shape) {
  const Shape whole = complete_shape(shape, x.type().shape);
  return x.type().shape == whole
             ? x
             : append_to(x, Op::reshape, {x}, NoAttributes{}, {x.type().dtype, whole});
}
template <TensorLike T>
T slice(const T& x, const Dims& begin, const Dims& end, const Dims& stride) {
  return append_to(x, Op::slice, {x}, SliceAttributes{begin, end, stride});
}
template <TensorLike T>
T slice(const T& x, const Dims& begin, const Dims& end) {
  return slice(x, begin, end, Dims::filled(begin.size(), 1));
}
/// Puts `stride` - 1 elements between those of x.
template <TensorLike T>
T pad(const T& x, const Dims& low, const Dims& high, const Dims& stride, Scalar number) {
  return append_to(x, Op::pad, {x}, PadAttributes{low, high, stride, number});
}
template <TensorLike T>
T pad(const T& x, const Dims& low, const Dims& high, Scalar number = 0) {
  return pad(x, low, high, Dims::filled(low.size(), 1), number);
}
/// Requires a part.
template <TensorLike T>
T concatenate(const std::vector<T>& parts, std::int64_t dim) {
  return append(parts.front(), Op::concatenate, std::span<const T>(parts),
                DimAttributes{dim_of(parts.front(), dim)});
}
template <TensorLike T>
T concatenate(std::initializer_list<T> parts, std::int64_t dim) {
  return concatenate(std::vector<T>(parts), dim);
}
template <TensorLike T>
T reverse(const T& x, const Dims& dims) {
  return append_to(x, Op::reverse, {x}, DimsAttributes{dims_in_order(x, dims)});
}

/// jax.lax.reduce_window with the sum (zero for an empty window) or the maximum (the least number
/// of the dtype then).
template <TensorLike T>
T reduce_window_sum(const T& x, WindowAttributes attributes) {
  return append_to(x, Op::reduce_window_sum, {x}, std::move(attributes));
}
template <TensorLike T>
T reduce_window_max(const T& x, WindowAttributes attributes) {
  return append_to(x, Op::reduce_window_max, {x}, std::move(attributes));
}
/// The gradient of reduce_window_max: in the shape of x the sum of the elements of `source`, one
/// for each window, each at the first largest element of its window (the first NaN, if it has one).
template <TensorLike T>
T select_and_scatter_add(const T& x, const T& source, WindowAttributes attributes) {
  return append_to(x, Op::select_and_scatter_add, {x, source}, std::move(attributes));
}

// Other names that people try; each comment has the code to write.
void flip(const TensorLike auto&, const auto&...) = delete;  // reverse(x, dims)
void roll(  // concatenate({slice(x, begin, end), slice(x, begin, end)}, dim)
    const TensorLike auto&, const auto&...) = delete;
void split(const TensorLike auto&, const auto&...) = delete;   // slice(x, begin, end)
void chunk(const TensorLike auto&, const auto&...) = delete;   // slice(x, begin, end)
void narrow(const TensorLike auto&, const auto&...) = delete;  // slice(x, begin, end)
void tile(const TensorLike auto&, const auto&...) = delete;    // concatenate({x, x}, dim)
void repeat(  // concatenate({x, x}, dim), or broadcast_to(x, shape)
    const TensorLike auto&, const auto&...) = delete;
void expand(const TensorLike auto&, const auto&...) = delete;  // broadcast_to(x, shape)
void tril(  // where(ge(rows, columns), x, 0), which are iota(x, type, dim)
    const TensorLike auto&, const auto&...) = delete;
void triu(  // where(le(rows, columns), x, 0), which are iota(x, type, dim)
    const TensorLike auto&, const auto&...) = delete;
void one_hot(  // eq(broadcast(ids, shape, dims), iota(ids, type, dim))
    const TensorLike auto&, const auto&...) = delete;
template <TensorLike T>
void stack(  // concatenate({reshape(x, {1, 8, 4}), reshape(y, {1, 8, 4})}, dim)
    std::initializer_list<T>, std::int64_t = 0) = delete;
template <TensorLike T>
void stack(  // concatenate({reshape(x, {1, 8, 4}), reshape(y, {1, 8, 4})}, dim)
    const std::vector<T>&, std::int64_t = 0) = delete;

/// Two tensors, or a tensor and a number, which then takes the tensor's shape and dtype.
template <class B, class A>
concept OperandWith = (TensorLike<A> && (std::same_as<A, B> || std::convertible_to<B, Scalar>)) ||
                      (TensorLike<B> && std::convertible_to<A, Scalar>);

/// Two operands of one dtype, broadcast as numpy does.
template <class A, OperandWith<A> B>
auto binary(Op op, const A& a, const B& b) {
  if constexpr (!TensorLike<A>) {
    return binary(op, full_like(b, a), b);
  } else if constexpr (!TensorLike<B>) {
    return binary(op, a, full_like(a, b));
  } else {
    if (a.type().shape == b.type().shape) return append_to(a, op, {a, b});
    const std::optional<Shape> shape = broadcast_shape(a.type().shape, b.type().shape);
    if (!shape) return append_to(a, op, {a, b});  // throws with the reason
    return append_to(a, op, {broadcast_to(a, *shape), broadcast_to(b, *shape)});
  }
}

}  // namespace shardwise
