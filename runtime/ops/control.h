#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
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

/// scan() on lists; for tensors see tensor.h. The result's paths are empty.
CarryAndSlices<NodeRef> record_scan(const FlatBody<NodeRef>& body,
                                    const CarryAndSlices<NodeRef>& given,
                                    const ScanOptions& options);

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
  const detail::CarryAndSlices<T> made = record_scan(
      flat, detail::CarryAndSlices<T>{detail::leaves<T>(init), detail::leaves<T>(xs)}, options);
  return std::pair<Carry, Ys>(detail::with_leaves(init, made.carry.tensors),
                              detail::with_leaves(*ys, made.slices.tensors));
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
void vmap(const auto&...) = delete;        // an operation on one more dim

}  // namespace shardwise
