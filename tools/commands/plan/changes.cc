#include <fmt/format.h>

#include "commands/plan/task.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools::plans {
namespace {

const char* name(Change::Kind kind) {
  switch (kind) {
    case Change::Kind::marks:
      return "marks";
    case Change::Kind::mesh:
      return "mesh";
    case Change::Kind::batch:
      return "batch";
    case Change::Kind::recompute:
      return "recompute";
  }
  return "";
}

}  // namespace

Changes find_changes(const Task& task, const Mesh& mesh) {
  ProgressLine line("plan");
  return changes_that_fit(task.graph, mesh, task.compare(line, "changes"));
}

std::string changes_text(const Task& task, const Changes& found) {
  const bool has_times = task.machine.has_value();
  std::vector<std::string> heading{"fits", "needs", "sends"};
  if (has_times) {
    heading.insert(heading.end(), {"modelled", "for a whole batch"});
  }
  heading.emplace_back("change");
  TextTable table(heading);
  std::string marks;
  for (const Change& change : found.changes) {
    std::vector<std::string> row{change.fits ? "yes" : "no", human_bytes(change.cost.peak_bytes),
                                 human_bytes(change.cost.wire_bytes)};
    if (has_times) {
      row.push_back(time_text(change.cost.seconds()));
      row.push_back(time_text(change.seconds()));
    }
    const bool is_long = change.marks.size() > 1;
    row.push_back(is_long ? fmt::format("{} marks, below", change.marks.size()) : change.text);
    table.add(row);
    if (is_long) {
      for (const std::string& mark : change.marks) marks += fmt::format("  --mark '{}'\n", mark);
    }
  }
  std::string text = "\nthe cheapest change of each kind\n" + table.to_string() + marks;
  if (!found.batch_refused.empty()) {
    text += fmt::format("no smaller batch: {}\n", found.batch_refused);
  }
  return text;
}

Json changes_json(const Task& task, const Changes& found) {
  Json changes = Json::array();
  for (const Change& change : found.changes) {
    changes.push_back({{"kind", name(change.kind)},
                       {"change", change.text},
                       {"marks", change.marks},
                       {"mesh", change.mesh ? Json(change.mesh->to_string()) : Json()},
                       {"batch", change.batch == 0 ? Json() : Json(change.batch)},
                       {"fits", change.fits},
                       {"cost", cost_json(change.cost, task.machine.has_value())},
                       {"part_of_batch", change.part}});
  }
  return changes;
}

}  // namespace shardwise::tools::plans
