#include <fmt/format.h>

#include "commands/plan/task.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools::plans {

SearchedPlan search(const Task& task, const Mesh& mesh) {
  ProgressLine line("search");
  return search_marks(task.graph, mesh, task.compare(line, "plans at most"));
}

std::string search_text(const Task& task, const SearchedPlan& found) {
  const bool has_capacity = task.capacity_bytes != 0;
  std::string text =
      fmt::format("{} of {} plans, by modelled times on {}:\n",
                  found.is_exact ? "the best" : "the best found", found.plans, task.machine->name);
  for (const std::string& mark : found.marks) text += fmt::format("  --mark '{}'\n", mark);
  TextTable table({"plan", "fits", "needs", "sends", "modelled", "bound by"});
  const auto add = [&](const std::string& name, const PlanCost& cost, bool fits) {
    table.add({name,
               !has_capacity ? "-"
               : fits        ? "yes"
                             : "no",
               human_bytes(cost.peak_bytes), human_bytes(cost.wire_bytes),
               time_text(cost.seconds()), std::string(cost.bound())});
  };
  add("these marks", found.cost, found.fits);
  for (const HandMadePlan& plan : found.hand_made) add(plan.name, plan.cost, plan.fits);
  return text + table.to_string() + '\n';
}

Json search_json(const SearchedPlan& found) {
  Json hand_made = Json::array();
  for (const HandMadePlan& plan : found.hand_made) {
    Json row{{"plan", plan.name}, {"fits", plan.fits}};
    row.update(cost_json(plan.cost, true));
    hand_made.push_back(std::move(row));
  }
  return {{"marks", found.marks},
          {"plans", found.plans},
          {"exact", found.is_exact},
          {"cost", cost_json(found.cost, true)},
          {"hand_made", std::move(hand_made)}};
}

}  // namespace shardwise::tools::plans
