// One small program at every stage on its way to the devices: traced and differentiated,
// propagated, partitioned, planned. docs/programs.md explains what happens between them.

#include <cstdio>
#include <memory>
#include <vector>

#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/executable.h"

using namespace shardwise;

int main() {
  const Mesh mesh = Mesh::parse("data=2,model=2");

  // loss = sum((x w)^2), and a step of gradient descent.
  auto graph = std::make_shared<Graph>();
  const NodeRef x{graph.get(), append_input(*graph, {DType::f32, {8, 4}}, "x", MemoryKind::loader)};
  const NodeRef w{graph.get(),
                  append_input(*graph, {DType::f32, {4, 6}}, "w", MemoryKind::parameter)};
  graph->node(x.id).mark = {{"data"}, {}};
  graph->node(w.id).mark = {{}, {"model"}};
  const NodeRef y = einsum("bi,io->bo", x, w);
  const NodeRef loss = reduce_sum(y * y, {0, 1});
  std::printf("== traced\n%s", dump(*graph).c_str());

  const NodeRef gradient{graph.get(), grad(*graph, loss.id, std::vector<NodeId>{w.id})[0]};
  const NodeRef stepped = w - gradient * 0.5;
  graph->outputs = {loss.id, stepped.id};
  std::printf("== differentiated\n%s", dump(*graph).c_str());

  const Executable executable(graph, mesh, {.may_donate = {false, true}});
  std::printf("== propagated\n%s", executable.dump_cuts().c_str());
  std::printf("== partitioned\n%s", executable.dump_steps().c_str());
  std::printf("== planned\n%s", executable.dump_plan().c_str());
  std::printf("== why\n%s", executable.explain(gradient.id).c_str());
}
