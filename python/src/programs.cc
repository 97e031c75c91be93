#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "shardwise/convert/program_file.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/error.h"
#include "value_class.h"

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

struct PythonInput {
  std::string label, dtype;
  IntTuple shape;
  std::string kind;
  std::optional<std::string> mark;
};

std::vector<PythonInput> inputs_of(const PythonGraph& self) {
  std::vector<PythonInput> all;
  for (const GraphInput& input : self.graph->inputs) {
    const Node& node = self.graph->node(input.node);
    PythonInput& one = all.emplace_back();
    one = {input.label,
           std::string(name(node.type.dtype)),
           int_tuple(node.type.shape),
           std::string(name(input.kind)),
           {}};
    if (node.mark) one.mark = node.mark->to_string();
  }
  return all;
}

using StringTuple = nb::typed<nb::tuple, nb::str, nb::ellipsis>;

/// dtype, shape
std::vector<std::pair<std::string, Ints>> outputs_of(const PythonGraph& self) {
  std::vector<std::pair<std::string, Ints>> all;
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

/// Rules by patterns: Program.mark() takes them.
using Rules = nb::typed<nb::dict, std::string, std::string>;
Rules rules_of(const std::vector<std::string>& marks) {
  Rules rules;
  for (const std::string& mark : marks) {
    const std::size_t at = mark.rfind('=');
    rules[mark.substr(0, at).c_str()] = mark.substr(at + 1);
  }
  return rules;
}

/// The result of a search, without its graph.
struct Searched : SearchedPlan {
  std::string mesh;
};

Searched without_graph(const Mesh& mesh, SearchedPlan plan) {
  plan.graph = nullptr;
  return {std::move(plan), mesh.to_string()};
}

struct PythonMeshPlan {
  std::string mesh;
  std::optional<PlanCost> cost;
  std::string refused;
  bool fits;
  std::optional<Searched> searched;
};

/// A member of each hand-made plan, by the plan's name.
template <class Member>
nb::typed<nb::dict, std::string, Member> by_name(const Searched& searched,
                                                 Member HandMadePlan::*member) {
  nb::typed<nb::dict, std::string, Member> all;
  for (const HandMadePlan& one : searched.hand_made) all[one.name.c_str()] = one.*member;
  return all;
}

Searched search(const PythonGraph& self, const Mesh& mesh, const std::string& machine,
                std::size_t capacity_bytes) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  return without_graph(mesh, search_marks(self.graph, mesh, options));
}

std::vector<PythonMeshPlan> meshes_of(const PythonGraph& self, std::int64_t devices,
                                      const std::optional<std::string>& machine,
                                      std::size_t capacity_bytes, bool has_search) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  std::vector<PythonMeshPlan> all;
  for (MeshPlan& plan : (has_search ? search_meshes : plan_meshes)(self.graph, devices, options)) {
    PythonMeshPlan& one = all.emplace_back();
    one = {plan.mesh.to_string(), plan.cost, std::move(plan.refused), plan.fits, {}};
    if (plan.searched) one.searched = without_graph(plan.mesh, std::move(*plan.searched));
  }
  return all;
}

Changes changes_of(const Executable& self, const PythonGraph& program,
                   const std::optional<std::string>& machine, std::size_t capacity_bytes) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  return changes_that_fit(program.graph, self.mesh(), options);
}

/// The lines of the nodes, by number; "" of those that have none.
LineOf line_of(std::vector<std::string> lines) {
  return [lines = std::move(lines)](NodeId node) -> std::string {
    return as_size(node) < lines.size() ? lines[as_size(node)] : "";
  };
}

WhyNot why_not_of(const Executable& self, const PythonGraph& program, const std::string& what,
                  const PartitionSpec& wanted, std::vector<std::string> lines,
                  const std::optional<std::string>& machine, std::size_t capacity_bytes) {
  const CompareOptions options = compare_options(machine, capacity_bytes);
  const GilRelease released;
  return why_not(program.graph, self.mesh(), find_tensor(*program.graph, what), wanted,
                 line_of(std::move(lines)), options);
}

void plan(Executable* self, const PythonGraph& program, const Mesh& mesh, bool to_run) {
  const GilRelease released;
  // Inputs may be replaced in place: run() makes all arrays itself.
  new (self) Executable(
      program.graph, mesh,
      CompileOptions{.moves = to_run ? MovePlans::made : MovePlans::left_out,
                     .attention = to_run ? Attention::written : Attention::fused,
                     .may_donate = std::vector<bool>(program.graph->inputs.size(), true)});
}

std::size_t peak_of(const Executable& self) { return self.memory(0).peak_bytes; }

/// The parts of a plan's page that the plan itself lacks. capacity_bytes, rate: 0 if unknown.
struct PythonPageOptions {
  std::string program;
  std::size_t capacity_bytes;
  std::optional<std::string> machine;  ///< of the times
  double save_bytes_per_second;
  std::optional<Searched> search;
  std::optional<Changes> changes;
};

/// A plan as a text that write(executable, report, options) makes.
template <class Write>
std::string written(const Executable& self, const PythonPageOptions& how, const Write& write) {
  const std::optional<Machine> named = machine_of(how.machine);
  const GilRelease released;
  return write(self, report(self, named.value_or(machines().front())),
               PageOptions{.program = how.program,
                           .has_times = named.has_value(),
                           .capacity_bytes = how.capacity_bytes,
                           .save_bytes_per_second = how.save_bytes_per_second,
                           .search = how.search ? &*how.search : nullptr,
                           .changes = how.changes ? &*how.changes : nullptr});
}

std::string page_of(const Executable& self, const PythonPageOptions& how) {
  return written(self, how, page);
}

std::string json_of(const Executable& self, const PythonPageOptions& how) {
  return written(self, how, plan_json);
}

std::string html_of(const Executable& self, const PythonPageOptions& how,
                    std::vector<std::string> lines) {
  return written(self, how,
                 [&](const Executable& one, const StepReport& costs, const PageOptions& options) {
                   return plan_html(one, costs, options, line_of(std::move(lines)));
                 });
}

/// Runs on new devices, from arrays to arrays.
void run(const Executable& self, const std::vector<ArrayIn>& from, const std::vector<ArrayOut>& to,
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
                                             memory_of(from[i], graph.node(input.node).type),
                                             input.label, input.kind));
  }
  const std::vector<ShardedArray> outputs = self.run(devices, std::move(inputs));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorType& type = graph.node(graph.outputs[i]).type;
    outputs[i].read(Box::whole(type.shape), memory_of(to[i], type));
  }
}

void bind_values(nb::module_& module) {
  ValueClass<PythonInput>(module, "Input",
                          "A tensor that a program is given. `kind`: parameter, optimizer or "
                          "loader; array if nobody has said.")
      .field("label", &PythonInput::label)
      .field("dtype", &PythonInput::dtype)
      .field("shape", &PythonInput::shape)
      .field("kind", &PythonInput::kind)
      .field("mark", &PythonInput::mark, "how it is to be cut");
  ValueClass<Traffic>(module, "Traffic",
                      "The traffic of collectives of one kind over the same axes in one scope. "
                      "`is_asked_for`: it combines\nparts of a sum or moves a tensor that is "
                      "marked; else two operations cut a tensor differently.")
      .field("collective", [](const Traffic& self) { return name(self.kind); })
      .state(&Traffic::kind)
      .field("axes",
             [](const Traffic& self) { return StringTuple(nb::tuple(nb::cast(self.axes))); })
      .state(&Traffic::axes)
      .field("scope", &Traffic::scope)
      .field("is_asked_for", &Traffic::is_asked_for)
      .field("tensors", &Traffic::tensors)
      .field("bytes", &Traffic::bytes, "of the results on one device")
      .field("wire_bytes", &Traffic::wire_bytes, "that one device sends")
      .field("largest", &Traffic::largest, "of the tensors")
      .field("needed_by", &Traffic::needed_by,
             "what needs that one, and which cut was kept if two were wished for");
  ValueClass<PlanCost>(module, "Cost",
                       "The cost of a step on a mesh: bytes are planned, times are modelled (0 "
                       "without a machine).")
      .field("peak_bytes", &PlanCost::peak_bytes, "of the device that needs most")
      .field("wire_bytes", &PlanCost::wire_bytes, "that one device sends")
      .field("compute_seconds", &PlanCost::compute_seconds,
             "of operations that take longer to compute than to read and write")
      .field("memory_seconds", &PlanCost::memory_seconds, "of the others")
      .field("wire_seconds", &PlanCost::wire_seconds, "of collectives, one after another")
      .field("bound_by", &PlanCost::bound,
             "what takes the longest: \"compute\", \"memory\" or \"wire\"")
      .property("seconds", &PlanCost::seconds);
  ValueClass<Searched>(module, "Searched",
                       "Marks that Program.search() has chosen; Program.mark() takes them, and "
                       "Program.plan() the mesh.")
      .field("mesh", &Searched::mesh)
      .field("marks", [](const Searched& self) { return rules_of(self.marks); })
      .state(&Searched::marks)
      .field("cost", &Searched::cost)
      .field("fits", &Searched::fits)
      .field("plans", &Searched::plans, "that were made")
      .field("is_exact", &Searched::is_exact, "all choices were planned: no choice is better")
      .field(
          "hand_made", [](const Searched& self) { return by_name(self, &HandMadePlan::cost); },
          "plans as people write them: \"data\", \"fsdp\", \"tensor over model\"")
      .field(
          "hand_made_fit", [](const Searched& self) { return by_name(self, &HandMadePlan::fits); },
          "which of these fit")
      .state(&Searched::hand_made);
  ValueClass<HandMadePlan>(module, "HandMadePlan", "A plan as people write it.")
      .field("name", &HandMadePlan::name)
      .field("cost", &HandMadePlan::cost)
      .field("fits", &HandMadePlan::fits);
  ValueClass<PythonMeshPlan>(module, "MeshPlan",
                             "A program on one of the meshes that Program.meshes() compares.")
      .field("mesh", &PythonMeshPlan::mesh)
      .field("cost", &PythonMeshPlan::cost, "None if the program cannot be planned on it")
      .field("refused", &PythonMeshPlan::refused, "why not")
      .field("fits", &PythonMeshPlan::fits)
      .field("searched", &PythonMeshPlan::searched, "of meshes(.., search=True)");
  ValueClass<Change>(module, "Change", "A change to a step, and the cost of the step with it.")
      .field(
          "kind", [](const Change& self) { return name(self.kind); },
          "\"marks\", \"mesh\", \"batch\" or \"recompute\"")
      .state(&Change::kind)
      .field("text", &Change::text, "\"batch 32 in place of 64\"")
      .field(
          "marks", [](const Change& self) { return rules_of(self.marks); },
          "of the kind marks: Program.mark() takes them")
      .state(&Change::marks)
      .field(
          "mesh", [](const Change& self) { return self.mesh ? self.mesh->to_string() : ""; },
          "of the kind mesh")
      .state(&Change::mesh)
      .field("batch", &Change::batch, "of the kind batch: the largest that fits")
      .field("cost", &Change::cost)
      .field("fits", &Change::fits)
      .field("part", &Change::part,
             "of the batch that a step takes: 0.5 of one that is half as large")
      .property("seconds", &Change::seconds, "For a whole batch, modelled.");
  ValueClass<Changes>(module, "Changes",
                      "The cheapest change of each kind: what fits first, then the shortest time "
                      "for a whole batch.")
      .field("found", &Changes::changes)
      .field("batch_refused", &Changes::batch_refused,
             "why the batch cannot be changed; \"\" if it can");
  ValueClass<MarkEdit>(module, "Edit",
                       "Marks of other inputs with which a tensor is cut as wanted, and the cost "
                       "of the step with them.")
      .field("marks", [](const MarkEdit& self) { return rules_of(self.marks); })
      .state(&MarkEdit::marks)
      .field("cost", &MarkEdit::cost);
  const auto unless_so = [](PlanCost WhyNot::*cost) {
    return [cost](const WhyNot& self) {
      return self.is_so_already ? std::nullopt : std::optional(self.*cost);
    };
  };
  ValueClass<WhyNot>(module, "WhyNot", "The reasons against another cut of a tensor.")
      .field("now", &WhyNot::now)
      .field("wanted", &WhyNot::wanted)
      .field("against", &WhyNot::against,
             "marks that say otherwise, and wishes that were heard instead")
      .field("uneven", &WhyNot::uneven, "dims that do not divide, each with its treatment")
      .field("cost_now", unless_so(&WhyNot::cost_now), "None if the tensor is cut so already")
      .field("cost_wanted", unless_so(&WhyNot::cost_wanted), "with that mark on the tensor itself")
      .state(&WhyNot::is_so_already)
      .state(&WhyNot::cost_now)
      .state(&WhyNot::cost_wanted)
      .field("edits", &WhyNot::edits, "the smallest that were found, the cheapest first")
      .field("has_tried_all", &WhyNot::has_tried_all,
             "all single marks of other inputs, and all pairs if no single one does");
  ValueClass<StorageNeeds>(module, "Storage", "The demands of a step on storage.")
      .field("parameter_bytes", &StorageNeeds::parameter_bytes,
             "of a checkpoint, before it is packed")
      .field("optimizer_bytes", &StorageNeeds::optimizer_bytes)
      .field("device_bytes", &StorageNeeds::device_bytes,
             "of these, on the device that holds most: an asynchronous save copies them to the "
             "host")
      .field("input_bytes", &StorageNeeds::input_bytes, "of all inputs of the kind loader");
  nb::class_<PythonPageOptions>(module, "PageOptions")
      .def(nb::init<std::string, std::size_t, std::optional<std::string>, double,
                    std::optional<Searched>, std::optional<Changes>>(),
           nb::arg("program"), nb::arg("capacity_bytes"), nb::arg("machine").none(),
           nb::arg("save_bytes_per_second"), nb::arg("search").none(), nb::arg("changes").none());
}

void bind_graph(nb::module_& module) {
  nb::class_<Literal>(module, "Literal")
      .def_static(
          "of",
          [](const ArrayIn& array) {
            return Literal{
                LiteralAttributes({static_cast<const std::byte*>(array.data()), array.nbytes()})};
          },
          nb::arg("array"))
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
  bind_values(module);
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
      .def_prop_ro("traffic", &traffic)
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
      .def_prop_ro("storage", &storage_needs)
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
