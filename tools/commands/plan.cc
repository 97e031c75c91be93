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

constexpr std::size_t kLargest = 10, kMostGroups = 20;

/// What the page says.
struct Page {
  std::string program;
  const Executable* executable = nullptr;
  StepReport report = {};
  FullestStep fullest;
  std::vector<std::pair<std::string, std::size_t>> by_kind;  ///< their sum is the peak
  std::vector<Traffic> traffic;
  std::optional<Machine> machine;
  std::size_t capacity_bytes = 0;  ///< 0: not asked for
  std::string advice;              ///< if it does not fit

  bool fits() const { return capacity_bytes == 0 || report.memory.peak_bytes <= capacity_bytes; }
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
    std::vector<std::string_view> labels;
    std::vector<std::optional<PartitionSpec>> specs;
    for (const GraphInput& input : graph.inputs) {
      labels.push_back(input.label);
      specs.push_back(rules.find(input.label, graph.node(input.node).type.shape.size()));
      if (specs.back()) Sharding(mesh, *specs.back());  // throws if it does not fit
    }
    if (const auto unmatched = rules.unmatched(labels); !unmatched.empty()) {
      throw Error(ErrorCode::no_such_name,
                  fmt::format("found no input that \"{}\" matches, needed one: the program has {}",
                              unmatched.front(),
                              fmt::join(labels.begin(),
                                        labels.begin() + static_cast<std::ptrdiff_t>(
                                                             std::min(labels.size(), kLargest)),
                                        ", ")));
    }
    mark_inputs(graph, specs);
    return 0;
  });
}

constexpr std::string_view kGradient = "gradient", kGaps = "gaps";

/// As accounting calls it; gradients apart from activations.
std::string_view kind_of(const FullestStep::Held& held) {
  const bool is_gradient = held.kind == MemoryKind::activation && held.is_backward;
  return is_gradient ? kGradient : name(held.kind);
}

/// The peak by kind. Gaps are between the places of values that are not there at the same time.
std::vector<std::pair<std::string, std::size_t>> by_kind(const FullestStep& fullest,
                                                         std::size_t peak_bytes) {
  std::vector<std::pair<std::string, std::size_t>> kinds;
  for (const MemoryKind kind : {MemoryKind::parameter, MemoryKind::optimizer, MemoryKind::loader,
                                MemoryKind::array, MemoryKind::activation}) {
    kinds.emplace_back(name(kind), 0);
  }
  for (const std::string_view other : {kGradient, name(MemoryKind::collective), kGaps}) {
    kinds.emplace_back(other, 0);
  }
  const auto of = [&](std::string_view kind) -> std::size_t& {
    return std::ranges::find(kinds, kind, &std::pair<std::string, std::size_t>::first)->second;
  };
  std::size_t sum = 0;
  for (const FullestStep::Held& held : fullest.held) {
    of(kind_of(held)) += held.bytes;
    sum += held.bytes;
  }
  of(kGaps) = peak_bytes - std::min(sum, peak_bytes);
  std::erase_if(kinds, [](const auto& kind) { return kind.second == 0; });
  return kinds;
}

Json memory_json(const Page& page) {
  Json kinds = Json::object(), largest = Json::array();
  for (const auto& [kind, bytes] : page.by_kind) kinds[kind] = bytes;
  for (const FullestStep::Held& held : page.fullest.held) {
    if (largest.size() == kLargest) break;
    largest.push_back({{"tensor", held.label},
                       {"kind", kind_of(held)},
                       {"type", to_string(held.type)},
                       {"cut", held.cut},
                       {"bytes", held.bytes}});
  }
  return {{"peak_bytes", page.report.memory.peak_bytes},
          {"capacity_bytes", page.capacity_bytes == 0 ? Json() : Json(page.capacity_bytes)},
          {"fits", page.capacity_bytes == 0 ? Json() : Json(page.fits())},
          {"advice", page.advice.empty() ? Json() : Json(page.advice)},
          {"by_kind", std::move(kinds)},
          {"step", page.fullest.name},
          {"scope", page.fullest.scope},
          {"largest", std::move(largest)}};
}

void print_as_json(const Page& page) {
  const Executable& executable = *page.executable;
  Json traffic = Json::array();
  for (const Traffic& one : page.traffic) {
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
  if (page.machine) {
    modelled = {{"machine", page.machine->name},
                {"compute_seconds", page.report.compute_seconds},
                {"collective_seconds", page.report.collective_seconds},
                {"source", page.machine->source}};
  }
  print_json({{"program", page.program},
              {"operations", executable.graph().nodes.size()},
              {"mesh", executable.mesh().to_string()},
              {"devices", executable.mesh().size()},
              {"memory", memory_json(page)},
              {"traffic", std::move(traffic)},
              {"model_flops", page.report.model_flops},
              {"device_flops", page.report.device_flops},
              {"modelled", std::move(modelled)}});
}

void print_memory(const Page& page) {
  const std::string peak = human_bytes(page.report.memory.peak_bytes);
  if (page.capacity_bytes == 0) {
    fmt::print("needs {} on the fullest device\n", peak);
  } else {
    fmt::print("{}: needs {} on the fullest device, which has {}\n",
               page.fits() ? "fits" : "does not fit", peak, human_bytes(page.capacity_bytes));
  }
  if (!page.advice.empty()) print_shown("  " + page.advice + '\n');
  print_shown(fmt::format("\nfullest at {}\n", page.fullest.name.empty()
                                                   ? "the start: nothing is computed"
                                                   : page.fullest.name));
  Table kinds({"bytes", "kind"});
  for (const auto& [kind, bytes] : page.by_kind) kinds.add({human_bytes(bytes), kind});
  kinds.print();
  fmt::print("\nthe largest tensors then\n");
  Table largest({"bytes", "kind", "type", "cut", "tensor"});
  for (std::size_t i = 0; i < std::min(page.fullest.held.size(), kLargest); ++i) {
    const FullestStep::Held& held = page.fullest.held[i];
    largest.add({human_bytes(held.bytes), std::string(kind_of(held)), to_string(held.type),
                 held.cut.empty() ? "whole" : held.cut, printable(held.label)});
  }
  largest.print();
}

/// Layers are alike: "layer0/attention" and "layer11/attention" are "layer*/attention".
std::string without_numbers(const std::string& scope) {
  std::string text;
  for (const char c : scope) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) {
      text += c;
    } else if (!text.ends_with('*')) {
      text += '*';
    }
  }
  return text;
}

/// The traffic with scopes that differ in their numbers put together, in the same order.
std::vector<Traffic> of_like_scopes(const std::vector<Traffic>& all) {
  std::vector<Traffic> groups;
  for (const Traffic& one : all) {
    const std::string scope = without_numbers(one.scope);
    const auto at = std::ranges::find_if(groups, [&](const Traffic& group) {
      return group.kind == one.kind && group.axes == one.axes &&
             group.is_asked_for == one.is_asked_for && without_numbers(group.scope) == scope;
    });
    if (at == groups.end()) {
      groups.push_back(one);
      continue;
    }
    at->scope = scope;
    at->tensors += one.tensors;
    at->bytes += one.bytes;
    at->wire_bytes += one.wire_bytes;
  }
  std::ranges::stable_sort(groups, [](const Traffic& a, const Traffic& b) {
    return a.is_asked_for == b.is_asked_for ? a.wire_bytes > b.wire_bytes : b.is_asked_for;
  });
  return groups;
}

void print_traffic(const Page& page) {
  std::size_t bytes = 0;
  for (const Traffic& one : page.traffic) bytes += one.wire_bytes;
  fmt::print("\neach device sends {}\n", human_bytes(bytes));
  if (page.traffic.empty()) return;
  const std::vector<Traffic> groups = of_like_scopes(page.traffic);
  const std::size_t shown = std::min(groups.size(), kMostGroups);
  Table table({"bytes", "asked for", "collective", "over", "tensors", "scope", "the largest"});
  for (const Traffic& one : std::span(groups).first(shown)) {
    table.add({human_bytes(one.wire_bytes), one.is_asked_for ? "yes" : "no",
               std::string(name(one.kind)), fmt::format("{}", fmt::join(one.axes, "+")),
               std::to_string(one.tensors), printable(one.scope), printable(one.largest)});
    bytes -= one.wire_bytes;
  }
  table.print();
  for (const Traffic& one : std::span(groups).first(shown)) {
    if (one.is_asked_for) continue;
    print_shown(fmt::format("not asked for: {} for {}\n", name(one.kind), one.needed_by));
  }
  if (shown < groups.size()) {
    fmt::print("and {} more, of {} together; --json shows all\n", groups.size() - shown,
               human_bytes(bytes));
  }
}

void print_as_text(const Page& page) {
  const Executable& executable = *page.executable;
  print_shown(fmt::format("{}: {} operations on {} ({} devices)\n", page.program,
                          executable.graph().nodes.size(), executable.mesh().to_string(),
                          executable.mesh().size()));
  print_memory(page);
  print_traffic(page);
  fmt::print("\n{:.3f} GFLOP in products, {:.3f} on one device\n", page.report.model_flops * 1e-9,
             page.report.device_flops * 1e-9);
  if (!page.machine) return;
  fmt::print("modelled on {}: {:.3f} ms computing, {:.3f} ms collectives ({})\n",
             page.machine->name, page.report.compute_seconds * 1e3,
             page.report.collective_seconds * 1e3, page.machine->source);
}

}  // namespace

int run_plan(const PlanOptions& options) {
  const Mesh mesh = words_of("plan", "--mesh", [&] { return parse_mesh(options.mesh); });
  check_listed(mesh, "plan");
  Page page;
  page.program = options.program;
  page.machine = machine_of(options.device);
  page.capacity_bytes = page.machine ? page.machine->memory_bytes : 0;
  if (options.memory_bytes != 0) page.capacity_bytes = options.memory_bytes;

  auto graph = std::make_shared<Graph>(load_program(options.program));
  mark(*graph, mesh, options.marks);
  // As in a training loop: what is replaced is held by nobody else.
  const std::vector<bool> may_donate(graph->inputs.size(), true);
  const Executable executable(graph, mesh, {.may_donate = may_donate});
  page.executable = &executable;
  page.report = report(executable, page.machine.value_or(machines().front()));
  page.fullest = executable.fullest_step();
  page.by_kind = by_kind(page.fullest, page.report.memory.peak_bytes);
  page.traffic = executable.traffic();
  if (!page.fits()) page.advice = executable.suggest(page.capacity_bytes);
  if (options.json) {
    print_as_json(page);
  } else {
    print_as_text(page);
  }
  return page.fits() ? 0 : 1;
}

}  // namespace shardwise::tools
