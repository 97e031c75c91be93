#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "commands/plan/task.h"
#include "parse.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools::plans {
namespace {

/// The line of the program's file for each node.
std::map<NodeId, std::size_t> lines_of(const std::string& path) {
  std::map<NodeId, std::size_t> lines;
  const std::string text = text_or_file('@' + path);
  std::size_t number = 0, depth = 0;  // in bodies of loops, whose nodes have numbers of their own
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    const std::string_view node = trim(line);
    if (node.starts_with('}') && depth > 0) --depth;
    if (depth == 0 && node.starts_with('%')) {
      const auto id = parse_count(trim(node.substr(1, node.find('=') - 1)));
      if (id) lines.emplace(*id, number);
    }
    if (node.ends_with('{')) ++depth;
  }
  return lines;
}

std::string tensor_of(const Graph& graph, NodeId node) {
  for (const GraphInput& input : graph.inputs) {
    if (input.node == node) return input.label;
  }
  return fmt::format("%{}", node);
}

/// "+1.50 MiB"; "-1.50 MiB"; "as before"
std::string change_of(std::size_t before, std::size_t after) {
  if (before == after) return "as before";
  return after > before ? '+' + human_bytes(after - before) : '-' + human_bytes(before - after);
}

std::string cost_text(const PlanCost& cost, bool has_times) {
  std::string text =
      fmt::format("needs {}, sends {}", human_bytes(cost.peak_bytes), human_bytes(cost.wire_bytes));
  return has_times ? text + ", " + time_text(cost.seconds()) + " (modelled)" : text;
}

std::string cost_text(const PlanCost& before, const PlanCost& after, bool has_times) {
  std::string text =
      fmt::format("needs {} ({}), sends {} ({})", human_bytes(after.peak_bytes),
                  change_of(before.peak_bytes, after.peak_bytes), human_bytes(after.wire_bytes),
                  change_of(before.wire_bytes, after.wire_bytes));
  if (has_times) {
    text += fmt::format(", {} ({:+.3f} ms, modelled)", time_text(after.seconds()),
                        (after.seconds() - before.seconds()) * 1e3);
  }
  return text;
}

/// The options, of very many the first.
std::string marks_text(const std::vector<std::string>& marks) {
  constexpr std::size_t kMostShown = 4;
  const std::size_t shown = std::min(marks.size(), kMostShown);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += fmt::format(" --mark '{}'", marks[i]);
  if (shown < marks.size()) text += fmt::format(" and {} more", marks.size() - shown);
  return text;
}

std::string why_not_text(const Task& task, NodeId node, const WhyNot& answer) {
  const std::string name = tensor_of(*task.graph, node);
  if (answer.is_so_already) return fmt::format("{} is cut as {} already\n", name, answer.now);
  const bool has_times = task.machine.has_value();
  std::string text = fmt::format("{} is cut as {}, not as {}\n", name, answer.now, answer.wanted);
  for (const std::string& one : answer.against) text += "  " + one + '\n';
  for (const std::string& one : answer.uneven) text += "  " + one + '\n';
  text += fmt::format("now:         {}\nmarked so:   {}\n", cost_text(answer.cost_now, has_times),
                      cost_text(answer.cost_now, answer.cost_wanted, has_times));
  if (answer.edits.empty()) {
    return text + fmt::format("no {} of other inputs brings it\n", answer.has_tried_all
                                                                       ? "mark and no two marks"
                                                                       : "mark that was tried");
  }
  text += fmt::format("{} of other inputs {} it, without one of its own:\n",
                      answer.edits[0].marks.size() == 1 ? "a mark" : "marks",
                      answer.edits[0].marks.size() == 1 ? "brings" : "bring");
  for (const MarkEdit& edit : answer.edits) {
    text += " " + marks_text(edit.marks);
    text += "\n    " + cost_text(answer.cost_now, edit.cost, has_times) + '\n';
  }
  return text;
}

Json why_not_json(const Task& task, NodeId node, const WhyNot& answer) {
  const bool has_times = task.machine.has_value();
  Json edits = Json::array();
  for (const MarkEdit& edit : answer.edits) {
    edits.push_back({{"marks", edit.marks}, {"cost", cost_as_json(edit.cost, has_times)}});
  }
  const auto cost = [&](const PlanCost& one) {
    return answer.is_so_already ? Json() : cost_as_json(one, has_times);
  };
  return {{"tensor", tensor_of(*task.graph, node)},
          {"now", answer.now},
          {"wanted", answer.wanted},
          {"is_so_already", answer.is_so_already},
          {"against", answer.against},
          {"uneven", answer.uneven},
          {"cost_now", cost(answer.cost_now)},
          {"cost_wanted", cost(answer.cost_wanted)},
          {"edits", std::move(edits)},
          {"has_tried_all", answer.has_tried_all}};
}

Json why_json(const Executable& executable, NodeId node, const LineOf& line_of) {
  Json dims = Json::array();
  for (const CutReason& reason : cut_reasons(executable, node)) {
    Json because, way = Json::array();
    const Graph& graph = executable.graph();
    for (const NodeId one : reason.way) way.push_back(tensor_of(graph, one));
    if (reason.marked) {
      because = {{"tensor", tensor_of(graph, *reason.marked)},
                 {"mark", graph.node(*reason.marked).mark->to_string()},
                 {"line", line_of(*reason.marked)}};
    }
    dims.push_back({{"dim", reason.dim},
                    {"axes", reason.axes},
                    {"because", std::move(because)},
                    {"way", std::move(way)}});
  }
  return {{"tensor", tensor_of(executable.graph(), node)},
          {"dims", std::move(dims)},
          {"text", why(executable, node, line_of)},
          {"explained", executable.explain(node)}};
}

}  // namespace

LineOf line_of(const Task& task) {
  return [&task, lines = lines_of(task.program)](NodeId node) -> std::string {
    if (task.file_marks[as_size(node)] != task.graph->node(node).mark) return "--mark";
    const auto at = lines.find(node);
    return at == lines.end() ? "" : fmt::format("line {}", at->second);
  };
}

int print_why(const Task& task, const Mesh& mesh, const PlanOptions& options) {
  const NodeId node =
      words_of("plan", "--why", [&] { return find_tensor(*task.graph, *options.why); });
  const std::vector<bool> may_donate(task.graph->inputs.size(), true);
  const Executable executable(
      task.graph, mesh,
      {.moves = MovePlans::left_out, .attention = Attention::fused, .may_donate = may_donate});
  if (options.json) {
    print_json({{"program", task.program},
                {"mesh", mesh.to_string()},
                {"why", why_json(executable, node, line_of(task))}});
  } else {
    print_shown(why(executable, node, line_of(task)) + "in full:\n" + executable.explain(node));
  }
  return 0;
}

int print_why_not(const Task& task, const Mesh& mesh, const PlanOptions& options) {
  const std::string& words = *options.why_not;
  const std::size_t equals = words.rfind('=');  // a label may hold "=", a spec cannot
  if (equals == std::string::npos) {
    throw BadUsage(fmt::format("plan: --why-not: found \"{}\", needed NAME=SPEC", words));
  }
  NodeId node = -1;
  const WhyNot answer = words_of("plan", "--why-not", [&] {
    node = find_tensor(*task.graph, words.substr(0, equals));
    const SpecRules::Rule rule{words.substr(0, equals), words.substr(equals + 1)};
    ProgressLine line("why not");
    return why_not(task.graph, mesh, node, rule.spec_of(task.graph->node(node).type.shape.size()),
                   line_of(task), task.compare(line, "marks"));
  });
  if (options.json) {
    print_json({{"program", task.program},
                {"mesh", mesh.to_string()},
                {"why_not", why_not_json(task, node, answer)}});
  } else {
    print_shown(why_not_text(task, node, answer));
  }
  return 0;
}

}  // namespace shardwise::tools::plans
