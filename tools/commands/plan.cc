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

/// Status 1 if it does not fit, on any mesh of --devices.
int run_plan(PlanOptions& options) {
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
  // Nobody else holds a replaced array, as in a training loop.
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

}  // namespace

void declare_plan(CLI::App& app, Run& run) {
  const auto [plan, options] = add_command(
      app, run, "plan",
      "Plan a program on a mesh without running it: memory, bytes on the wire, time; exit status "
      "1: it does not fit",
      "shardwise plan step.swp --mesh data=8,model=8 --device h100-80gb\n"
      "  shardwise plan step.swp --mesh data=8 --memory 80GB --mark '*.w1=-,data' --mark '*=-'\n"
      "  shardwise plan step.swp --devices 64 --device h100-80gb --search",
      run_plan);
  add_path(plan, "program", options.program, "A program file, as save_program() writes it");
  plan.add_option("--mesh", options.mesh, "Mesh: data=8,model=8");
  plan.add_option(
          "--devices", options.devices,
          "In place of a mesh: compare all meshes of this number of devices, up to 4096, "
          "with the axes that marks name; with --search each with the marks that it chooses")
      ->check(whole(1, kMostMeshDevices));
  plan.add_option("--mark", options.marks,
                  "Mark inputs, and what replaces them, otherwise than the file (may be repeated); "
                  "the first pattern that matches counts")
      ->type_name("NAME-PATTERN=SPEC")
      ->allow_extra_args(false);
  std::vector<std::string> ids;
  for (const Machine& machine : machines()) ids.push_back(machine.id);
  plan.add_option("--device", options.device,
                  fmt::format("Machine whose memory and modelled times are asked for: {}",
                              fmt::join(ids, ", ")));
  add_size(plan, "--memory", options.memory_bytes, {1, std::size_t{1} << 60},
           "Memory of each device, 80GiB, instead of the machine's");
  add_rate(plan, "--save-rate", options.save_bytes_per_second,
           "Bytes a second that checkpoints are written with, 2GB/s: how long a save takes");
  plan.add_option("--why", options.why,
                  "Say why a tensor is cut as it is: an input's name, or an operation as %98")
      ->type_name("NAME");
  plan.add_option("--why-not", options.why_not,
                  "Say why a tensor is not cut in another way, the cost of that cut, and which "
                  "other marks would bring it")
      ->type_name("NAME=SPEC");
  plan.add_option("--attention", options.attention,
                  "fused: in a kernel, without memory for its scores; written: with them")
      ->check(CLI::IsMember({"fused", "written"}))
      ->capture_default_str();
  plan.add_option("--html", options.html,
                  "Also write the plan as a page for a browser to this file: memory over the step, "
                  "collectives, the inputs with their tiles, tables")
      ->type_name("FILE");
  plan.add_flag(
      "--search", options.search,
      "Choose the marks of parameters, optimizer state and data: the fastest, by modelled "
      "times, that fits; needs --device. Takes up to a minute for a large program, on each mesh");
}

}  // namespace shardwise::tools
