#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "testing/errors.h"
#include "testing/random_shardings.h"
#include "trial.h"

// Changes of a program, its mesh or its devices that keep its results.

namespace shardwise {
namespace {

/// Outputs that differ in a bit, or "".
std::string different_bits(const Outcome& found, const Outcome& expected) {
  for (std::size_t o = 0; o < expected.outputs.size(); ++o) {
    if (found.outputs[o].to_host() == expected.outputs[o].to_host()) continue;
    const std::string text = different_numbers(found, expected);
    return text.empty() ? "output " + std::to_string(o) + " differs in a bit\n" + found.dump : text;
  }
  return "";
}

/// "" where both moved as many bytes.
std::string different_traffic(const Outcome& found, const Outcome& expected) {
  if (found.wire_bytes == expected.wire_bytes && found.sent_bytes == expected.sent_bytes) return "";
  const auto text = [](const Outcome& outcome) {
    return "wire " + std::to_string(outcome.wire_bytes) + ", sent " +
           std::to_string(outcome.sent_bytes) + " by\n" + outcome.dump;
  };
  return "found " + text(found) + "expected " + text(expected);
}

/// Computed nodes, each once: a node that only moves elements may be made again.
std::set<NodeId> computed(const Outcome& outcome) {
  std::set<NodeId> nodes;
  for (const PartitionedGraph::Step& step : outcome.partitioned.steps) {
    const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step);
    if (compute != nullptr) nodes.insert(compute->node);
    const auto* const loop = std::get_if<PartitionedGraph::Loop>(&step);
    if (loop != nullptr) nodes.insert(loop->node);
  }
  return nodes;
}

/// With other numbers than integers, so that the order of additions is seen.
Trial with_fractions(Trial trial) {
  for (std::size_t i = 0; i < trial.inputs.size(); ++i) {
    const DType dtype = trial.graph.node(trial.graph.inputs[i].node).type.dtype;
    if (!is_floating_type(dtype)) continue;
    std::vector<Number> numbers = decode(dtype, trial.inputs[i]);
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      numbers[n] = rounded(dtype, numbers[n] / 3 + static_cast<Number>(n % 7) / 11);
    }
    trial.inputs[i] = encode(dtype, numbers);
  }
  return trial;
}

/// The same axes in another order; each device keeps its place along each of them.
Mesh permuted_axes(const Mesh& mesh, RandomShardings& random) {
  std::vector<std::size_t> order(mesh.rank());
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random.engine());
  std::vector<Axis> axes;
  for (const std::size_t axis : order) axes.push_back(mesh.axes()[axis]);
  const Mesh plain(axes);
  std::vector<DeviceId> devices(as_size(mesh.size()));
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    std::int64_t to = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      to += mesh.coordinate(p, order[i]) * plain.stride(i);
    }
    devices[as_size(to)] = mesh.device_at(p);
  }
  return Mesh(std::move(axes), std::move(devices));
}

TEST(Metamorphic, TheOrderOfTheMeshsAxesChangesNothing) {
  check_trials(2'000'000, 3000, [](const Trial& trial) {
    RandomShardings random(trial.seed);
    Trial permuted = trial;
    permuted.mesh = permuted_axes(trial.mesh, random);
    const Outcome found = run(permuted), expected = run(trial);
    const std::string text = different_numbers(found, expected);
    return text.empty() ? different_traffic(found, expected) : text;
  });
}

TEST(Metamorphic, WhichDevicesTheMeshHasChangesNothing) {
  check_trials(2'100'000, 2000, [](const Trial& integers) {
    const Trial trial = with_fractions(integers);
    RandomShardings random(trial.seed);
    std::vector<DeviceId> devices(12);
    std::iota(devices.begin(), devices.end(), 0);
    std::shuffle(devices.begin(), devices.end(), random.engine());
    devices.resize(as_size(trial.mesh.size()));
    Trial elsewhere = trial;
    elsewhere.mesh = Mesh({trial.mesh.axes().begin(), trial.mesh.axes().end()}, devices);
    const Outcome found = run(elsewhere), expected = run(trial);
    const std::string text = different_bits(found, expected);
    return text.empty() ? different_traffic(found, expected) : text;
  });
}

TEST(Metamorphic, MoreMarksChangeOnlyMoves) {
  check_trials(2'200'000, 2000, [](const Trial& trial) {
    RandomShardings random(trial.seed);
    Trial marked = trial;
    for (Node& node : marked.graph.nodes) {
      if (random.draw(0, 2) == 0) node.mark = random.spec(trial.mesh, node.type.shape.size());
    }
    const Outcome found = run(marked), expected = run(trial);
    if (computed(found) != computed(expected)) return "other nodes are computed\n" + found.dump;
    return different_numbers(found, expected);
  });
}

TEST(Metamorphic, AMeshOfOneDeviceIsNone) {
  check_trials(2'300'000, 2000, [](const Trial& integers) {
    const Trial trial = with_fractions(integers);
    std::vector<Axis> axes(trial.mesh.axes().begin(), trial.mesh.axes().end());
    for (Axis& axis : axes) axis.size = 1;
    Trial small = trial;
    small.mesh = Mesh(axes, {3});
    const Outcome found = run(small), expected = run(on_one_device(trial));
    if (found.partitioned.steps.size() != computed(expected).size()) {
      return "something is moved\n" + found.dump;
    }
    return different_bits(found, expected);
  });
}

/// After a node its tensor cut as `here`, then as `there`, then as `here` again; all that used the
/// node uses the last.
Graph with_detour(const Graph& graph, NodeId after, const PartitionSpec& here,
                  const PartitionSpec& there) {
  Graph result = graph;
  const auto first = result.nodes.begin() + after + 1;
  Node stop{.op = Op::identity, .type = graph.node(after).type, .operands = {after}};
  std::vector<Node> stops;
  for (const PartitionSpec& spec : {here, there, here}) {
    stop.mark = spec;
    stops.push_back(stop);
    ++stop.operands[0];
  }
  const auto moved = [&](NodeId& id) {
    if (id >= after) id += 3;
  };
  std::for_each(first, result.nodes.end(), [&](Node& node) {
    for (NodeId& operand : node.operands) moved(operand);
  });
  for (GraphInput& input : result.inputs) {
    if (input.node > after) input.node += 3;
  }
  for (NodeId& output : result.outputs) moved(output);
  result.nodes.insert(first, stops.begin(), stops.end());
  result.outputs.insert(result.outputs.end(), {after + 1, after + 3});
  return result;
}

TEST(Metamorphic, ThereAndBackIsWhereItWas) {
  check_trials(2'400'000, 3000, [](const Trial& trial) {
    RandomShardings random(trial.seed);
    NodeId after = random.draw(0, static_cast<NodeId>(trial.graph.nodes.size()) - 1);
    if (has_bodies(trial.graph.node(after).op)) --after;  // its results use it alone
    const std::size_t rank = trial.graph.node(after).type.shape.size();
    const PartitionSpec here = random.spec(trial.mesh, rank), there = random.spec(trial.mesh, rank);
    Trial detour = trial;
    detour.graph = with_detour(trial.graph, after, here, there);
    const Outcome found = run(detour), expected = run(trial);
    const ShardedArray& start = found.outputs.end()[-2];
    const ShardedArray& end = found.outputs.back();
    for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
      const std::size_t size = start.buffer(p)->size_bytes();
      if (size != end.buffer(p)->size_bytes() ||
          std::memcmp(start.shard(p).data, end.shard(p).data, size) != 0) {
        return "position " + std::to_string(p) + " has come back with other bytes\n" + found.dump;
      }
    }
    return different_numbers(found, expected);
  });
}

TEST(Metamorphic, TheNumberOfWorkersChangesNoBit) {
  check_trials(2'500'000, 1000, [](const Trial& integers) {
    Trial trial = with_fractions(integers);
    trial.devices.threads = 1;
    const Outcome expected = run(trial);
    for (int threads = 2; threads <= 4; ++threads) {
      trial.devices.threads = threads;
      const std::string text = different_bits(run(trial), expected);
      if (!text.empty()) return std::to_string(threads) + " workers: " + text;
    }
    return std::string();
  });
}

TEST(Metamorphic, ItRunsInWhatWasPlannedAndNotInAByteLess) {
  check_trials(2'600'000, 500, [](const Trial& trial) {
    Trial tight = trial;
    const Outcome expected = run(trial);
    if (expected.peak_bytes == 0) return std::string();
    tight.devices.capacity_bytes = expected.peak_bytes;
    const std::string text = different_numbers(run(tight), expected);
    --tight.devices.capacity_bytes;
    message_of(ErrorCode::resource_exhausted, [&] { run(tight); });
    return text;
  });
}

}  // namespace
}  // namespace shardwise
