// One small program at every stage on its way to the devices: traced and differentiated,
// propagated, partitioned, planned. docs/programs.md explains what happens between them.

#include <cstdio>
#include <memory>
#include <vector>

#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/executable.h"

namespace sw = shardwise;

int main() {
  const sw::Mesh mesh = sw::Mesh::parse("data=2,model=2");

  // loss = sum((x w)^2), and a step of gradient descent.
  auto graph = std::make_shared<sw::GraphBuilder>();
  const sw::NodeRef x{
      graph.get(), sw::append_input(*graph, {sw::DType::f32, {8, 4}}, "x", sw::MemoryKind::loader)};
  const sw::NodeRef w{graph.get(), sw::append_input(*graph, {sw::DType::f32, {4, 6}}, "w",
                                                    sw::MemoryKind::parameter)};
  graph->node(x.id).mark = {{"data"}, {}};
  graph->node(w.id).mark = {{}, {"model"}};
  const sw::NodeRef y = sw::einsum("bi,io->bo", x, w);
  const sw::NodeRef loss = sw::reduce_sum(y * y, {0, 1});
  std::printf("== traced\n%s", sw::dump(*graph).c_str());

  const sw::NodeRef gradient{graph.get(),
                             sw::grad(*graph, loss.id, std::vector<sw::NodeId>{w.id})[0]};
  const sw::NodeRef stepped = w - gradient * 0.5;
  graph->outputs = {loss.id, stepped.id};
  std::printf("== differentiated\n%s", sw::dump(*graph).c_str());

  const sw::Executable executable(graph, mesh, {.may_donate = {false, true}});
  std::printf("== propagated\n%s", dump_cuts(executable).c_str());
  std::printf("== partitioned\n%s", dump_steps(executable).c_str());
  std::printf("== planned\n%s", dump_plan(executable).c_str());
  std::printf("== why\n%s", executable.explain(gradient.id).c_str());
}
