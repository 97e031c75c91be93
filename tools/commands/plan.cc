#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "commands/plan/task.h"
#include "output.h"
#include "parse.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise::tools {
namespace {

using plans::Json;

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

Json checkpoint_json(const Planned& planned) {
  const StorageNeeds needs = storage_needs(*planned.executable);
  const std::size_t bytes = needs.parameter_bytes + needs.optimizer_bytes;
  const double rate = planned.options.save_bytes_per_second;
  return {{"parameter_bytes", needs.parameter_bytes},
          {"optimizer_bytes", needs.optimizer_bytes},
          {"bytes", bytes},
          {"modelled_save_seconds", rate == 0 ? Json() : Json(static_cast<double>(bytes) / rate)},
          {"host_bytes_per_device", needs.device_bytes}};
}

Json input_json(const Planned& planned) {
  const std::size_t bytes = storage_needs(*planned.executable).input_bytes;
  const double seconds = planned.report.compute_seconds + planned.report.collective_seconds;
  const bool has_rate = planned.options.has_times && seconds > 0;
  return {{"bytes", bytes},
          {"modelled_bytes_per_second",
           has_rate ? Json(static_cast<double>(bytes) / seconds) : Json()}};
}

Json plan_json(const Planned& planned) {
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
  return {{"program", planned.options.program},    {"operations", executable.graph().nodes.size()},
          {"mesh", executable.mesh().to_string()}, {"devices", executable.mesh().size()},
          {"memory", memory_json(planned)},        {"traffic", std::move(traffic)},
          {"model_flops", report.model_flops},     {"device_flops", report.device_flops},
          {"modelled", std::move(modelled)},       {"checkpoint", checkpoint_json(planned)},
          {"input", input_json(planned)}};
}

void check_together(const PlanOptions& options) {
  if (options.mesh.has_value() == (options.devices != 0)) {
    throw BadUsage(fmt::format("plan: found {}, needed --mesh or --devices",
                               options.mesh ? "both --mesh and --devices" : "neither"));
  }
  const std::pair<const char*, bool> of_a_mesh[] = {
      {"--search", options.search},
      {"--why", options.why.has_value()},
      {"--why-not", options.why_not.has_value()},
      {"--save-rate", options.save_bytes_per_second != 0}};
  std::vector<std::string_view> given;
  for (const auto& [option, is_given] : of_a_mesh) {
    if (!is_given) continue;
    if (!options.mesh) {
      throw BadUsage(fmt::format("plan: found {} with --devices, needed it with --mesh", option));
    }
    given.push_back(option);
  }
  if (given.size() > 1 && (options.why || options.why_not)) {
    throw BadUsage(fmt::format("plan: found {} and {}, needed one of them", given[0], given[1]));
  }
  if (options.search && !options.device) {
    throw BadUsage("plan: found --search without --device, needed the machine of the times");
  }
}

}  // namespace

int run_plan(const PlanOptions& options) {
  check_together(options);
  if (!options.mesh) return plans::print_meshes(plans::load(options, {}), options);
  const Mesh mesh = words_of("plan", "--mesh", [&] { return parse_mesh(*options.mesh); });
  check_listed(mesh, "plan");
  plans::Task task = plans::load(options, mesh);
  if (options.why) return plans::print_why(task, mesh, options);
  if (options.why_not) return plans::print_why_not(task, mesh, options);
  Planned planned;
  planned.options = {.program = options.program,
                     .has_times = task.machine.has_value(),
                     .capacity_bytes = task.capacity_bytes,
                     .save_bytes_per_second = static_cast<double>(options.save_bytes_per_second)};
  std::optional<SearchedPlan> found;
  if (options.search) {
    found = plans::search(task, mesh);
    task.graph = std::make_shared<Graph>(*found->graph);
  }
  // As in a training loop: what is replaced is held by nobody else.
  const std::vector<bool> may_donate(task.graph->inputs.size(), true);
  const Executable executable(task.graph, mesh, {.may_donate = may_donate});
  planned.executable = &executable;
  planned.report = report(executable, task.machine.value_or(machines().front()));
  std::optional<Changes> changes;
  if (!planned.fits()) changes = plans::find_changes(task, mesh);
  if (options.json) {
    Json all = plan_json(planned);
    if (found) all["search"] = plans::search_json(*found);
    if (changes) all["changes"] = plans::changes_json(task, *changes);
    print_json(all);
  } else {
    print_shown((found ? plans::search_text(task, *found) : "") +
                page(executable, planned.report, planned.options) +
                (changes ? plans::changes_text(task, *changes) : ""));
  }
  return planned.fits() ? 0 : 1;
}

}  // namespace shardwise::tools
