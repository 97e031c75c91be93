#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reshard.h"
#include "shardwise/convert/program_file.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLargest = 10;

/// What both the page and its JSON say.
struct Planned {
  const Executable* executable = nullptr;
  PageOptions options = {};
  StepReport report = {};

  bool fits() const {
    return options.capacity_bytes == 0 || report.memory.peak_bytes <= options.capacity_bytes;
  }
};

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

/// Marks the inputs whose labels the rules match. The specs must fit the mesh, and each rule match.
void mark(Graph& graph, const Mesh& mesh, const std::vector<std::string>& marks) {
  if (marks.empty()) return;
  words_of("plan", "--mark", [&] {
    const SpecRules rules = SpecRules::parse(fmt::format("{}", fmt::join(marks, ";")));
    for (const GraphInput& input : graph.inputs) {
      const auto spec = rules.find(input.label, graph.node(input.node).type.shape.size());
      if (spec) Sharding(mesh, *spec);  // throws if it does not fit
    }
    mark_inputs(graph, rules);
    return 0;
  });
}

Json memory_json(const Planned& planned) {
  const std::size_t peak = planned.report.memory.peak_bytes,
                    capacity = planned.options.capacity_bytes;
  const FullestStep fullest = planned.executable->fullest_step();
  Json kinds = Json::object(), largest = Json::array();
  for (const auto& [kind, bytes] : bytes_by_kind(fullest, peak)) kinds[kind] = bytes;
  for (const FullestStep::Held& held : fullest.held) {
    if (largest.size() == kLargest) break;
    largest.push_back({{"tensor", held.label},
                       {"kind", held.kind_name()},
                       {"type", to_string(held.type)},
                       {"cut", held.cut},
                       {"bytes", held.bytes}});
  }
  const bool fits = planned.fits();
  return {{"peak_bytes", peak},
          {"capacity_bytes", capacity == 0 ? Json() : Json(capacity)},
          {"fits", capacity == 0 ? Json() : Json(fits)},
          {"advice", fits ? Json() : Json(planned.executable->suggest(capacity))},
          {"by_kind", std::move(kinds)},
          {"step", fullest.name},
          {"scope", fullest.scope},
          {"largest", std::move(largest)}};
}

void print_as_json(const Planned& planned) {
  const Executable& executable = *planned.executable;
  const StepReport& report = planned.report;
  Json traffic = Json::array();
  for (const Traffic& one : executable.traffic()) {
    traffic.push_back({{"collective", name(one.kind)},
                       {"axes", one.axes},
                       {"scope", one.scope},
                       {"is_asked_for", one.is_asked_for},
                       {"tensors", one.tensors},
                       {"bytes", one.bytes},
                       {"wire_bytes", one.wire_bytes},
                       {"largest", one.largest},
                       {"needed_by", one.needed_by}});
  }
  Json modelled;
  if (planned.options.has_times) {
    modelled = {{"machine", report.machine.name},
                {"compute_seconds", report.compute_seconds},
                {"collective_seconds", report.collective_seconds},
                {"source", report.machine.source}};
  }
  print_json({{"program", planned.options.program},
              {"operations", executable.graph().nodes.size()},
              {"mesh", executable.mesh().to_string()},
              {"devices", executable.mesh().size()},
              {"memory", memory_json(planned)},
              {"traffic", std::move(traffic)},
              {"model_flops", report.model_flops},
              {"device_flops", report.device_flops},
              {"modelled", std::move(modelled)}});
}

}  // namespace

int run_plan(const PlanOptions& options) {
  const Mesh mesh = words_of("plan", "--mesh", [&] { return parse_mesh(options.mesh); });
  check_listed(mesh, "plan");
  Planned planned;
  const std::optional<Machine> machine = machine_of(options.device);
  planned.options = {.program = options.program, .has_times = machine.has_value()};
  planned.options.capacity_bytes = machine ? machine->memory_bytes : 0;
  if (options.memory_bytes != 0) planned.options.capacity_bytes = options.memory_bytes;

  auto graph = std::make_shared<Graph>(load_program(options.program));
  mark(*graph, mesh, options.marks);
  // As in a training loop: what is replaced is held by nobody else.
  const std::vector<bool> may_donate(graph->inputs.size(), true);
  const Executable executable(graph, mesh, {.may_donate = may_donate});
  planned.executable = &executable;
  planned.report = report(executable, machine.value_or(machines().front()));
  if (options.json) {
    print_as_json(planned);
  } else {
    print_shown(page(executable, planned.report, planned.options));
  }
  return planned.fits() ? 0 : 1;
}

}  // namespace shardwise::tools
