#include "commands/plan/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "parse.h"
#include "shardwise/convert/program_file.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::tools::plans {
namespace {

std::optional<Machine> machine_of(const std::optional<std::string>& id) {
  if (!id) return std::nullopt;
  std::vector<std::string> ids;
  for (const Machine& machine : machines()) {
    if (machine.id == *id) return machine;
    ids.push_back(machine.id);
  }
  throw BadUsage(
      fmt::format("plan: --device: found \"{}\", needed one of {}", *id, fmt::join(ids, ", ")));
}

/// Marks the inputs whose labels the rules match. Each rule must match, and the specs fit the mesh.
void mark(Graph& graph, const std::optional<Mesh>& mesh, const std::vector<std::string>& marks) {
  if (marks.empty()) return;
  words_of("plan", "--mark", [&] {
    const SpecRules rules = SpecRules::parse(fmt::format("{}", fmt::join(marks, ";")));
    for (const GraphInput& input : graph.inputs) {
      const auto spec = rules.find(input.label, graph.node(input.node).type.shape.size());
      if (spec && mesh) Sharding(*mesh, *spec);  // throws if it does not fit
    }
    mark_inputs(graph, rules);
    return 0;
  });
}

}  // namespace

CompareOptions Task::compare(ProgressLine& line, const char* unit) const {
  return {.machine = machine,
          .capacity_bytes = capacity_bytes,
          .threads = 0,
          .progress = line.counter(unit)};
}

Task load(const PlanOptions& options, const std::optional<Mesh>& mesh) {
  Task task{.program = options.program,
            .graph = nullptr,
            .file_marks = {},
            .machine = machine_of(options.device)};
  task.capacity_bytes = task.machine ? task.machine->memory_bytes : 0;
  if (options.memory_bytes != 0) task.capacity_bytes = options.memory_bytes;
  task.graph = std::make_shared<Graph>(load_program(options.program));
  if (options.attention == "written") {
    task.graph = std::make_shared<Graph>(*with_written_attention(task.graph));
  }
  for (const Node& node : task.graph->nodes) task.file_marks.push_back(node.mark);
  mark(*task.graph, mesh, options.marks);
  return task;
}

SearchedPlan search(const Task& task, const Mesh& mesh) {
  ProgressLine line("search");
  return search_marks(task.graph, mesh, task.compare(line, "plans at most"));
}

Changes find_changes(const Task& task, const Mesh& mesh) {
  ProgressLine line("plan");
  return changes_that_fit(task.graph, mesh, task.compare(line, "changes"));
}

Json cost_as_json(const PlanCost& cost, bool has_times) {
  return Json::parse(cost_json(cost, has_times));
}

}  // namespace shardwise::tools::plans
