#include "trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "random_program.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/spmd/detail/planned.h"

namespace shardwise {
namespace {

/// The problem that the check finds, or the text of an exception.
std::string problem(const Trial& trial, const Check& check) {
  try {
    return check(trial);
  } catch (const std::exception& error) {
    return error.what() + ('\n' + trial.mesh.to_string()) + '\n' + dump(trial.graph);
  }
}

/// Fewer marks and outputs that still show the problem.
Trial shrink(Trial trial, const Check& check) {
  const auto take = [&](Trial smaller) {
    if (!problem(smaller, check).empty()) trial = std::move(smaller);
  };
  for (const NodeId output : std::vector<NodeId>(trial.graph.outputs)) {
    Trial one = trial;
    one.graph.outputs = {output};
    take(std::move(one));
  }
  Trial plain = trial;
  plain.options = {};
  take(std::move(plain));
  for (std::size_t i = 0; i < trial.graph.nodes.size(); ++i) {
    if (!trial.graph.nodes[i].mark) continue;
    Trial fewer = trial;
    fewer.graph.nodes[i].mark.reset();
    take(std::move(fewer));
  }
  return trial;
}

}  // namespace

Trial random_trial(std::uint32_t seed) {
  RandomProgram program(seed);
  Trial trial{.seed = seed};
  trial.mesh = program.random_mesh();
  program.mark(trial.mesh);
  trial.graph = program.graph;
  trial.has_special_values = program.has_special_values();
  trial.devices.threads = 1 << seed % 3;
  trial.runs = seed % 5 == 0 ? 2 : 1;
  trial.options.partition.keep_gathered_weights = program.below(2) == 0;
  for (const GraphInput& input : trial.graph.inputs) {
    const TensorType& type = trial.graph.node(input.node).type;
    trial.inputs.push_back(program.random_values(type));
    trial.options.may_donate.push_back(program.below(2) == 0);
    const bool cut_otherwise = program.below(4) == 0;
    trial.options.input_specs.push_back(
        cut_otherwise ? std::optional(program.random_spec(trial.mesh, type.shape)) : std::nullopt);
  }
  return trial;
}

Graph unmarked(Graph graph) {
  for (Node& node : graph.nodes) {
    node.mark.reset();
    for_each_body(node, [](Graph& body) { body = unmarked(std::move(body)); });
  }
  return graph;
}

Trial on_one_device(const Trial& trial) {
  Trial one{.graph = trial.graph, .inputs = trial.inputs};
  one.graph = unmarked(one.graph);
  return one;
}

Outcome run(const Trial& trial) {
  std::int64_t last = 0;
  for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
    last = std::max(last, trial.mesh.device_at(p));
  }
  Devices devices(last + 1, trial.devices);
  const Executable executable(std::make_shared<const Graph>(trial.graph), trial.mesh,
                              trial.options);
  Outcome outcome{
      .outputs = {},
      .partitioned = planned_program(executable).partitioned,
      .wire_bytes = 0,
      .sent_bytes = 0,
      .peak_bytes = 0,
      .dump = trial.mesh.to_string() + '\n' + dump_steps(executable) + dump_plan(executable)};
  for (const CollectiveTotal& total : executable.collectives()) {
    outcome.wire_bytes += total.wire_bytes;
  }
  std::size_t by_scope = 0, held_at_once = 0;
  for (const Traffic& one : traffic(executable)) by_scope += one.wire_bytes;
  EXPECT_EQ(by_scope, outcome.wire_bytes) << outcome.dump;
  for (const FullestStep::Held& held : fullest_step(executable).held) held_at_once += held.bytes;
  EXPECT_LE(held_at_once, executable.memory(0).peak_bytes) << outcome.dump;
  const auto sent_bytes = [&] {
    std::size_t bytes = 0;
    for (const DeviceId id : devices.addressable()) bytes += devices.at(id).traffic().sent_bytes;
    return bytes;
  };
  for (int turn = 0; turn < trial.runs; ++turn) {
    outcome.outputs.clear();  // they would count
    for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
      devices.at(trial.mesh.device_at(p)).reset_peak();
    }
    std::vector<ShardedArray> inputs;
    for (std::size_t i = 0; i < trial.inputs.size(); ++i) {
      inputs.push_back(ShardedArray::from_host(devices, executable.input_spec(i), trial.inputs[i]));
    }
    const std::size_t before = sent_bytes();
    outcome.outputs = executable.run(devices, std::move(inputs));
    outcome.sent_bytes = sent_bytes() - before;
    for (std::size_t o = 0; o < outcome.outputs.size(); ++o) {
      EXPECT_TRUE(executable.output_spec(o).sharding == outcome.outputs[o].spec().sharding)
          << "output " << o << outcome.dump;
    }
    for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
      const std::size_t measured = devices.at(trial.mesh.device_at(p)).memory().peak_bytes;
      const std::size_t planned = executable.memory(p).peak_bytes;
      EXPECT_EQ(planned, measured) << "position " << p << outcome.dump;
      outcome.peak_bytes = std::max(outcome.peak_bytes, planned);
    }
  }
  return outcome;
}

std::string different_numbers(const Outcome& found, const Outcome& expected, ZeroSign zero_sign) {
  for (std::size_t o = 0; o < expected.outputs.size(); ++o) {
    const DType dtype = expected.outputs[o].dtype();
    const std::string text = difference(decode(dtype, found.outputs[o].to_host()),
                                        decode(dtype, expected.outputs[o].to_host()), 0, zero_sign);
    if (!text.empty()) {
      return "output " + std::to_string(o) + ' ' + text + '\n' + found.dump + "expected of\n" +
             expected.dump;
    }
  }
  return "";
}

std::string lost_in_text(const Graph& graph) {
  std::vector<LiteralAttributes> given;
  for (const Node* const node : literals(graph)) {
    given.push_back(std::get<LiteralAttributes>(node->attributes));
  }
  const std::string text = dump(graph);
  const Graph again = parse_graph(text, given);
  if (!same_program(again, graph) || hash(again) != hash(graph)) return "another program\n" + text;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    if (again.inputs[i].label != graph.inputs[i].label) return "another label\n" + text;
  }
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const Node &found = again.nodes[id], &needed = graph.nodes[id];
    if (again.scopes[as_size(found.scope)] != graph.scopes[as_size(needed.scope)] ||
        found.backward != needed.backward || found.manual != needed.manual ||
        found.block != needed.block || found.is_saved != needed.is_saved) {
      return "other facts of %" + std::to_string(id) + '\n' + text;
    }
  }
  return dump(again) == text ? "" : "another text\n" + text + dump(again);
}

void check_trials(std::uint32_t first, std::uint32_t count, const Check& check,
                  const std::function<void(const Trial&)>& passed) {
  for (std::uint32_t seed = first; seed < first + count; ++seed) {
    const Trial trial = random_trial(seed);
    if (!problem(trial, check).empty()) {
      FAIL() << "seed " << seed << ": " << problem(shrink(trial, check), check);
    }
    if (testing::Test::HasFailure()) return;
    passed(trial);
  }
}

}  // namespace shardwise
