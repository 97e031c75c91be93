#include "shardwise/runtime/spmd/detail/plans/recompute.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "shardwise/runtime/graph/op.h"

namespace shardwise::detail {
namespace {

/// A scope up to its first part that ends in a number, and the same with a star for the number.
struct Block {
  std::string place, name;
};

std::optional<Block> block_of(const std::string& scope) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (std::size_t begin = 0; begin < scope.size();) {
    const std::size_t end = std::min(scope.find('/', begin), scope.size());
    std::size_t digits = end;
    while (digits > begin && is_digit(scope[digits - 1])) --digits;
    if (digits < end) return Block{scope.substr(0, end), scope.substr(0, digits) + '*'};
    begin = end + 1;
  }
  return std::nullopt;
}

bool is_computed_again(const Node& node) {
  return !node.backward && !node.manual && node.op != Op::input && node.op != Op::result &&
         !has_bodies(node.op);
}

/// Chooses the values of blocks that are recomputed.
class Recomputing {
 public:
  Recomputing(const Graph& graph, const RepeatedBlocks& blocks)
      : graph_(graph), blocks_(blocks), copied_(graph.nodes.size(), false) {
    std::vector<bool> kept(graph.nodes.size(), false);
    for (const NodeId output : graph.outputs) kept[as_size(output)] = true;
    for (const Node& node : graph.nodes) {
      for (const NodeId operand : node.operands) {
        const std::int32_t block = block_number(operand);
        if (node.backward || block < 0) continue;
        const bool is_inside =
            is_computed_again(node) && blocks_.of_scope[as_size(node.scope)] == block;
        if (!is_inside) kept[as_size(operand)] = true;
      }
    }
    std::vector<NodeId> open;
    const auto need = [&](NodeId id) {
      if (block_number(id) < 0 || kept[as_size(id)] || copied_[as_size(id)]) return;
      copied_[as_size(id)] = true;
      open.push_back(id);
    };
    first_use_.assign(as_size(blocks.count), -1);
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!graph.nodes[i].backward) continue;
      for (const NodeId operand : graph.nodes[i].operands) {
        need(operand);
        if (!copied_[as_size(operand)]) continue;
        NodeId& first = first_use_[as_size(block_number(operand))];
        if (first < 0) first = static_cast<NodeId>(i);
      }
    }
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      for (const NodeId operand : graph.node(id).operands) need(operand);
    }
    // A block that runs again after its gradient began, as for the next part of a batch, keeps
    // those values.
    for (std::size_t i = 0; i < copied_.size(); ++i) {
      if (!copied_[i]) continue;
      const NodeId first = first_use_[as_size(block_number(static_cast<NodeId>(i)))];
      copied_[i] = static_cast<NodeId>(i) < first;
    }
  }

  std::int64_t count() const { return std::ranges::count(copied_, true); }

  std::shared_ptr<const Graph> run() const {
    auto made = std::make_shared<Graph>(graph_);
    made->nodes.clear();
    std::multimap<NodeId, std::int32_t> blocks_at;
    for (std::size_t b = 0; b < first_use_.size(); ++b) {
      if (first_use_[b] >= 0) blocks_at.emplace(first_use_[b], static_cast<std::int32_t>(b));
    }
    std::vector<std::vector<NodeId>> copied_of(first_use_.size());  // by block
    for (std::size_t i = 0; i < copied_.size(); ++i) {
      const auto id = static_cast<NodeId>(i);
      if (copied_[i]) copied_of[as_size(block_number(id))].push_back(id);
    }
    std::vector<NodeId> own(graph_.nodes.size(), -1), copies(graph_.nodes.size(), -1);
    const auto add = [&](const Node& node, bool uses_copies) {
      made->nodes.push_back(node);
      for (NodeId& operand : made->nodes.back().operands) {
        const NodeId copy = copies[as_size(operand)];
        operand = uses_copies && copy >= 0 ? copy : own[as_size(operand)];
      }
      return static_cast<NodeId>(made->nodes.size()) - 1;
    };
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto [begin, end] = blocks_at.equal_range(static_cast<NodeId>(i));
      for (auto at = begin; at != end; ++at) {
        for (const NodeId id : copied_of[as_size(at->second)]) {
          copies[as_size(id)] = add(graph_.node(id), true);
          made->nodes.back().backward = true;
        }
      }
      own[i] = add(graph_.nodes[i], graph_.nodes[i].backward);
    }
    for (GraphInput& input : made->inputs) input.node = own[as_size(input.node)];
    for (NodeId& output : made->outputs) output = own[as_size(output)];
    return made;
  }

 private:
  /// -1 if it is in no block, or is not recomputed.
  std::int32_t block_number(NodeId id) const {
    const Node& node = graph_.node(id);
    return is_computed_again(node) ? blocks_.of_scope[as_size(node.scope)] : -1;
  }

  const Graph& graph_;
  const RepeatedBlocks& blocks_;
  std::vector<bool> copied_;       ///< by node
  std::vector<NodeId> first_use_;  ///< by block: the first node of the gradient that uses a value
};

}  // namespace

std::vector<RepeatedBlocks> repeated_blocks(const Graph& graph) {
  std::map<std::string, RepeatedBlocks> by_name;
  std::map<std::string, std::int32_t> numbers;
  for (std::size_t s = 0; s < graph.scopes.size(); ++s) {
    const std::optional<Block> block = block_of(graph.scopes[s]);
    if (!block) continue;
    RepeatedBlocks& blocks = by_name[block->name];
    blocks.name = block->name;
    blocks.of_scope.resize(graph.scopes.size(), -1);
    const auto [at, is_new] = numbers.emplace(block->place, blocks.count);
    if (is_new) ++blocks.count;
    blocks.of_scope[s] = at->second;
  }
  std::vector<std::pair<std::int64_t, RepeatedBlocks>> sized;
  for (auto& [name, blocks] : by_name) {
    if (blocks.count < 2) continue;
    const std::int64_t nodes = Recomputing(graph, blocks).count();
    if (nodes > 0) sized.emplace_back(nodes, std::move(blocks));
  }
  std::ranges::stable_sort(sized, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<RepeatedBlocks> all;
  all.reserve(sized.size());
  for (auto& [nodes, blocks] : sized) all.push_back(std::move(blocks));
  return all;
}

std::shared_ptr<const Graph> recomputed(const Graph& graph, const RepeatedBlocks& blocks) {
  return Recomputing(graph, blocks).run();
}

}  // namespace shardwise::detail
