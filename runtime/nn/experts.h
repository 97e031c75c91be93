#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct ExpertsOptions {
  std::int64_t top_k = 2;     ///< experts of a token
  std::int64_t capacity = 0;  ///< tokens that an expert takes from a group; 0: of all of them

  /// The axes that cut the groups, and those of them that cut the experts: {"data", "expert"} and
  /// "expert". Empty: the partitioner decides.
  PartitionSpec::Entry group_axes = {}, expert_axes = {};
};

/// The result of experts().
template <TensorLike T>
struct Mixture {
  T y;        ///< as x
  T dropped;  ///< f32 scalar: choices, of an expert for a token, beyond the experts' capacity
  T balance;  ///< scalar, 1 if all experts get as many tokens; add some of it to the loss
};

namespace detail {

/// The gates [groups, tokens, experts, places] of the tokens that each expert takes, 0 elsewhere.
template <TensorLike T>
struct ChosenExperts {
  T combine;
  T kept;     ///< f32 scalar: choices that got a place
  T balance;  ///< as in Mixture
};

/// gates [groups, tokens, experts]. Counts are in f32: all below 2^24 are exact.
template <TensorLike T>
ChosenExperts<T> choose_experts(const T& gates, std::int64_t top_k, std::int64_t places) {
  const DType dtype = gates.type().dtype;
  const Shape routed = gates.type().shape, placed{routed[0], routed[1], routed[2], places};
  const T number = iota(gates, {DType::i32, routed}, 2);
  T left = gates;                                                // gates that are not chosen yet
  T taken = full_like(sum(convert(gates, DType::f32), {1}), 0);  // [groups, experts]
  T total = full_like(sum(gates, {2}), 0);                       // [groups, tokens]
  T kept = full_like(sum(taken), 0), balance = full_like(sum(gates), 0);
  std::vector<T> combined;
  for (std::int64_t choice = 0; choice < top_k; ++choice) {
    const T chosen = eq(number, broadcast(argmax(left, 2), routed, {0, 1}));
    const T count = convert(chosen, DType::f32), gate = where(chosen, gates, 0.0);
    if (choice == 0) {
      balance = sum(mean(convert(chosen, dtype), {0, 1}) * mean(gates, {0, 1})) *
                static_cast<double>(routed[2]);
    }
    left = where(chosen, -1.0, left);
    const T before = cumsum(count, 1) - count + spread(taken, routed, {1});
    const T has_place = logical_and(chosen, lt(before, static_cast<double>(places)));
    taken = taken + sum(count, {1});
    total = total + sum(gate, {2});
    kept = kept + sum(convert(has_place, DType::f32));
    const T at =
        logical_and(eq(iota(gates, {DType::f32, placed}, 3), broadcast(before, placed, {0, 1, 2})),
                    broadcast(has_place, placed, {0, 1, 2}));
    combined.push_back(where(at, broadcast(gate, placed, {0, 1, 2}), 0.0));
  }
  T combine = combined.front();
  for (std::size_t i = 1; i < combined.size(); ++i) combine = combine + combined[i];
  if (top_k > 1) combine = combine / broadcast(total, placed, {0, 1});
  return {combine, kept, balance};
}

}  // namespace detail

/// A mixture of experts: each token goes to the `top_k` experts with the largest router logits, as
/// far as their capacity goes, and gets the sum of their results by its gates. x [groups, tokens,
/// width], router [width, experts]; block(rows, expert) is called once, with rows [n, width] and
/// one expert's slices of `params` along dim 0, and gives rows' type. Gates are the softmax of the
/// logits, divided by their sum over the chosen experts if there are several. First choices take
/// places before second ones, earlier tokens before later ones; a choice without a place adds
/// nothing. `params` is a tensor or a tree of them, as in scan().
///
/// With the axes of its options, each device routes its groups, and rows move to their experts and
/// back by all-to-alls. Mark dim 0 of `params` by `expert_axes`.
///
///   const auto block = [](const Tensor& rows, const Tensor& w) { return relu(linear(rows, w)); };
///   const Mixture<Tensor> mixed = experts(block, ws, x, router, {.top_k = 2, .capacity = 4});
///
/// (Source: Lepikhin et al., "GShard", arXiv 2006.16668, algorithm 1; Fedus et al., "Switch
/// Transformers", arXiv 2101.03961, equation 4.)
///
/// Throws invalid_argument for other shapes, a top_k that is more than the experts, or a negative
/// capacity.
template <TensorLike T, class Block, class Params>
Mixture<T> experts(Block&& block, const Params& params, const T& x, const T& router,
                   const ExpertsOptions& options = {}) {
  const Shape shape = x.type().shape, columns = router.type().shape;
  if (shape.size() != 3 || columns.size() != 2 || columns[0] != shape[2] || options.top_k < 1 ||
      options.top_k > columns[1] || options.capacity < 0) {
    refuse_all("experts", {x, router},
               "found top_k " + std::to_string(options.top_k) + " and capacity " +
                   std::to_string(options.capacity) +
                   ", needed x [groups, tokens, width], a router [width, experts], a top_k of 1 to "
                   "the experts, and a capacity of 0 or more");
  }
  const std::int64_t groups = shape[0], tokens = shape[1], width = shape[2], count = columns[1];
  const std::int64_t places = options.capacity == 0 ? tokens : std::min(options.capacity, tokens);
  const T gates = softmax(einsum("gsd,de->gse", x, router));
  const auto [combine, kept, balance] = detail::choose_experts(gates, options.top_k, places);
  const T dispatch = convert(gt(stop_gradient(combine), 0.0), x.type().dtype);

  PartitionSpec::Entry rest = options.group_axes;
  std::erase_if(rest, [&](const std::string& axis) {
    return std::ranges::find(options.expert_axes, axis) != options.expert_axes.end();
  });
  const auto marked = [&](const T& tensor, const PartitionSpec& spec) {
    if (options.group_axes.empty()) return tensor;
    T cut = identity(tensor);
    mark_sharding(cut, spec);
    return cut;
  };
  const PartitionSpec by_group{{}, options.group_axes, {}, {}},
      by_expert{options.expert_axes, rest, {}};
  const T gathered = marked(combine, {options.group_axes, {}, {}, {}});
  const T sent = marked(einsum("gsec,gsd->egcd", dispatch, x), by_group);
  const T rows = marked(reshape(sent, {count, groups * places, width}), by_expert);
  const T made = marked(vmap(block, rows, params), by_expert);
  const T back = marked(reshape(made, {count, groups, places, width}), by_group);
  const double choices = static_cast<double>(groups * tokens * options.top_k);
  return {marked(einsum("gsec,egcd->gsd", gathered, back), {options.group_axes, {}, {}}),
          choices - kept, balance};
}

}  // namespace shardwise
