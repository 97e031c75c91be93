#include "shardwise/runtime/spmd/detail/plans/batch.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr const char* kAxis = "batch";

[[noreturn]] void refuse(const Graph& graph, NodeId id, const char* what) {
  throw Error(ErrorCode::unsupported,
              fmt::format("change the batch: found {} in {}, needed all of the batch", what,
                          with_scope(graph, id)));
}

bool is_all(std::int64_t begin, std::int64_t end, std::int64_t stride, std::int64_t extent) {
  return begin == 0 && end == extent && stride == 1;
}

}  // namespace

BatchSize::BatchSize(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {
  find_batch();
  if (batch_ != 0) find_dims();
}

void BatchSize::find_batch() {
  std::int64_t batch = 0;
  for (const GraphInput& input : graph_->inputs) {
    const Shape& shape = graph_->node(input.node).type.shape;
    if (input.kind != MemoryKind::loader || shape.empty()) continue;
    if (batch != 0 && shape[0] != batch) {
      refused_ = fmt::format("data has {} and {} rows", batch, shape[0]);
      return;
    }
    batch = shape[0];
  }
  if (batch < 2) refused_ = "the program has no batch of several rows";
  for (const Node& node : graph_->nodes) {
    if (has_bodies(node.op)) refused_ = "the program has loops";
    if (node.manual || node.op == Op::leave_manual) refused_ = "the program has manual regions";
  }
  if (refused_.empty()) batch_ = batch;
}

void BatchSize::find_dims() {
  Graph marked = *graph_;
  for (Node& node : marked.nodes) node.mark.reset();
  for (const GraphInput& input : marked.inputs) {
    Node& node = marked.node(input.node);
    if (input.kind != MemoryKind::loader || node.type.shape.empty()) continue;
    std::vector<PartitionSpec::Entry> entries(node.type.shape.size());
    entries[0] = {kAxis};
    node.mark = PartitionSpec(std::move(entries));
  }
  const Propagation told = propagate(marked, Mesh({Axis{kAxis, batch_}}));
  for (const Cut& cut : told.cuts) {
    grows_.emplace_back();
    for (const AxisList& axes : cut) grows_.back().push_back(!axes.empty());
  }
}

std::int64_t BatchSize::scaled(std::int64_t extent, std::int64_t batch) const {
  return extent / batch_ * batch;
}

std::shared_ptr<const Graph> BatchSize::with(std::int64_t batch) const {
  Graph graph = *graph_;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    Shape& shape = graph.nodes[i].type.shape;
    scale_attributes(graph, id, batch);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (!grows_[i][dim]) continue;
      if (shape[dim] % batch_ != 0) refuse(*graph_, id, "a part");
      shape[dim] = scaled(shape[dim], batch);
    }
  }
  // Reads the text again, which checks each operation.
  std::vector<LiteralAttributes> elements;
  for (const Node* const node : literals(graph)) {
    elements.push_back(std::get<LiteralAttributes>(node->attributes));
  }
  return std::make_shared<const Graph>(parse_graph(dump(graph), elements));
}

void BatchSize::scale_attributes(Graph& graph, NodeId id, std::int64_t batch) const {
  Node& node = graph.node(id);
  const std::vector<bool>& result = grows_[as_size(id)];
  const auto first = [&](std::size_t dim) {
    return !node.operands.empty() && grows_[as_size(node.operands[0])][dim];
  };
  const auto extent = [&](std::size_t dim) {
    return graph_->node(node.operands[0]).type.shape[dim];
  };
  if (auto* const slice = std::get_if<SliceAttributes>(&node.attributes)) {
    for (std::size_t dim = 0; dim < result.size(); ++dim) {
      if (!first(dim)) continue;
      if (!is_all(slice->begin[dim], slice->end[dim], slice->stride[dim], extent(dim))) {
        refuse(*graph_, id, "a slice");
      }
      slice->end[dim] = scaled(slice->end[dim], batch);
    }
  } else if (const auto* const pad = std::get_if<PadAttributes>(&node.attributes)) {
    for (std::size_t dim = 0; dim < result.size(); ++dim) {
      const bool is_none = pad->low[dim] == 0 && pad->high[dim] == 0 && pad->stride[dim] == 1;
      if (first(dim) && !is_none) refuse(*graph_, id, "padding");
    }
  } else if (const auto* const window = std::get_if<WindowAttributes>(&node.attributes)) {
    for (std::size_t dim = 0; dim < window->window.size(); ++dim) {
      if (first(dim) && (window->window[dim] != 1 || window->stride[dim] != 1)) {
        refuse(*graph_, id, "a window");
      }
    }
  } else if (auto* const scatter = std::get_if<ScatterAttributes>(&node.attributes)) {
    if (result[as_size(scatter->dim)]) scatter->extent = scaled(scatter->extent, batch);
  } else if (auto* const shape = std::get_if<ShapeAttributes>(&node.attributes)) {
    for (std::size_t dim = 0; dim < result.size(); ++dim) {
      if (result[dim]) shape->shape[dim] = scaled(shape->shape[dim], batch);
    }
  } else if (std::holds_alternative<LiteralAttributes>(node.attributes)) {
    for (const bool grows : result) {
      if (grows) refuse(*graph_, id, "a literal");
    }
  }
}

}  // namespace shardwise::detail
