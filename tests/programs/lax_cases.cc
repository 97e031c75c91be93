#include "lax_cases.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "random_convolution.h"
#include "random_program.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {
namespace {

using Arrays = std::vector<std::vector<std::byte>>;

/// The outputs of a graph, on the host.
Arrays run(const Graph& graph, const Arrays& inputs, const Mesh& mesh) {
  Devices devices(mesh.size(), {.threads = 1});
  const Executable executable(std::make_shared<const Graph>(graph), mesh, {});
  std::vector<ShardedArray> arrays;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    arrays.push_back(ShardedArray::from_host(devices, executable.input_spec(i), inputs[i]));
  }
  Arrays outputs;
  for (const ShardedArray& array : executable.run(devices, std::move(arrays))) {
    outputs.push_back(array.to_host());
  }
  return outputs;
}

Graph unmarked(Graph graph) {
  for (Node& node : graph.nodes) {
    node.mark.reset();
    for_each_body(node, [](Graph& body) { body = unmarked(std::move(body)); });
  }
  return graph;
}

std::string json(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ","));
}

/// Attributes as lax_test.py reads them.
struct Told {
  Dims dims = {}, begin = {}, end = {}, stride = {};
  Scalar number = {};
  std::string text = {};
};
Told told(const NoAttributes&) { return {}; }
Told told(const DecompositionAttributes&) { return {}; }  // not compared here
Told told(const TriangularAttributes&) { return {}; }
Told told(const NumberAttributes& a) { return {.number = a.number}; }
Told told(const LiteralAttributes& a) {
  return {.text = fmt::format("{:02x}", fmt::join(a.bytes(), ""))};
}
Told told(const DimAttributes& a) { return {.dims = {a.dim}}; }
Told told(const DimsAttributes& a) { return {.dims = a.dims}; }
Told told(const SliceAttributes& a) { return {.begin = a.begin, .end = a.end, .stride = a.stride}; }
Told told(const PadAttributes& a) {
  return {.begin = a.low, .end = a.high, .stride = a.stride, .number = a.number};
}
Told told(const DotAttributes& a) { return {.text = a.equation.to_string()}; }
Told told(const ConvolutionAttributes& a) {
  // Lists of numbers, as JSON.
  std::string lists;
  for (const Dims* const dims :
       {&a.lhs, &a.rhs, &a.out, &a.stride, &a.low, &a.high, &a.lhs_dilation, &a.rhs_dilation}) {
    lists += json(*dims) + ',';
  }
  return {.text = fmt::format("[{}[{},{}]]", lists, a.feature_groups, a.batch_groups)};
}
Told told(const WindowAttributes& a) {
  return {.text = fmt::format("[{},{},{},{},{}]", json(a.window), json(a.stride), json(a.low),
                              json(a.high), json(a.dilation))};
}
Told told(const ScatterAttributes& a) { return {.dims = {a.dim, a.extent}}; }
Told told(const ScatterIntoAttributes& a) {
  return {
      .dims = {a.dim},
      .text = fmt::format("[{},{}]", static_cast<int>(a.combination), static_cast<int>(a.mode))};
}
Told told(const ShapeAttributes& a) { return {.end = a.shape}; }
Told told(const SortAttributes& a) { return {.dims = {a.dim}, .number = a.descending ? 1.0 : 0.0}; }
Told told(const CumulativeAttributes& a) {
  return {.dims = {a.dim}, .number = a.reverse ? 1.0 : 0.0};
}
Told told(const ScanAttributes& a) {
  return {.dims = {a.length, a.carries, a.xs}, .number = a.reverse ? 1.0 : 0.0};
}
Told told(const CondAttributes&) { return {}; }
Told told(const ResultAttributes& a) { return {.dims = {a.index}}; }
Told told(const ManualAttributes& a) { return {.text = a.spec.to_string()}; }
Told told(const ReduceAttributes& a) {
  return {.number = static_cast<int>(a.reduction),
          .text = fmt::format("{}", fmt::join(a.axes, "+"))};
}

/// All of a case but its arrays.
std::string json(const Node& node, const std::string& origin, bool zeros_have_signs) {
  const Told a =
      std::visit([](const auto& attributes) { return told(attributes); }, node.attributes);
  return fmt::format(
      R"("origin":"{}","op":"{}","dims":{},"begin":{},"end":{},"stride":{},"number":["{}","{:x}"],"text":"{}","zeros":{})",
      origin, name(node.op), json(a.dims), json(a.begin), json(a.end), json(a.stride),
      name(a.number.dtype()), a.number.bits(), a.text, zeros_have_signs);
}

std::string json(const std::string& what, const std::vector<std::size_t>& operands,
                 const std::vector<std::size_t>& found) {
  return fmt::format(R"({{{},"operands":[{}],"found":[{}]}})", what, fmt::join(operands, ","),
                     fmt::join(found, ","));
}

}  // namespace

LaxCases::LaxCases(const std::string& path) : path_(path), data_(path + ".bin", std::ios::binary) {}

std::size_t LaxCases::add_array(const TensorType& type, const std::vector<std::byte>& bytes) {
  arrays_.push_back(fmt::format(R"(["{}",{},{}])", name(type.dtype), json(type.shape), bytes_));
  data_.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  bytes_ += bytes.size();
  return arrays_.size() - 1;
}

void LaxCases::add(const std::string& origin, const Graph& graph, const Arrays& inputs,
                   const Mesh& mesh, bool zeros_have_signs) {
  Graph whole = unmarked(graph);
  whole.outputs.clear();
  for (NodeId id = 0; id < std::ssize(whole.nodes); ++id) whole.outputs.push_back(id);
  const Arrays alone = run(whole, inputs, Mesh::line(1));
  std::vector<std::vector<std::size_t>> found(alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    found[i] = {add_array(graph.nodes[i].type, alone[i])};
  }
  for (const Arrays& outputs :
       {run(unmarked(graph), inputs, Mesh::line(1)), run(graph, inputs, mesh)}) {
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const std::size_t id = as_size(graph.outputs[o]);
      if (outputs[o] != alone[id]) {
        found[id].push_back(add_array(graph.nodes[id].type, outputs[o]));
      }
    }
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    // Operands alone do not determine the result of a body.
    if (has_bodies(graph.nodes[i].op) || graph.nodes[i].op == Op::result) continue;
    std::vector<std::size_t> operands;
    for (const NodeId operand : graph.nodes[i].operands) {
      operands.push_back(found[as_size(operand)].front());
    }
    cases_.push_back(json(json(graph.nodes[i], origin, zeros_have_signs), operands, found[i]));
  }
}

void LaxCases::add_region(const Graph& graph, const Arrays& inputs, const Mesh& mesh, NodeId node) {
  std::vector<std::size_t> operands;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operands.push_back(add_array(graph.node(graph.inputs[i].node).type, inputs[i]));
  }
  const std::size_t found =
      add_array(graph.node(graph.outputs.front()).type, run(graph, inputs, mesh).front());
  cases_.push_back(json(json(graph.node(node), "table", true), operands, {found}));
}

void LaxCases::add_scan(const std::string& name, const Graph& graph, const Arrays& inputs,
                        const Mesh& mesh) {
  std::vector<std::size_t> operands;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operands.push_back(add_array(graph.node(graph.inputs[i].node).type, inputs[i]));
  }
  const Arrays outputs = run(graph, inputs, mesh);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const std::string what = fmt::format(
        R"("origin":"scan","op":"scan","dims":[{}],"begin":[],"end":[],"stride":[],"number":["f64","0"],"text":"{}","zeros":false)",
        o, name);
    cases_.push_back(
        json(what, operands, {add_array(graph.node(graph.outputs[o]).type, outputs[o])}));
  }
}

void LaxCases::close() {
  std::vector<std::string> ops;
  for (std::size_t op = 0; op < kOps; ++op) ops.emplace_back(name(static_cast<Op>(op)));
  std::ofstream(path_ + ".json") << fmt::format(
      "{{\"ops\":[\"{}\"],\n\"arrays\":[\n{}],\n\"cases\":[\n{}]}}\n", fmt::join(ops, "\",\""),
      fmt::join(arrays_, ",\n"), fmt::join(cases_, ",\n"));
  data_.close();
}

}  // namespace shardwise

namespace {

constexpr std::uint32_t kConvolutions = 500;
constexpr std::uint32_t kWindows = 150;

/// Numbers with exact sums.
std::vector<std::byte> small_numbers(std::mt19937& random, const shardwise::Shape& shape) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shardwise::num_elements(shape); ++i) {
    values.push_back(static_cast<float>(random() % 7) - 3);
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Two of the dims are cut, or one by two axes.
shardwise::PartitionSpec cut_by(std::uint32_t seed, std::size_t rank) {
  std::vector<shardwise::PartitionSpec::Entry> entries(rank);
  entries[seed % rank] = {"x"};
  entries[(seed / 7) % rank].push_back("y");
  return shardwise::PartitionSpec(std::move(entries));
}

/// One of random shape; a dim of the operand is cut.
std::pair<shardwise::Graph, std::vector<std::vector<std::byte>>> a_convolution(std::uint32_t seed) {
  using namespace shardwise;
  std::mt19937 random(seed);
  const RandomConvolution c = random_convolution(random);
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, c.lhs}, "x")};
  const NodeRef w{&graph, append_input(graph, {DType::f32, c.rhs}, "w")};
  graph.node(x.id).mark = cut_by(seed, c.lhs.size());
  graph.outputs = {convolution(x, w, c.attributes).id};
  std::vector<std::vector<std::byte>> inputs;
  for (const Shape* const shape : {&c.lhs, &c.rhs}) {
    inputs.push_back(small_numbers(random, *shape));
  }
  return {std::move(graph), std::move(inputs)};
}

/// Scans and a cond of small numbers, and gradients; lax_test.py has the same by name.
void add_scans(shardwise::LaxCases& cases) {
  using namespace shardwise;
  std::mt19937 random(1);
  const Shape state{3, 4}, steps{5, 3, 4}, weight{4, 4};
  for (const char* const mesh : {"x=1", "x=2", "x=2,y=2"}) {
    for (const std::string name :
         {"net", "net in reverse", "two carries", "nothing stacked", "cond in scan"}) {
      GraphBuilder graph;
      const NodeRef first{&graph, append_input(graph, {DType::f32, state}, "first")},
          xs{&graph, append_input(graph, {DType::f32, steps}, "xs")},
          w{&graph, append_input(graph, {DType::f32, weight}, "w")};
      graph.node(xs.id).mark = PartitionSpec::parse("-,x,-");
      const auto net = [&](const NodeRef& h, const NodeRef& x) {
        return std::pair(clamp(-3.0, einsum("bi,io->bo", h, w) + x, 3.0), h * x);
      };
      std::vector<NodeRef> made;
      if (name == "two carries") {
        using Two = std::pair<NodeRef, NodeRef>;
        const auto body = [&](const Two& two, const NodeRef& x) {
          return std::pair(Two(two.second + x, two.first), two.first - x);
        };
        const auto [last, ys] = scan(body, Two(first, first * 2.0), xs);
        made = {last.first, last.second, ys};
      } else if (name == "nothing stacked") {
        const auto body = [&](const NodeRef& h, std::nullptr_t) {
          return std::pair(clamp(-9.0, h + h - 1.0, 9.0), h);
        };
        const auto [last, ys] = scan(body, first, nullptr, {.length = 4});
        made = {last, ys};
      } else if (name == "cond in scan") {
        const auto body = [&](const NodeRef& h, const NodeRef& x) {
          const NodeRef next = cond(
              gt(sum(x), constant(x, {DType::f32, {}}, 0)),
              [&](const NodeRef& a) { return clamp(-3.0, einsum("bi,io->bo", a, w), 3.0); },
              [&](const NodeRef& a) { return a - x; }, h);
          return std::pair(clamp(-9.0, next, 9.0), next);
        };
        const auto [last, ys] = scan(body, first, xs);
        made = {last, ys};
      } else {
        const auto [last, ys] = scan(net, first, xs, {.reverse = name != "net"});
        made = {last, ys};
      }
      NodeRef loss = sum(made[0] * made[0]);
      for (std::size_t i = 1; i < made.size(); ++i) loss = loss + sum(made[i] * made[i]);
      for (const NodeRef& one : made) graph.outputs.push_back(one.id);
      const std::vector<NodeId> wrt{first.id, xs.id, w.id};
      for (const NodeId id : grad(graph, loss.id, wrt)) graph.outputs.push_back(id);
      std::vector<std::vector<std::byte>> inputs;
      for (const Shape* const shape : {&state, &steps, &weight}) {
        inputs.push_back(small_numbers(random, *shape));
      }
      cases.add_scan(name, graph, inputs, Mesh::parse(mesh));
    }
  }
}

/// Sums and maxima of random windows, and the gradient of the maxima.
std::pair<shardwise::Graph, std::vector<std::vector<std::byte>>> some_windows(std::uint32_t seed) {
  using namespace shardwise;
  std::mt19937 random(seed);
  const Shape shape{3, 9, 7};
  const WindowAttributes a = random_windows(random, shape);
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, shape}, "x")};
  graph.node(x.id).mark = cut_by(seed, shape.size());
  const NodeRef sums = reduce_window_sum(x, a), maxima = reduce_window_max(x, a);
  graph.outputs = {sums.id, maxima.id, select_and_scatter_add(x, sums, a).id};
  return {std::move(graph), {small_numbers(random, shape)}};
}

}  // namespace

/// lax_cases PATH FIRST COUNT: the table, the random programs of COUNT seeds from FIRST on, and
/// convolutions, windows and scans.
int main(int, char** words) {
  using namespace shardwise;
  LaxCases cases(words[1]);
  add_lax_table(cases);
  add_scans(cases);
  const auto first = static_cast<std::uint32_t>(std::atoi(words[2]));
  const auto count = static_cast<std::uint32_t>(std::atoi(words[3]));
  const Mesh mesh = Mesh::parse("x=2,y=4");
  for (std::uint32_t seed = first; seed < first + count; ++seed) {
    RandomProgram program(seed);
    program.mark(mesh);
    std::vector<std::vector<std::byte>> inputs;
    for (const GraphInput& input : program.graph.inputs) {
      inputs.push_back(program.random_values(program.graph.node(input.node).type));
    }
    cases.add(fmt::format("seed {}", seed), program.graph, inputs, mesh,
              program.has_special_values());
  }
  for (std::uint32_t seed = first; seed < first + kConvolutions; ++seed) {
    const auto [graph, inputs] = a_convolution(seed);
    cases.add(fmt::format("convolution {}", seed), graph, inputs, mesh, false);
  }
  for (std::uint32_t seed = first; seed < first + kWindows; ++seed) {
    const auto [graph, inputs] = some_windows(seed);
    cases.add(fmt::format("windows {}", seed), graph, inputs, mesh, false);
  }
  cases.close();
}
