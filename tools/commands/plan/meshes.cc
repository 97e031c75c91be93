#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "commands/plan/task.h"
#include "parse.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools::plans {
namespace {

bool is_best(const Task& task, const std::vector<MeshPlan>& plans, std::size_t i) {
  return i == 0 && plans[0].cost && (plans[0].fits || task.capacity_bytes == 0);
}

/// The axes of all these meshes.
std::vector<std::string> axes_of(const std::vector<MeshPlan>& plans) {
  std::vector<std::string> axes;
  for (const Axis& axis : plans.front().mesh.axes()) axes.push_back(axis.name);
  return axes;
}

/// Those of a search on this mesh.
std::string marks_text(const MeshPlan& plan) {
  std::string text = fmt::format("{} has these marks:\n", plan.mesh.to_string());
  for (const std::string& mark : plan.searched->marks) text += fmt::format("  --mark '{}'\n", mark);
  return text;
}

void print_as_json(const Task& task, std::int64_t devices, const std::vector<MeshPlan>& plans) {
  Json rows = Json::array();
  for (const MeshPlan& plan : plans) {
    Json row{{"mesh", plan.mesh.to_string()},
             {"fits", task.capacity_bytes == 0 ? Json() : Json(plan.fits)}};
    row.update(plan.cost ? cost_as_json(*plan.cost, task.machine.has_value())
                         : Json{{"refused", plan.refused}});
    if (plan.searched) row["marks"] = plan.searched->marks;
    rows.push_back(std::move(row));
  }
  print_json({{"program", task.program},
              {"operations", task.graph->nodes.size()},
              {"devices", devices},
              {"axes", axes_of(plans)},
              {"capacity_bytes", task.capacity_bytes == 0 ? Json() : Json(task.capacity_bytes)},
              {"modelled_on", task.machine ? Json(task.machine->name) : Json()},
              {"best", is_best(task, plans, 0) ? Json(plans[0].mesh.to_string()) : Json()},
              {"meshes", std::move(rows)}});
}

void print_table(const Task& task, std::int64_t devices, const std::vector<MeshPlan>& plans) {
  const bool has_times = task.machine.has_value(), has_capacity = task.capacity_bytes != 0;
  std::string text = fmt::format(
      "{}: {} operations on {} devices, by {}{}\n", task.program, task.graph->nodes.size(), devices,
      fmt::join(axes_of(plans), ", "),
      has_capacity ? fmt::format(", each of {}", human_bytes(task.capacity_bytes)) : "");
  std::vector<std::string> heading{"", "mesh"};
  if (has_capacity) heading.emplace_back("fits");
  for (const char* const column : {"needs", "sends"}) heading.emplace_back(column);
  if (has_times) {
    for (const char* const column : {"modelled", "bound by"}) heading.emplace_back(column);
  }
  TextTable table(heading);
  std::string refused;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const MeshPlan& plan = plans[i];
    if (!plan.cost) {
      refused += fmt::format("{} is refused: {}\n", plan.mesh.to_string(), plan.refused);
      continue;
    }
    std::vector<std::string> row{is_best(task, plans, i) ? "best" : "", plan.mesh.to_string()};
    if (has_capacity) row.emplace_back(plan.fits ? "yes" : "no");
    row.push_back(human_bytes(plan.cost->peak_bytes));
    row.push_back(human_bytes(plan.cost->wire_bytes));
    if (has_times) {
      row.push_back(time_text(plan.cost->seconds()));
      row.emplace_back(plan.cost->bound());
    }
    table.add(row);
  }
  text += table.to_string() + refused;
  if (has_times) {
    text +=
        fmt::format("times are modelled on {} ({})\n", task.machine->name, task.machine->source);
  }
  if (plans.front().searched) text += marks_text(plans.front());
  if (plans.size() == 1 && devices > 1) {
    text += wrapped(
        "one axis is marked, so there is one mesh: mark another axis, too, as in --mark "
        "'NAME=-,model', or let --search choose marks over two\n",
        kWidth, 0);
  }
  print_shown(text);
}

}  // namespace

int print_meshes(const Task& task, const PlanOptions& options) {
  const std::vector<MeshPlan> plans = words_of("plan", "--devices", [&] {
    ProgressLine line(options.search ? "search" : "plan");
    return options.search
               ? search_meshes(task.graph, options.devices, task.compare(line, "plans at most"))
               : plan_meshes(task.graph, options.devices, task.compare(line, "meshes"));
  });
  options.json ? print_as_json(task, options.devices, plans)
               : print_table(task, options.devices, plans);
  return is_best(task, plans, 0) ? 0 : 1;
}

}  // namespace shardwise::tools::plans
