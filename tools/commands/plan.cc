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

void check_together(const PlanOptions& options) {
  if (options.mesh.has_value() == (options.devices != 0)) {
    throw BadUsage(fmt::format("plan: found {}, needed --mesh or --devices",
                               options.mesh ? "both --mesh and --devices" : "neither"));
  }
  const std::pair<const char*, bool> of_a_mesh[] = {
      {"--why", options.why.has_value()},
      {"--why-not", options.why_not.has_value()},
      {"--save-rate", options.save_bytes_per_second != 0},
      {"--html", options.html.has_value()}};
  std::vector<std::string_view> given;
  for (const auto& [option, is_given] : of_a_mesh) {
    if (!is_given) continue;
    if (!options.mesh) {
      throw BadUsage(fmt::format("plan: found {} with --devices, needed it with --mesh", option));
    }
    given.push_back(option);
  }
  if (options.search) given.emplace_back("--search");
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
  PageOptions page_options{
      .program = options.program,
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
  const Executable executable(
      task.graph, mesh,
      {.moves = MovePlans::left_out, .attention = Attention::fused, .may_donate = may_donate});
  const StepReport told = report(executable, task.machine.value_or(machines().front()));
  const bool fits = task.capacity_bytes == 0 || told.memory.peak_bytes <= task.capacity_bytes;
  std::optional<Changes> changes;
  if (!fits) changes = plans::find_changes(task, mesh);
  page_options.search = found ? &*found : nullptr;
  page_options.changes = changes ? &*changes : nullptr;
  if (options.html) {
    write_file("--html", *options.html,
               plan_html(executable, told, page_options, plans::line_of(task)));
  }
  if (options.json) {
    print_json(plans::Json::parse(plan_json(executable, told, page_options)));
  } else {
    print_shown(page(executable, told, page_options));
  }
  return fits ? 0 : 1;
}

}  // namespace shardwise::tools
