#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/build.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct ScanOptions {
  std::optional<std::int64_t> length = {};  ///< needed if nothing is stacked
  bool reverse = false;                     ///< from the last slices to the first
};

struct PipelineOptions {
  std::int64_t stages;             ///< divides the layers
  std::int64_t micro_batches;      ///< divides the batch; as many as the stages or more
  std::string schedule = "gpipe";  ///< all micro-batches forward, then all backward
};

namespace detail {

/// The tensors of a tree: a tensor, nullptr (no tensor), or vectors, maps by name, pairs and tuples
/// of trees. `void` for a tree without tensors.
template <class Tree>
struct LeafOf {
  using type = void;
};
template <TensorLike T>
struct LeafOf<T> {
  using type = T;
};
template <class Tree>
struct LeafOf<std::vector<Tree>> : LeafOf<Tree> {};
template <class Tree>
struct LeafOf<std::map<std::string, Tree>> : LeafOf<Tree> {};
template <class First, class... Rest>
struct LeafOf<std::tuple<First, Rest...>>
    : std::conditional_t<std::is_void_v<typename LeafOf<First>::type>, LeafOf<std::tuple<Rest...>>,
                         LeafOf<First>> {};
template <class First, class Second>
struct LeafOf<std::pair<First, Second>> : LeafOf<std::tuple<First, Second>> {};

/// Calls visit(leaf, path) for each tensor of a tree, in order: `["w"][0]` is a path.
template <class Tree, class Visit>
void for_each_leaf(Tree& tree, const std::string& path, const Visit& visit) {
  using Plain = std::remove_const_t<Tree>;
  if constexpr (TensorLike<Plain>) {
    visit(tree, path);
  } else if constexpr (std::same_as<Plain, std::nullptr_t>) {
  } else if constexpr (requires { typename Plain::mapped_type; }) {
    for (auto& [name, part] : tree) {
      for_each_leaf(part, std::string(path).append("[\"").append(name).append("\"]"), visit);
    }
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::size_t number = 0;
    const auto each = [&](auto& part) {
      for_each_leaf(part, path + '[' + std::to_string(number++) + ']', visit);
    };
    std::apply([&](auto&... parts) { (each(parts), ...); }, tree);
  } else {
    for (std::size_t i = 0; i < tree.size(); ++i) {
      for_each_leaf(tree[i], path + '[' + std::to_string(i) + ']', visit);
    }
  }
}

/// Tensors and their names in messages.
template <class T>
struct Leaves {
  std::vector<T> tensors = {};
  std::vector<std::string> paths = {};
};

template <class T, class Tree>
Leaves<T> leaves(const Tree& tree) {
  Leaves<T> all;
  for_each_leaf(tree, "", [&](const T& leaf, const std::string& path) {
    all.tensors.push_back(leaf);
    all.paths.push_back(path);
  });
  return all;
}

/// The tree with other tensors.
template <class T, class Tree>
Tree with_leaves(Tree tree, const std::vector<T>& tensors) {
  std::size_t next = 0;
  for_each_leaf(tree, "", [&](T& leaf, const std::string&) { leaf = tensors[next++]; });
  return tree;
}

/// The arguments and results of a body: carried values, and slices of stacked ones.
template <class T>
struct CarryAndSlices {
  Leaves<T> carry, slices;
};
template <class T>
using FlatBody =
    std::function<CarryAndSlices<T>(const std::vector<T>& carry, const std::vector<T>& slices)>;

/// An operation with a body, on lists. The paths of what record() gives are empty.
struct Recorder {
  std::string_view operation;
  std::function<CarryAndSlices<NodeRef>(const FlatBody<NodeRef>& body,
                                        const CarryAndSlices<NodeRef>& given)>
      record;
};

/// For tensors see tensor.h.
inline CarryAndSlices<NodeRef> record_with(const Recorder& recorder, const FlatBody<NodeRef>& body,
                                           const CarryAndSlices<NodeRef>& given) {
  return recorder.record(body, given);
}

/// scan(), vmap() and pipeline() on lists.
CarryAndSlices<NodeRef> record_scan(const FlatBody<NodeRef>& body,
                                    const CarryAndSlices<NodeRef>& given,
                                    const ScanOptions& options);
CarryAndSlices<NodeRef> record_vmap(const FlatBody<NodeRef>& function,
                                    const CarryAndSlices<NodeRef>& given);
CarryAndSlices<NodeRef> record_pipeline(const FlatBody<NodeRef>& block,
                                        const CarryAndSlices<NodeRef>& given,
                                        const PipelineOptions& options);

/// cond() on lists; for tensors see tensor.h.
template <class T>
using FlatBranch = std::function<Leaves<T>()>;
std::vector<NodeRef> record_cond(const NodeRef& predicate, const FlatBranch<NodeRef>& if_true,
                                 const FlatBranch<NodeRef>& if_false);

}  // namespace detail

/// jax.lax.scan: calls body(carry, x) once, with tensors that stand for those of any trip, and
/// records a loop: `length` times the body, first with `init` and the first slices of `xs` along
/// dim 0, then with its own carry and the next slices. Returns the last carry, and the ys of the
/// body, stacked along dim 0. So a program of 48 layers is no larger than one of a layer.
///
/// `init`, `xs` and the ys are tensors, nullptr for no tensor, or vectors, std::map by name, pairs
/// and tuples of these; body(carry, x) returns a pair of the next carry, of the same types and
/// shapes, and a slice of ys. The body may use tensors from outside. It has a gradient, for which
/// it keeps the needed values of each trip; checkpoint() in the body keeps fewer.
///
///   const auto [last, all] = scan(
///       [&](const Tensor& h, const Tensor& x) {
///         const Tensor next = tanh(linear(h, w) + x);
///         return std::pair(next, next);
///       },
///       first, xs);
///
/// Throws invalid_argument if nothing is carried or stacked, extents of dim 0 or `length` differ,
/// or a carry changes its type.
template <class Body, class Carry, class Xs>
auto scan(Body&& body, const Carry& init, const Xs& xs, const ScanOptions& options = {}) {
  using T = typename detail::LeafOf<std::tuple<Carry, Xs>>::type;
  static_assert(!std::is_void_v<T>, "scan: a carried or stacked tensor is needed");
  using Made = std::invoke_result_t<Body&, const Carry&, const Xs&>;
  using Ys = std::remove_cvref_t<decltype(std::get<1>(std::declval<Made&>()))>;
  std::optional<Ys> ys;
  const detail::FlatBody<T> flat = [&](const std::vector<T>& carry, const std::vector<T>& slices) {
    auto [next, y] =
        std::invoke(body, detail::with_leaves(init, carry), detail::with_leaves(xs, slices));
    static_assert(std::same_as<std::remove_cvref_t<decltype(next)>, Carry>,
                  "scan: the body gives a pair of the next carry, of the carry's type, and ys");
    ys = y;
    return detail::CarryAndSlices<T>{detail::leaves<T>(next), detail::leaves<T>(y)};
  };
  const detail::Recorder recorder{"scan", [&](const auto& nodes, const auto& given) {
                                    return detail::record_scan(nodes, given, options);
                                  }};
  const detail::CarryAndSlices<T> made = record_with(
      recorder, flat, detail::CarryAndSlices<T>{detail::leaves<T>(init), detail::leaves<T>(xs)});
  return std::pair<Carry, Ys>(detail::with_leaves(init, made.carry.tensors),
                              detail::with_leaves(*ys, made.slices.tensors));
}

/// jax.vmap: calls function(x..) once, with tensors that stand for slices of `xs` along dim 0, and
/// records its operations for all slices at once. Returns the results, stacked along dim 0. `xs`
/// and the result are tensors or trees of them, as in scan(). The function may use tensors from
/// outside, which all slices share. Marks in it get the cut of dim 0 of the first of `xs` that is
/// marked.
///
///   const Tensor norms = vmap([](const Tensor& x) { return sum(x * x); }, xs);
///
/// Throws invalid_argument if extents of dim 0 differ, unsupported for an operation that does not
/// work on all slices at once.
template <class Function, class... Xs>
auto vmap(Function&& function, const Xs&... xs) {
  using Trees = std::tuple<Xs...>;
  using T = typename detail::LeafOf<Trees>::type;
  static_assert(!std::is_void_v<T>, "vmap: a stacked tensor is needed");
  using Ys = std::remove_cvref_t<std::invoke_result_t<Function&, const Xs&...>>;
  std::optional<Ys> ys;
  const Trees all(xs...);
  const detail::FlatBody<T> flat = [&](const std::vector<T>&, const std::vector<T>& slices) {
    ys.emplace(std::apply(function, detail::with_leaves(all, slices)));
    return detail::CarryAndSlices<T>{{}, detail::leaves<T>(*ys)};
  };
  const detail::CarryAndSlices<T> made = record_with(
      {"vmap", detail::record_vmap}, flat, detail::CarryAndSlices<T>{{}, detail::leaves<T>(all)});
  return detail::with_leaves(*ys, made.slices.tensors);
}

/// x after all layers, as a pipeline over stages (docs/pipelines.md): block(x, layer) is called
/// once, with a micro-batch of x and one layer's slices of `params` along dim 0, and gives x's
/// type. Mark the params' dim 0 with an axis of the mesh: each of its devices has one stage's
/// layers. `x` and `params` are tensors or trees of them, as in scan(). A micro-batch has every
/// `micro_batches`-th row. Values and gradients are those of the layers one after the other; it has
/// a gradient, as scan().
///
///   const auto block = [](const Tensor& h, const Tensor& w) { return tanh(linear(h, w)); };
///   const Tensor y = pipeline(block, ws, x, {.stages = 2, .micro_batches = 2});
///
/// Throws invalid_argument if the stages do not divide the layers, the micro-batches do not divide
/// the batch or are fewer than the stages, or the block changes its type; unsupported as vmap(),
/// and for another schedule than "gpipe".
template <class Block, class Params, class X>
X pipeline(Block&& block, const Params& params, const X& x, const PipelineOptions& options) {
  using T = typename detail::LeafOf<std::tuple<X, Params>>::type;
  static_assert(!std::is_void_v<T>, "pipeline: tensors are needed");
  const detail::FlatBody<T> flat = [&](const std::vector<T>& rows, const std::vector<T>& layer) {
    const X made =
        std::invoke(block, detail::with_leaves(x, rows), detail::with_leaves(params, layer));
    return detail::CarryAndSlices<T>{detail::leaves<T>(made), {}};
  };
  const detail::Recorder recorder{"pipeline", [&](const auto& nodes, const auto& given) {
                                    return detail::record_pipeline(nodes, given, options);
                                  }};
  const detail::CarryAndSlices<T> made = record_with(
      recorder, flat, detail::CarryAndSlices<T>{detail::leaves<T>(x), detail::leaves<T>(params)});
  return detail::with_leaves(x, made.carry.tensors);
}

/// jax.lax.cond: if_true(operands..) if the boolean scalar is true when the program runs, else
/// if_false(operands..). Both are called once, and recorded; one of them runs. They return tensors
/// of the same types: one, or vectors, maps, pairs and tuples as in scan(). They may use tensors
/// from outside. The gradient recomputes the values of the branch that it needs.
///
///   const Tensor y = cond(
///       lt(step, 100), [](const Tensor& a) { return a * 0.1; }, [](const Tensor& a) { return a; },
///       x);
///
/// Throws invalid_argument if the first operand is not a boolean scalar or the branches' results
/// differ in type.
template <TensorLike T, class IfTrue, class IfFalse, class... Operands>
auto cond(const T& predicate, IfTrue&& if_true, IfFalse&& if_false, const Operands&... operands) {
  using Tree = std::remove_cvref_t<std::invoke_result_t<IfTrue&, const Operands&...>>;
  static_assert(
      std::same_as<Tree, std::remove_cvref_t<std::invoke_result_t<IfFalse&, const Operands&...>>>,
      "cond: both branches give the same type");
  std::optional<Tree> tree;
  const auto flat = [&](auto& branch) {
    return detail::FlatBranch<T>([&] {
      tree.emplace(std::invoke(branch, operands...));
      return detail::leaves<T>(*tree);
    });
  };
  const std::vector<T> made = record_cond(predicate, flat(if_true), flat(if_false));
  return detail::with_leaves(*tree, made);
}

// Other names that people try; each comment has the code to write.
void fori_loop(const auto&...) = delete;   // scan(body, carry, xs, {.length = 10})
void while_loop(const auto&...) = delete;  // scan(body, carry, xs), whose number of trips is known

}  // namespace shardwise
