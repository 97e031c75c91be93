#include "shardwise/runtime/spmd/detail/plans/found.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

using detail::JsonWriter;

void put_cost(JsonWriter& json, const PlanCost& cost, bool has_times) {
  const auto put_time = [&](std::string_view key, double seconds) {
    json.key(key);
    has_times ? json.number(seconds) : json.null();
  };
  json.key("peak_bytes").number(cost.peak_bytes).key("wire_bytes").number(cost.wire_bytes);
  put_time("modelled_seconds", cost.seconds());
  put_time("compute_seconds", cost.compute_seconds);
  put_time("memory_seconds", cost.memory_seconds);
  put_time("wire_seconds", cost.wire_seconds);
  json.key("bound_by");
  has_times ? json.text(cost.bound()) : json.null();
}

void put_texts(JsonWriter& json, std::string_view key, const std::vector<std::string>& texts) {
  json.key(key).open('[');
  for (const std::string& text : texts) json.text(text);
  json.close(']');
}

void put_search(JsonWriter& json, const SearchedPlan& found) {
  json.key("search").open('{');
  put_texts(json, "marks", found.marks);
  json.key("plans").number(found.plans).key("exact").boolean(found.is_exact);
  json.key("fits").boolean(found.fits).key("cost").open('{');
  put_cost(json, found.cost, true);
  json.close('}').key("hand_made").open('[');
  for (const HandMadePlan& plan : found.hand_made) {
    json.open('{').key("plan").text(plan.name).key("fits").boolean(plan.fits);
    put_cost(json, plan.cost, true);
    json.close('}');
  }
  json.close(']').close('}');
}

void put_change(JsonWriter& json, const Change& change, bool has_times) {
  json.open('{').key("kind").text(name(change.kind)).key("change").text(change.text);
  put_texts(json, "marks", change.marks);
  json.key("mesh");
  change.mesh ? json.text(change.mesh->to_string()) : json.null();
  json.key("batch");
  change.batch == 0 ? json.null() : json.number(change.batch);
  json.key("fits").boolean(change.fits).key("cost").open('{');
  put_cost(json, change.cost, has_times);
  json.close('}').key("part_of_batch").number(change.part).key("whole_batch_seconds");
  has_times ? json.number(change.seconds()) : json.null();
  json.close('}');
}

std::string options_of(const std::vector<std::string>& marks) {
  std::string text;
  for (const std::string& mark : marks) text += fmt::format("  --mark '{}'\n", mark);
  return text;
}

}  // namespace

std::string_view name(Change::Kind kind) {
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

std::string time_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3f} ms", seconds * 1e3) : fmt::format("{:.3f} s", seconds);
}

std::string cost_json(const PlanCost& cost, bool has_times) {
  JsonWriter json;
  json.open('{');
  put_cost(json, cost, has_times);
  return json.close('}').done();
}

namespace detail {

std::string search_text(const StepReport& report, const PageOptions& options) {
  if (options.search == nullptr) return "";
  const SearchedPlan& found = *options.search;
  std::string text =
      fmt::format("{} of {} plans, by modelled times on {}:\n",
                  found.is_exact ? "the best" : "the best found", found.plans, report.machine.name);
  text += options_of(found.marks);
  TextTable table({"plan", "fits", "needs", "sends", "modelled", "bound by"});
  const auto add = [&](const std::string& plan, const PlanCost& cost, bool fits) {
    const bool is_asked = options.capacity_bytes != 0;
    table.add({plan,
               !is_asked ? "-"
               : fits    ? "yes"
                         : "no",
               human_bytes(cost.peak_bytes), human_bytes(cost.wire_bytes),
               time_text(cost.seconds()), std::string(cost.bound())});
  };
  add("these marks", found.cost, found.fits);
  for (const HandMadePlan& plan : found.hand_made) add(plan.name, plan.cost, plan.fits);
  return text + table.to_string() + '\n';
}

std::string changes_text(const PageOptions& options) {
  if (options.changes == nullptr) return "";
  std::vector<std::string> heading{"fits", "needs", "sends"};
  if (options.has_times) {
    heading.insert(heading.end(), {"modelled", "for a whole batch"});
  }
  heading.emplace_back("change");
  TextTable table(heading);
  std::string marks;
  for (const Change& change : options.changes->changes) {
    std::vector<std::string> row{change.fits ? "yes" : "no", human_bytes(change.cost.peak_bytes),
                                 human_bytes(change.cost.wire_bytes)};
    if (options.has_times) {
      row.push_back(time_text(change.cost.seconds()));
      row.push_back(time_text(change.seconds()));
    }
    const bool is_long = change.marks.size() > 1;
    row.push_back(is_long ? fmt::format("{} marks, below", change.marks.size()) : change.text);
    table.add(row);
    if (is_long) marks += options_of(change.marks);
  }
  std::string text = "\nthe cheapest change of each kind\n" + table.to_string() + marks;
  if (!options.changes->batch_refused.empty()) {
    text += fmt::format("no smaller batch: {}\n", options.changes->batch_refused);
  }
  return text;
}

void put_found(JsonWriter& json, const PageOptions& options) {
  if (options.search != nullptr) put_search(json, *options.search);
  if (options.changes == nullptr) return;
  json.key("changes").open('[');
  for (const Change& change : options.changes->changes) {
    put_change(json, change, options.has_times);
  }
  json.close(']').key("batch_refused");
  const std::string& refused = options.changes->batch_refused;
  refused.empty() ? json.null() : json.text(refused);
}

}  // namespace detail
}  // namespace shardwise
