#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/program/detail/schedule.h"
#include "shardwise/runtime/spmd/detail/planned.h"

// Each pass of the compiler by itself: a small graph goes in as text, and the pass's result
// comes out as text.

namespace shardwise {
namespace {

/// Results of the passes for a text on a mesh.
class Passes {
 public:
  Passes(std::string_view mesh, std::string_view text, const CompileOptions& options = {})
      : planned_(std::make_shared<const Graph>(parse_graph(text)), Mesh::parse(mesh),
                 with_choices(options)) {}

  /// How each node is cut: "%0 data,-".
  std::string propagated() const {
    std::string text;
    for (std::size_t id = 0; id < planned_.graph->nodes.size(); ++id) {
      text += fmt::format("%{} {}\n", id,
                          to_spec(planned_.propagation.cuts[id], planned_.mesh).to_string());
    }
    return text;
  }

  std::string conflicts() const {
    std::string text;
    for (const Propagation::Conflict& conflict : planned_.propagation.conflicts) {
      text += fmt::format("%{}: {}\n", conflict.node, conflict.text);
    }
    return text;
  }

  /// The choices that were considered for the node, with their costs, the cheapest first.
  std::string chosen(NodeId node) const {
    for (const auto& [of, choices] : planned_.partitioned.choices) {
      if (of == node) return choices;
    }
    return "";
  }

  std::string partitioned() const {
    return dump(*planned_.graph, planned_.mesh, planned_.partitioned);
  }

  /// The nodes of each step: "kernel %3 %4", "all-reduce of %5".
  std::string fused() const {
    std::string text;
    for (const FusedStep& step : planned_.steps) {
      text += step.is_elementwise ? "kernel" : "step";
      for (const std::size_t one : step.steps) {
        const PartitionedGraph::Step& part = planned_.partitioned.steps[one];
        if (const auto* const move = std::get_if<PartitionedGraph::Move>(&part)) {
          text += fmt::format(" {} of %{}", name(move->kind),
                              planned_.partitioned.values[as_size(move->from)].node);
        } else {
          text += fmt::format(" %{}", std::get<PartitionedGraph::Compute>(part).node);
        }
      }
      text += '\n';
    }
    return text;
  }

  /// The steps of the program with the values that they read and make.
  std::string lowered() const {
    std::string text;
    for (const Program::Step& step : planned_.lowered.program.steps()) {
      std::string reads, makes;
      visit_step(
          step, [&](Program::ValueId value) { reads += fmt::format(" v{}", value); },
          [&](Program::ValueId value) { makes += fmt::format(" v{}", value); });
      text += fmt::format("{}:{} ->{}\n", name(step), reads, makes);
    }
    return text;
  }

  /// By value: where its memory is.
  std::string placed() const {
    std::string text;
    const MemoryPlan& plan = planned_.plan;
    for (std::size_t v = 0; v < plan.homes.size(); ++v) {
      const std::size_t root = as_size(plan.roots[v]);
      text += fmt::format("v{} {} bytes ", v, plan.bytes[v]);
      if (plan.homes[v] == MemoryPlan::Home::region) {
        text += fmt::format("{}+{}\n", name(planned_.lowered.program.values()[root].kind),
                            plan.offsets[root]);
      } else {
        text += plan.homes[v] == MemoryPlan::Home::input ? "input\n" : "output\n";
      }
    }
    for (std::size_t o = 0; o < plan.donated.size(); ++o) {
      if (plan.donated[o] >= 0)
        text += fmt::format("output {} over input {}\n", o, plan.donated[o]);
    }
    return text;
  }

  /// Each task, with those that wait for it: "0 on 1: 3 4".
  std::string scheduled() const {
    const Schedule schedule(planned_.lowered.program, 0, planned_.plan.reuse);
    std::string text;
    for (TaskGraph::TaskId id = 0; id < schedule.graph().size(); ++id) {
      const ProgramTask& task = schedule.tasks()[as_size(id)];
      text += fmt::format("task {}: step {} on {} before", id, task.step, task.position);
      for (const TaskGraph::TaskId next : schedule.graph().followers(id)) {
        text += fmt::format(" {}", next);
      }
      text += '\n';
    }
    return text;
  }

 private:
  static CompileOptions with_choices(CompileOptions options) {
    options.partition.note_choices = true;
    return options;
  }

  PlannedProgram planned_;
};

constexpr std::string_view kLayer = R"(
    %0 = input() "x" : f32[8, 4] marked data,-
    %1 = input() "w" : f32[4, 6] marked -,model
    %2 = input() "b" : f32[6]
    %3 = dot_general(%0, %1) "bi,io->bo" : f32[8, 6]
    %4 = broadcast(%2) dims=[1] : f32[8, 6]
    %5 = add(%3, %4) : f32[8, 6]
    %6 = tanh(%5) : f32[8, 6]
    return %6
)";

TEST(PropagateText, SpreadsMarksThroughProductsAndBroadcasts) {
  EXPECT_EQ(Passes("data=2,model=2", kLayer).propagated(),
            "%0 data,-\n"
            "%1 -,model\n"
            "%2 model\n"
            "%3 data,model\n"
            "%4 data,model\n"
            "%5 data,model\n"
            "%6 data,model\n");
}

TEST(PropagateText, KeepsTheFirstOfTwoEqualWishes) {
  const Passes passes("data=2", R"(
      %0 = input() "x" : f32[8, 4] marked data,-
      %1 = input() "y" : f32[8, 4] marked -,data
      %2 = add(%0, %1) : f32[8, 4]
      return %2
  )");
  EXPECT_EQ(passes.propagated(),
            "%0 data,-\n"
            "%1 -,data\n"
            "%2 data,-\n");
  EXPECT_EQ(passes.conflicts(),
            "%2: %2 = add(%0, %1) : f32[8, 4]: found %0 cut as data,- and %1 cut as -,data, kept "
            "the first for it\n");
}

TEST(ChooseText, ComparesBytesAndThenOperations) {
  const Passes passes("data=2", R"(
      %0 = input() "x" : f32[64, 4] marked data,-
      %1 = input() "w" : f32[4, 6] marked data,-
      %2 = dot_general(%0, %1) "bi,io->bo" : f32[64, 6]
      return %2
  )");
  EXPECT_EQ(passes.chosen(2),
            "  (data,- ; -,-) -> data,-: 48 bytes, 768 operations\n"
            "  (-,data ; data,-) -> -,-, parts of a sum: 1024 bytes, 768 operations\n"
            "  (-,- ; -,-) -> -,-: 560 bytes, 1536 operations\n");
}

TEST(PartitionText, CombinesPartsOfASumOnceAllAreAdded) {
  EXPECT_EQ(Passes("data=2", R"(
      %0 = input() "x" : f32[8, 4] marked data,-
      %1 = input() "y" : f32[8, 4] marked data,-
      %2 = reduce_sum(%0) dims=[0] : f32[4]
      %3 = reduce_sum(%1) dims=[0] : f32[4]
      %4 = add(%2, %3) : f32[4]
      return %4
  )")
                .partitioned(),
            "mesh data=2\n"
            "v0[data,-] = input %0 \"x\"\n"
            "v1[data,-] = input %1 \"y\"\n"
            "v2[- parts{data:2}] = reduce_sum(v0[data,-]) : f32[4]  # %2\n"
            "v3[- parts{data:2}] = reduce_sum(v1[data,-]) : f32[4]  # %3\n"
            "v4[- parts{data:2}] = add(v2[- parts{data:2}], v3[- parts{data:2}]) : f32[4]  # %4\n"
            "v5[-] = all-reduce{data:2}(v4[- parts{data:2}]) 16 bytes, wire 16  # for %4\n"
            "return v5[-]\n");
}

TEST(PartitionText, MovesARowForAShift) {
  EXPECT_EQ(Passes("data=2", R"(
      %0 = input() "x" : f32[8, 4] marked data,-
      %1 = slice(%0) begin=[1, 0] end=[8, 4] stride=[1, 1] : f32[7, 4]
      %2 = neg(%1) : f32[7, 4] marked data,-
      return %2
  )")
                .partitioned(),
            "mesh data=2\n"
            "v0[data,-] = input %0 \"x\"\n"
            "v1[data[+1],-] = collective-permute{data:2}(v0[data,-]) 64 bytes, wire 16  # for %1\n"
            "v2[data,-] = slice(v1[data[+1],-]) : f32[7, 4]  # %1\n"
            "v3[data,-] = neg(v2[data,-]) : f32[7, 4]  # %2\n"
            "return v3[data,-]\n");
}

TEST(PartitionText, RepeatsPartsInPlaceOfCuttingAllThatWasRepeated) {
  EXPECT_EQ(Passes("data=2", R"(
      %0 = input() "x" : f32[8, 4] marked data,-
      %1 = input() "mask" : f32[4]
      %2 = broadcast(%1) dims=[1] : f32[8, 4] marked -,-
      %3 = constant() 2 : f32[8, 4] marked -,-
      %4 = mul(%0, %2) : f32[8, 4]
      %5 = add(%4, %3) : f32[8, 4] marked data,-
      return %5
  )")
                .partitioned(),
            "mesh data=2\n"
            "v0[data,-] = input %0 \"x\"\n"
            "v1[-] = input %1 \"mask\"\n"
            "v4[data,-] = broadcast(v1[-]) : f32[8, 4]  # %2\n"
            "v5[data,-] = mul(v0[data,-], v4[data,-]) : f32[8, 4]  # %4\n"
            "v6[data,-] = constant() : f32[8, 4]  # %3\n"
            "v7[data,-] = add(v5[data,-], v6[data,-]) : f32[8, 4]  # %5\n"
            "return v7[data,-]\n");
}

TEST(FuseText, PutsElementwiseOpsTogetherAndKeepsGradientsApart) {
  EXPECT_EQ(Passes("data=2", R"(
      %0 = input() "x" : f32[8] marked data
      %1 = tanh(%0) : f32[8]
      %2 = constant() 2 : f32[8]
      %3 = mul(%1, %2) : f32[8]
      %4 = mul(%1, %1) : f32[8] backward
      %5 = neg(%4) : f32[8] backward
      return %3 %5
  )")
                .fused(),
            "kernel %1 %3\n"
            "kernel %4 %5\n");
  // Nothing is fused across a barrier.
  EXPECT_EQ(Passes("data=2", R"(
      %0 = input() "x" : f32[8] marked data
      %1 = tanh(%0) : f32[8]
      %2 = optimization_barrier(%1) : f32[8]
      %3 = neg(%2) : f32[8]
      return %3
  )")
                .fused(),
            "kernel %1\n"
            "step %2\n"
            "kernel %3\n");
}

TEST(FuseText, PutsSumsOverTheSameDevicesInABucket) {
  constexpr std::string_view kTwoSums = R"(
      %0 = input() "x" : f32[8, 4] marked data,-
      %1 = reduce_sum(%0) dims=[0] : f32[4]
      %2 = mul(%0, %0) : f32[8, 4]
      %3 = reduce_sum(%2) dims=[0] : f32[4]
      return %1 %3
  )";
  EXPECT_EQ(Passes("data=2", kTwoSums).fused(),
            "step %1\n"
            "kernel %2\n"
            "step %3\n"
            "step all-reduce of %1 all-reduce of %3\n");
}

TEST(LowerText, MakesACallForAKernelAndAMoveForABucket) {
  const Passes passes("data=2", R"(
      %0 = input() "x" : f32[8, 4] marked data,-
      %1 = reshape(%0) : f32[32]
      %2 = tanh(%1) : f32[32]
      %3 = reduce_sum(%2) dims=[0] : f32[]
      return %3
  )");
  EXPECT_EQ(passes.lowered(),
            "reshape %1: v0 -> v1\n"
            "tanh %2: v1 -> v2\n"
            "reduce_sum %3: v2 -> v3\n"
            "all-reduce of reduce_sum %3: v3 -> v4\n");
}

TEST(MemoryPlanText, WritesOverWhatIsNeededNoMore) {
  const Passes passes("data=2", R"(
      %0 = input() "w" : f32[8, 4] marked data,- kind=parameter
      %1 = input() "x" : f32[8, 4] marked data,-
      %2 = cumsum(%1) dims=[1] : f32[8, 4]
      %3 = cumsum(%2) dims=[1] : f32[8, 4]
      %4 = cumsum(%3) dims=[1] : f32[8, 4]
      %5 = sub(%0, %4) : f32[8, 4] marked data,-
      return %5
  )",
                      {.may_donate = {true, false}});
  EXPECT_EQ(passes.placed(),
            "v0 64 bytes input\n"
            "v1 64 bytes input\n"
            "v2 64 bytes activation+0\n"
            "v3 64 bytes activation+64\n"
            "v4 64 bytes activation+0\n"
            "v5 64 bytes output\n"
            "output 0 over input 0\n");
}

TEST(ScheduleText, ATaskWaitsForWhatItReadsOrWritesOver) {
  const Passes passes("data=2", R"(
      %0 = input() "x" : f32[8] marked data
      %1 = tanh(%0) : f32[8]
      %2 = reduce_sum(%1) dims=[0] : f32[]
      return %2
  )");
  EXPECT_EQ(passes.lowered(),
            "tanh %1: v0 -> v1\n"
            "reduce_sum %2: v1 -> v2\n"
            "all-reduce of reduce_sum %2: v2 -> v3\n");
  EXPECT_EQ(passes.scheduled(),
            "task 0: step 0 on 0 before 2\n"
            "task 1: step 0 on 1 before 3\n"
            "task 2: step 1 on 0 before 4 6\n"
            "task 3: step 1 on 1 before 4 5 7\n"
            "task 4: step 2 on 0 before 6 7\n"
            "task 5: step 2 on 1 before 7\n"
            "task 6: step 2 on 0 before\n"
            "task 7: step 2 on 1 before\n");
}

}  // namespace
}  // namespace shardwise
