#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "shardwise/convert/program_file.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/error.h"

namespace shardwise::python {
namespace {

/// A tensor that a program holds; its text names it by the hash.
struct Literal {
  LiteralAttributes attributes;

  std::string hash() const {  // as in the text: " 3f1c5a0b99d2e877"
    return to_string(Attributes(attributes)).substr(1);
  }
};

/// A program. Immutable: marks make another one.
struct PythonGraph {
  std::shared_ptr<const Graph> graph;
};

PythonGraph parse(const std::string& text, const std::vector<const Literal*>& literals) {
  const GilRelease released;
  std::vector<LiteralAttributes> attributes;
  for (const Literal* literal : literals) attributes.push_back(literal->attributes);
  return {std::make_shared<const Graph>(parse_graph(text, attributes))};
}

PythonGraph load(const std::string& path) {
  const GilRelease released;
  return {std::make_shared<const Graph>(load_program(path))};
}

void save(const PythonGraph& self, const std::string& path) {
  const GilRelease released;
  save_program(*self.graph, path);
}

std::optional<std::string> mark_of(const Node& node) {
  return node.mark ? std::optional(node.mark->to_string()) : std::nullopt;
}

/// label, dtype, shape, kind, mark
using InputTuple =
    std::tuple<std::string, std::string, Ints, std::string, std::optional<std::string>>;
std::vector<InputTuple> inputs_of(const PythonGraph& self) {
  std::vector<InputTuple> all;
  for (const GraphInput& input : self.graph->inputs) {
    const Node& node = self.graph->node(input.node);
    all.emplace_back(input.label, name(node.type.dtype), ints(node.type.shape), name(input.kind),
                     mark_of(node));
  }
  return all;
}

/// dtype, shape
std::vector<std::tuple<std::string, Ints>> outputs_of(const PythonGraph& self) {
  std::vector<std::tuple<std::string, Ints>> all;
  for (const NodeId output : self.graph->outputs) {
    const TensorType& type = self.graph->node(output).type;
    all.emplace_back(name(type.dtype), ints(type.shape));
  }
  return all;
}

template <class Marks>
PythonGraph marked(const PythonGraph& self, const Marks& marks) {
  const GilRelease released;
  auto graph = std::make_shared<Graph>(*self.graph);
  mark_inputs(*graph, marks);
  return {std::move(graph)};
}

std::optional<Machine> machine_of(const std::optional<std::string>& id) {
  if (!id) return std::nullopt;
  std::string ids;
  for (const Machine& machine : machines()) {
    if (machine.id == *id) return machine;
    ids += (ids.empty() ? "" : ", ") + machine.id;
  }
  throw Error(ErrorCode::invalid_argument,
              "report: found the machine \"" + *id + "\", needed one of " + ids);
}

/// Without a capacity, that of the machine, if there is one.
CompareOptions compare_options(const std::optional<std::string>& machine,
                               std::size_t capacity_bytes) {
  CompareOptions options{.machine = machine_of(machine), .capacity_bytes = capacity_bytes};
  if (capacity_bytes == 0 && options.machine)
    options.capacity_bytes = options.machine->memory_bytes;
  return options;
}

/// peak_bytes, wire_bytes, seconds by what bounds them, what takes the longest
using CostTuple = std::tuple<std::size_t, std::size_t, double, double, double, std::string>;
CostTuple cost_of(const PlanCost& cost) {
  return {cost.peak_bytes,     cost.wire_bytes,   cost.compute_seconds,
          cost.memory_seconds, cost.wire_seconds, std::string(cost.bound())};
}

PlanCost cost_from(const CostTuple& tuple) {
  const auto& [peak_bytes, wire_bytes, compute, memory, wire, bound] = tuple;
  return {peak_bytes, wire_bytes, compute, memory, wire};
}

/// marks, cost, whether it fits, plans made, whether all, hand-made ones with name, cost and fits
using SearchTuple = std::tuple<std::vector<std::string>, CostTuple, bool, std::int64_t, bool,
                               std::vector<std::tuple<std::string, CostTuple, bool>>>;
SearchTuple tuple_of(const SearchedPlan& found) {
  std::vector<std::tuple<std::string, CostTuple, bool>> hand_made;
  for (const HandMadePlan& one : found.hand_made) {
    hand_made.emplace_back(one.name, cost_of(one.cost), one.fits);
  }
  return {found.marks, cost_of(found.cost), found.fits, found.plans, found.is_exact, hand_made};
}

SearchTuple search(const PythonGraph& self, const Mesh& mesh, const std::string& machine,
                   std::size_t capacity_bytes) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  return tuple_of(search_marks(self.graph, mesh, options));
}

/// mesh, cost, why it has no plan, whether it fits, the result of a search
using MeshPlanTuple = std::tuple<std::string, std::optional<CostTuple>, std::string, bool,
                                 std::optional<SearchTuple>>;
std::vector<MeshPlanTuple> meshes_of(const PythonGraph& self, std::int64_t devices,
                                     const std::optional<std::string>& machine,
                                     std::size_t capacity_bytes, bool has_search) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  std::vector<MeshPlanTuple> all;
  for (const MeshPlan& plan :
       (has_search ? search_meshes : plan_meshes)(self.graph, devices, options)) {
    all.emplace_back(plan.mesh.to_string(),
                     plan.cost ? std::optional(cost_of(*plan.cost)) : std::nullopt, plan.refused,
                     plan.fits,
                     plan.searched ? std::optional(tuple_of(*plan.searched)) : std::nullopt);
  }
  return all;
}

SearchedPlan searched_of(const SearchTuple& tuple) {
  const auto& [marks, cost, fits, plans, is_exact, hand_made] = tuple;
  SearchedPlan found{.graph = nullptr,
                     .marks = marks,
                     .cost = cost_from(cost),
                     .fits = fits,
                     .plans = plans,
                     .is_exact = is_exact};
  for (const auto& [plan, its_cost, its_fits] : hand_made) {
    found.hand_made.push_back({plan, cost_from(its_cost), its_fits});
  }
  return found;
}

/// kind, text, marks, mesh, batch, cost, whether it fits, part of the batch
using ChangeTuple = std::tuple<std::string, std::string, std::vector<std::string>, std::string,
                               std::int64_t, CostTuple, bool, double>;
/// The changes, and why the batch cannot be changed.
using ChangesTuple = std::pair<std::vector<ChangeTuple>, std::string>;

Change::Kind kind_of(const std::string& text) {
  using enum Change::Kind;
  for (const Change::Kind kind : {marks, mesh, batch}) {
    if (text == name(kind)) return kind;
  }
  return recompute;
}

Changes changes_from(const ChangesTuple& tuple) {
  Changes found{.changes = {}, .batch_refused = tuple.second};
  for (const auto& [kind, text, marks, mesh, batch, cost, fits, part] : tuple.first) {
    Change change{.kind = kind_of(kind), .text = text, .marks = marks};
    if (!mesh.empty()) change.mesh = Mesh::parse(mesh);
    change.batch = batch;
    change.cost = cost_from(cost);
    change.fits = fits;
    change.part = part;
    found.changes.push_back(std::move(change));
  }
  return found;
}

ChangesTuple changes_of(const Executable& self, const PythonGraph& program,
                        const std::optional<std::string>& machine, std::size_t capacity_bytes) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  const Changes found = changes_that_fit(program.graph, self.mesh(), options);
  std::vector<ChangeTuple> all;
  for (const Change& change : found.changes) {
    all.emplace_back(name(change.kind), change.text, change.marks,
                     change.mesh ? change.mesh->to_string() : "", change.batch,
                     cost_of(change.cost), change.fits, change.part);
  }
  return {std::move(all), found.batch_refused};
}

/// The lines of the nodes, by number; "" of those that have none.
LineOf line_of(std::vector<std::string> lines) {
  return [lines = std::move(lines)](NodeId node) -> std::string {
    return as_size(node) < lines.size() ? lines[as_size(node)] : "";
  };
}

/// now, wanted, against, uneven, cost now and as wanted (none if it is so already), edits of other
/// marks with their costs, whether all were tried
using WhyNotTuple =
    std::tuple<std::string, std::string, std::vector<std::string>, std::vector<std::string>,
               std::optional<CostTuple>, std::optional<CostTuple>,
               std::vector<std::tuple<std::vector<std::string>, CostTuple>>, bool>;
WhyNotTuple why_not_of(const Executable& self, const PythonGraph& program, const std::string& what,
                       const PartitionSpec& wanted, std::vector<std::string> lines,
                       const std::optional<std::string>& machine, std::size_t capacity_bytes) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  const WhyNot answer = why_not(program.graph, self.mesh(), find_tensor(*program.graph, what),
                                wanted, line_of(std::move(lines)), options);
  std::vector<std::tuple<std::vector<std::string>, CostTuple>> edits;
  for (const MarkEdit& edit : answer.edits) edits.emplace_back(edit.marks, cost_of(edit.cost));
  const auto cost = [&](const PlanCost& one) {
    return answer.is_so_already ? std::nullopt : std::optional(cost_of(one));
  };
  return {answer.now,       answer.wanted,         answer.against,
          answer.uneven,    cost(answer.cost_now), cost(answer.cost_wanted),
          std::move(edits), answer.has_tried_all};
}

void plan(Executable* self, const PythonGraph& program, const Mesh& mesh, bool to_run) {
  const GilRelease released;
  // What is replaced is held by nobody else: run() makes all arrays itself.
  new (self) Executable(
      program.graph, mesh,
      CompileOptions{.moves = to_run ? MovePlans::made : MovePlans::left_out,
                     .attention = to_run ? Attention::written : Attention::fused,
                     .may_donate = std::vector<bool>(program.graph->inputs.size(), true)});
}

std::size_t peak_of(const Executable& self) { return self.memory(0).peak_bytes; }

/// What a plan is told with: what it is called, the capacity (0: not asked for), the machine of the
/// times, the bytes a second of a save (0: not told), and what was found beside it.
using ToldTuple = std::tuple<std::string, std::size_t, std::optional<std::string>, double,
                             std::optional<SearchTuple>, std::optional<ChangesTuple>>;

/// A plan as a text that write(executable, report, options) makes.
template <class Write>
std::string told(const Executable& self, const ToldTuple& how, const Write& write) {
  const auto& [program, capacity_bytes, machine, save_bytes_per_second, search, changes] = how;
  const std::optional<Machine> named = machine_of(machine);
  const GilRelease released;
  std::optional<SearchedPlan> searched;
  if (search) searched = searched_of(*search);
  std::optional<Changes> found;
  if (changes) found = changes_from(*changes);
  return write(self, report(self, named.value_or(machines().front())),
               PageOptions{.program = program,
                           .has_times = named.has_value(),
                           .capacity_bytes = capacity_bytes,
                           .save_bytes_per_second = save_bytes_per_second,
                           .search = searched ? &*searched : nullptr,
                           .changes = found ? &*found : nullptr});
}

std::string page_of(const Executable& self, const ToldTuple& how) { return told(self, how, page); }

std::string json_of(const Executable& self, const ToldTuple& how) {
  return told(self, how, plan_json);
}

std::string html_of(const Executable& self, const ToldTuple& how, std::vector<std::string> lines) {
  return told(self, how,
              [&](const Executable& one, const StepReport& costs, const PageOptions& options) {
                return plan_html(one, costs, options, line_of(std::move(lines)));
              });
}

/// As Traffic of programs.py has it.
using TrafficTuple = std::tuple<std::string, std::vector<std::string>, std::string, bool,
                                std::int64_t, std::size_t, std::size_t, std::string, std::string>;
std::vector<TrafficTuple> traffic_of(const Executable& self) {
  std::vector<TrafficTuple> all;
  for (const Traffic& one : traffic(self)) {
    all.emplace_back(name(one.kind), one.axes, one.scope, one.is_asked_for, one.tensors, one.bytes,
                     one.wire_bytes, one.largest, one.needed_by);
  }
  return all;
}

/// Memory of Python's that holds a tensor.
using Addresses = std::vector<std::uintptr_t>;

std::span<std::byte> memory_at(std::uintptr_t address, const TensorType& type) {
  return {reinterpret_cast<std::byte*>(address), num_bytes(type.shape, size_bytes(type.dtype))};
}

/// Runs on new devices: from the tensors at the first addresses to those at the others.
void run(const Executable& self, const Addresses& from, const Addresses& to,
         std::size_t capacity_bytes, int threads) {
  const GilRelease released;
  const Graph& graph = self.graph();
  if (from.size() != graph.inputs.size() || to.size() != graph.outputs.size()) {
    throw Error(ErrorCode::invalid_argument, "run: found other inputs or outputs than its own");
  }
  DeviceId devices_needed = 0;
  for (std::int64_t position = 0; position < self.mesh().size(); ++position) {
    devices_needed = std::max(devices_needed, self.mesh().device_at(position) + 1);
  }
  DevicesOptions options{.threads = threads};
  if (capacity_bytes != 0) options.capacity_bytes = capacity_bytes;
  Devices devices(devices_needed, options);
  if (capacity_bytes != 0) self.check_memory(devices, std::vector<bool>(from.size(), false));
  std::vector<ShardedArray> inputs;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    inputs.push_back(ShardedArray::from_host(devices, self.input_spec(i),
                                             memory_at(from[i], graph.node(input.node).type),
                                             input.label, input.kind));
  }
  const std::vector<ShardedArray> outputs = self.run(devices, std::move(inputs));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorType& type = graph.node(graph.outputs[i]).type;
    outputs[i].read(Box::whole(type.shape), memory_at(to[i], type));
  }
}

void bind_graph(nb::module_& module) {
  nb::class_<Literal>(module, "Literal")
      .def_static(
          "of",
          [](std::uintptr_t address, std::size_t bytes) {
            return Literal{LiteralAttributes({reinterpret_cast<const std::byte*>(address), bytes})};
          },
          nb::arg("address"), nb::arg("bytes"))
      .def_prop_ro("hash", &Literal::hash);
  nb::class_<PythonGraph>(module, "Graph")
      .def_static("parse", &parse, nb::arg("text"), nb::arg("literals"))
      .def_static("load", &load, nb::arg("path"))
      .def("save", &save, nb::arg("path"))
      .def_prop_ro("text", [](const PythonGraph& self) { return dump(*self.graph); })
      .def_prop_ro("size", [](const PythonGraph& self) { return self.graph->nodes.size(); })
      .def_prop_ro("inputs", &inputs_of)
      .def_prop_ro("outputs", &outputs_of)
      .def("with_written_attention",
           [](const PythonGraph& self) {
             PythonGraph written = self;
             written.graph = with_written_attention(self.graph);
             return written;
           })
      .def_prop_ro("axes", [](const PythonGraph& self) { return mark_axes(*self.graph); })
      .def("meshes", &meshes_of, nb::arg("devices"), nb::arg("machine").none(),
           nb::arg("capacity_bytes"), nb::arg("search"))
      .def("search", &search, nb::arg("mesh"), nb::arg("machine"), nb::arg("capacity_bytes"))
      .def("marked", &marked<SpecRules>, nb::arg("rules"))
      .def("marked_inputs", &marked<std::vector<std::optional<PartitionSpec>>>, nb::arg("marks"));
}

}  // namespace

void bind_programs(nb::module_& module) {
  bind_graph(module);
  nb::class_<Executable>(module, "Executable")
      .def("__init__", &plan, nb::arg("graph"), nb::arg("mesh"), nb::arg("to_run"))
      .def_prop_ro("peak_bytes", &peak_of)
      .def_prop_ro(
          "bytes_by_kind",
          [](const Executable& self) {
            std::vector<std::pair<std::string, std::size_t>> kinds;
            for (const auto& [kind, bytes] : bytes_by_kind(fullest_step(self), peak_of(self))) {
              kinds.emplace_back(kind, bytes);
            }
            return kinds;
          })
      .def_prop_ro("traffic", &traffic_of)
      .def(
          "input_spec",
          [](const Executable& self, std::size_t input) {
            if (input >= self.graph().inputs.size()) throw nb::index_error();
            return self.input_spec(input).sharding.spec();
          },
          nb::arg("input"))
      .def(
          "output_spec",
          [](const Executable& self, std::size_t output) {
            if (output >= self.graph().outputs.size()) throw nb::index_error();
            return self.output_spec(output).sharding.spec();
          },
          nb::arg("output"))
      .def("page", &page_of, nb::arg("how"))
      .def("json", &json_of, nb::arg("how"))
      .def("html", &html_of, nb::arg("how"), nb::arg("lines"))
      .def_prop_ro("storage",
                   [](const Executable& self) {
                     const StorageNeeds needs = storage_needs(self);
                     return std::tuple(needs.parameter_bytes, needs.optimizer_bytes,
                                       needs.device_bytes, needs.input_bytes);
                   })
      .def(
          "why",
          [](const Executable& self, const std::string& what, std::vector<std::string> lines) {
            const GilRelease released;
            return why(self, find_tensor(self.graph(), what), line_of(std::move(lines)));
          },
          nb::arg("what"), nb::arg("lines"))
      .def("changes", &changes_of, nb::arg("program"), nb::arg("machine").none(),
           nb::arg("capacity_bytes"))
      .def("why_not", &why_not_of, nb::arg("program"), nb::arg("what"), nb::arg("wanted"),
           nb::arg("lines"), nb::arg("machine").none(), nb::arg("capacity_bytes"))
      .def(
          "suggest",
          [](const Executable& self, std::size_t capacity_bytes) {
            const GilRelease released;
            return suggest(self, capacity_bytes);
          },
          nb::arg("capacity_bytes"))
      .def(
          "explain",
          [](const Executable& self, const std::string& label) { return self.explain(label); },
          nb::arg("label"))
      .def(
          "explain_node",
          [](const Executable& self, NodeId node) {
            if (node < 0 || as_size(node) >= self.graph().nodes.size()) throw nb::index_error();
            return self.explain(node);
          },
          nb::arg("node"))
      .def("run", &run, nb::arg("inputs"), nb::arg("outputs"), nb::arg("capacity_bytes"),
           nb::arg("threads"));
}

}  // namespace shardwise::python
