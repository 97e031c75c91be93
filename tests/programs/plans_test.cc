#include "shardwise/runtime/spmd/plans.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "h100.h"
#include "random_program.h"
#include "shardwise/runtime/ops/build.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

/// Two layers and a step of gradient descent; the batch is marked, and w1.
std::shared_ptr<const Graph> two_layers() {
  return std::make_shared<const Graph>(parse_graph(R"(
%0 = input() "x" : f32[4096, 256] marked data,- kind=loader
%1 = input() "w1" : f32[256, 1024] marked -,model kind=parameter
%2 = input() "w2" : f32[1024, 256] kind=parameter
%3 = dot_general(%0, %1) "bi,ih->bh" : f32[4096, 1024]
%4 = tanh(%3) : f32[4096, 1024]
%5 = dot_general(%4, %2) "bh,ho->bo" : f32[4096, 256]
%6 = dot_general(%4, %5) "bh,bo->ho" : f32[1024, 256] backward
%7 = constant() 0.1 : f32[1024, 256]
%8 = mul(%6, %7) : f32[1024, 256]
%9 = sub(%2, %8) : f32[1024, 256]
return %9
)",
                                                   {}));
}

TEST(PlanCost, IsWhatAnExecutableSays) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    RandomProgram program(seed);
    const Mesh mesh = program.random_mesh();
    program.mark(mesh);
    const auto graph = std::make_shared<const Graph>(program.graph);
    const std::vector<bool> may_donate(graph->inputs.size(), true);
    const Executable executable(graph, mesh, {.may_donate = may_donate});
    const StepReport expected = report(executable, h100());
    const PlanCost cost = plan_cost(graph, mesh, h100());
    EXPECT_EQ(cost.peak_bytes, expected.memory.peak_bytes) << "seed " << seed;
    EXPECT_DOUBLE_EQ(cost.compute_seconds + cost.memory_seconds, expected.compute_seconds)
        << "seed " << seed;
    EXPECT_DOUBLE_EQ(cost.wire_seconds, expected.collective_seconds) << "seed " << seed;
  }
}

TEST(PlanCost, BytesOnTheWireAreThoseOfTheCollectives) {
  for (const char* const text : {"data=8,model=1", "data=4,model=2", "data=1,model=8"}) {
    const Mesh mesh = Mesh::parse(text);
    const Executable executable(two_layers(), mesh, {.may_donate = {true, true, true}});
    std::size_t expected = 0;
    for (const CollectiveTotal& total : executable.collectives()) expected += total.wire_bytes;
    EXPECT_EQ(plan_cost(two_layers(), mesh, h100()).wire_bytes, expected) << text;
  }
}

/// The seconds of the one collective of a program of this text, on a machine of links of 1e6 bytes
/// a second, and of 1e5 between nodes of four devices.
double wire_seconds(const std::string& text, const std::string& mesh) {
  Machine machine = h100();
  machine.link_bytes_per_second = 1e6;
  machine.link_seconds = 0;
  machine.node_devices = 4;
  machine.node_bytes_per_second = 1e5;
  const auto graph = std::make_shared<const Graph>(parse_graph(text, {}));
  return plan_cost(graph, Mesh::parse(mesh), machine).wire_seconds;
}

std::string all_reduce(const std::string& axes) {
  return "%0 = input() \"x\" : f32[100, 160] marked -," + axes +
         "\n%1 = reduce_sum(%0) dims=[1] : f32[100] marked -\nreturn %1\n";
}

TEST(PlanCost, BytesThatLeaveANodeTakeItsSlowerLinks) {
  // A ring of n sends 2 (n - 1) / n of 400 bytes.
  const double of_4 = 2 * 3 * 100, of_16 = 2 * 15 * 25;
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("b"), "a=4,b=4"), of_4 / 1e6);
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("a"), "a=4,b=4"), of_4 / 1e5);  // one of each node
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("a"), "b=4,a=4"), of_4 / 1e6);
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("a"), "a=4,b=2"), of_4 / 2 / 1e5);     // two of each
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("a+b"), "a=4,b=4"), of_16 / 4 / 1e5);  // all four
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("a+b"), "a=2,b=2"), of_4 / 1e6);       // one node
  EXPECT_DOUBLE_EQ(wire_seconds(all_reduce("a+c"), "a=2,b=2,c=2"), of_4 / 2 / 1e5);
}

TEST(PlanCost, AnAllToAllSendsTheShareOfOtherNodesOutOfItsOwn) {
  const std::string text =
      "%0 = input() \"x\" : f32[160, 160] marked a,-\n%1 = neg(%0) : f32[160, 160] marked -,a\n"
      "return %1\n";
  const double part = 4 * 160 * 160 / 8.0;  // of a device; it keeps an eighth
  EXPECT_DOUBLE_EQ(wire_seconds(text, "a=8"), part * 4 / 8 / 1e5);
}

/// The first devices of a mesh are told one by one.
TEST(PlanCost, DevicesOfANodeAreCountedAsTheyAre) {
  for (const char* const text : {"a=3,b=5", "a=2,b=3,c=4", "a=5,b=2,c=2", "a=2,b=2,c=2,d=3"}) {
    const Mesh mesh = Mesh::parse(text);
    for (unsigned axes = 1; axes < 1U << mesh.rank(); ++axes) {
      std::string cut;
      std::int64_t all = 1, of_node = 0;
      for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
        if ((axes >> axis & 1) == 0) continue;
        cut += (cut.empty() ? "" : "+") + mesh.axes()[axis].name;
        all *= mesh.axes()[axis].size;
      }
      for (std::int64_t position = 0; position < std::min<std::int64_t>(4, mesh.size());
           ++position) {
        bool is_member = true;
        for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
          is_member =
              is_member && ((axes >> axis & 1) != 0 || mesh.coordinate(position, axis) == 0);
        }
        of_node += is_member ? 1 : 0;
      }
      const double bytes = 2.0 * static_cast<double>(all - 1) * 400 / static_cast<double>(all);
      const double leaving = of_node == all ? 0 : bytes / static_cast<double>(of_node) / 1e5;
      EXPECT_NEAR(wire_seconds(all_reduce(cut), text), std::max(bytes / 1e6, leaving), 1e-4)
          << text << " " << cut;
    }
  }
}

TEST(PlanCost, NamesWhatTakesTheLongest) {
  EXPECT_EQ((PlanCost{.compute_seconds = 2, .memory_seconds = 1, .wire_seconds = 1}.bound()),
            "compute");
  EXPECT_EQ((PlanCost{.compute_seconds = 1, .memory_seconds = 2, .wire_seconds = 1}.bound()),
            "memory");
  EXPECT_EQ((PlanCost{.compute_seconds = 1, .memory_seconds = 1, .wire_seconds = 2}.bound()),
            "wire");
}

TEST(PlanMeshes, HasEachFactoringOnceAndTheCostOfEach) {
  const auto graph = two_layers();
  std::vector<std::string> meshes;
  for (const MeshPlan& plan : plan_meshes(graph, 12, {.machine = h100()})) {
    const Mesh& mesh = plan.mesh;
    ASSERT_TRUE(plan.cost) << plan.refused;
    EXPECT_EQ(plan.cost->peak_bytes, plan_cost(graph, mesh, h100()).peak_bytes);
    EXPECT_EQ(mesh.size(), 12);
    meshes.push_back(
        fmt::format("data={},model={}", mesh.axis_size("data"), mesh.axis_size("model")));
    // A node has eight devices: the last axis is the one that is better there.
    for (const Mesh& other :
         {Mesh::parse(meshes.back()),
          Mesh({{"model", mesh.axis_size("model")}, {"data", mesh.axis_size("data")}})}) {
      EXPECT_LE(plan.cost->seconds(), plan_cost(graph, other, h100()).seconds()) << meshes.back();
    }
  }
  EXPECT_THAT(meshes,
              testing::UnorderedElementsAre("data=12,model=1", "data=6,model=2", "data=4,model=3",
                                            "data=3,model=4", "data=2,model=6", "data=1,model=12"));
}

TEST(PlanMeshes, PutsWhatFitsFirstAndThenTheFastest) {
  const auto graph = two_layers();
  const std::vector<MeshPlan> all = plan_meshes(graph, 8, {.machine = h100()});
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_LE(all[i - 1].cost->seconds(), all[i].cost->seconds());
  }
  // One byte less than the fastest needs.
  const std::size_t capacity = all[0].cost->peak_bytes - 1;
  const std::vector<MeshPlan> less =
      plan_meshes(graph, 8, {.machine = h100(), .capacity_bytes = capacity});
  bool fitted = true;
  for (const MeshPlan& plan : less) {
    EXPECT_EQ(plan.fits, plan.cost->peak_bytes <= capacity);
    EXPECT_TRUE(fitted || !plan.fits) << "after one that does not fit";
    fitted = plan.fits;
  }
  // Without a machine there are no times: the lowest peak is first.
  const std::vector<MeshPlan> timeless = plan_meshes(graph, 8, {});
  for (std::size_t i = 1; i < timeless.size(); ++i) {
    EXPECT_EQ(timeless[i].cost->seconds(), 0);
    EXPECT_LE(timeless[i - 1].cost->peak_bytes, timeless[i].cost->peak_bytes);
  }
}

TEST(PlanMeshes, IsTheSameOnAnyNumberOfThreads) {
  const auto graph = two_layers();
  std::vector<std::vector<std::string>> found;
  for (const int threads : {1, 4}) {
    std::int64_t told = 0;
    const auto progress = [&](std::int64_t done, std::int64_t of) {
      EXPECT_LE(done, of);
      told = of;
    };
    found.emplace_back();
    for (const MeshPlan& plan :
         plan_meshes(graph, 64, {.machine = h100(), .threads = threads, .progress = progress})) {
      found.back().push_back(plan.mesh.to_string());
    }
    EXPECT_EQ(told, 7);
  }
  EXPECT_EQ(found[0], found[1]);
}

TEST(PlanMeshes, SaysWhyAMeshIsRefused) {
  Graph graph = *two_layers();
  graph.node(1).mark = PartitionSpec{{"model"}, {"model"}};  // one axis twice
  for (const MeshPlan& plan : plan_meshes(std::make_shared<const Graph>(graph), 4, {})) {
    EXPECT_FALSE(plan.cost);
    EXPECT_THAT(plan.refused, HasSubstr("%1"));
    EXPECT_FALSE(plan.fits);
  }
}

TEST(PlanMeshes, RefusesWhatIsTooMuch) {
  const auto compare = [](const Graph& graph, std::int64_t devices) {
    return [=] { plan_meshes(std::make_shared<const Graph>(graph), devices, {}); };
  };
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, compare(*two_layers(), 4097)),
              HasSubstr("found 4097 devices, needed 1 to 4096"));
  Graph graph = *two_layers();
  for (Node& node : graph.nodes) node.mark.reset();
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, compare(graph, 8)),
              HasSubstr("found no marks"));
  graph.node(0).mark = PartitionSpec{{"a", "b", "c"}, {"d", "e"}};
  EXPECT_THAT(mark_axes(graph), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(message_of(ErrorCode::unsupported, compare(graph, 4096)),
              HasSubstr("found more than 1000 of 5 axes (a, b, c, d, e), needed fewer"));
}

// ---- Why.

std::string line_of(NodeId node) { return "line " + std::to_string(node + 1); }

TEST(Why, NamesTheMarkThatADimIsCutBy) {
  const auto graph = two_layers();
  const Executable executable(graph, Mesh::parse("data=4,model=2"), {});
  EXPECT_EQ(why(executable, 1, line_of),
            "\"w1\" is cut as -,model\n"
            "  dim 0 is whole: because line 2 marks \"w1\" as -,model\n"
            "  dim 1 by model: because line 2 marks \"w1\" as -,model\n");
  EXPECT_THAT(why(executable, 4, line_of),
              AllOf(HasSubstr("%4 is cut as data,model\n"),
                    HasSubstr("  dim 0 by data: because line 1 marks \"x\" as data,-, by way of "),
                    HasSubstr("  dim 1 by model: because line 2 marks \"w1\" as -,model, by")));
  EXPECT_THAT(why(executable, 4, nullptr), HasSubstr("because the mark of \"x\" as data,-"));
  const std::vector<CutReason> reasons = cut_reasons(executable, 2);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_EQ(reasons[0].axes, "model");
  EXPECT_EQ(reasons[0].marked, 1);
  EXPECT_EQ(reasons[1].axes, "-");
  EXPECT_FALSE(reasons[1].marked);
  EXPECT_EQ(find_tensor(*graph, "w2"), 2);
  EXPECT_EQ(find_tensor(*graph, "%7"), 7);
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { find_tensor(*graph, "w3"); }),
              HasSubstr("found no input \"w3\", needed one of w1, w2"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { find_tensor(*graph, "%10"); }),
              HasSubstr("needed one from %0 to %9"));
}

WhyNot ask(const std::shared_ptr<const Graph>& graph, const char* mesh, const char* name,
           const PartitionSpec& wanted) {
  return why_not(graph, Mesh::parse(mesh), find_tensor(*graph, name), wanted, line_of,
                 {.machine = h100()});
}

TEST(WhyNot, NamesTheMarkThatSaysOtherwise) {
  const WhyNot answer = ask(two_layers(), "data=4,model=2", "w1", {{"data"}, {}});
  EXPECT_EQ(answer.now, "-,model");
  EXPECT_EQ(answer.wanted, "data,-");
  EXPECT_THAT(answer.against, Contains("dim 0 is whole: because line 2 marks \"w1\" as -,model"));
  EXPECT_THAT(answer.against, Contains("dim 1 by model: because line 2 marks \"w1\" as -,model"));
  EXPECT_TRUE(answer.uneven.empty());
  EXPECT_EQ(answer.cost_now.peak_bytes,
            plan_cost(two_layers(), Mesh::parse("data=4,model=2"), h100()).peak_bytes);
  Graph marked = *two_layers();
  marked.node(1).mark = PartitionSpec{{"data"}, {}};
  const PlanCost then =
      plan_cost(std::make_shared<const Graph>(marked), Mesh::parse("data=4,model=2"), h100());
  EXPECT_EQ(answer.cost_wanted.wire_bytes, then.wire_bytes);
  EXPECT_EQ(answer.cost_wanted.peak_bytes, then.peak_bytes);
}

TEST(WhyNot, SaysWhatIsDoneWithDimsThatDoNotDivide) {
  const WhyNot answer = ask(two_layers(), "data=3,model=2", "w2", {{}, {"data"}});
  EXPECT_THAT(answer.uneven, ElementsAre("dim 1 of 256 does not divide by 3: it is cut in tiles of "
                                         "86, the last of 84"));
  const WhyNot empty = ask(std::make_shared<const Graph>(parse_graph(R"(
%0 = input() "x" : f32[10] marked data kind=loader
%1 = input() "w" : f32[10] kind=parameter
%2 = add(%0, %1) : f32[10]
return %2
)",
                                                                     {})),
                           "data=1,model=8", "w", {{"model"}});
  EXPECT_THAT(empty.uneven, ElementsAre("dim 0 of 10 does not divide by 8: it is cut in tiles of "
                                        "2, the last of 2, and 3 of 8 parts are empty"));
}

TEST(WhyNot, FindsTheSmallestEditsThatBringIt) {
  Graph graph = *two_layers();
  graph.node(1).mark.reset();
  // w2 follows w1, if that is cut by columns.
  const WhyNot answer =
      ask(std::make_shared<const Graph>(graph), "data=4,model=2", "w2", {{"model"}, {}});
  EXPECT_THAT(answer.against, ElementsAre("no mark brings model to dim 0"));
  ASSERT_FALSE(answer.edits.empty());
  EXPECT_TRUE(answer.has_tried_all);
  std::vector<std::vector<std::string>> edits;
  for (const MarkEdit& edit : answer.edits) {
    edits.push_back(edit.marks);
  }
  EXPECT_THAT(edits, Contains(ElementsAre("w1=-,model")));
  // As it is already: nothing is tried.
  const WhyNot same = ask(two_layers(), "data=4,model=2", "w2", {{"model"}, {}});
  EXPECT_TRUE(same.is_so_already);
  EXPECT_TRUE(same.edits.empty());
}

TEST(WhyNot, RefusesASpecThatFitsNoTensor) {
  EXPECT_THAT(message_of(ErrorCode::no_such_name,
                         [] {
                           ask(two_layers(), "data=8,model=1", "w2", {{"rows"}, {}});
                         }),
              HasSubstr("rows"));
}

}  // namespace
}  // namespace shardwise
