#include "shardwise/runtime/spmd/detail/plans/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "h100.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/detail/plans/hand_made.h"
#include "shardwise/runtime/spmd/plans.h"

// Compares the search for marks with trying all marks.

namespace shardwise {
namespace {

using detail::Choice;
using detail::Layers;
using detail::Trials;
using testing::Contains;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

NodeRef input(GraphBuilder& graph, const std::string& label, const Shape& shape, MemoryKind kind) {
  return {&graph, append_input(graph, {DType::f32, shape}, label, kind)};
}

/// Adds the gradient of the sum of squares and what replaces the weights.
std::shared_ptr<const Graph> trained(std::unique_ptr<GraphBuilder> graph, const NodeRef& y,
                                     const std::vector<NodeRef>& weights) {
  Dims dims;
  for (std::size_t d = 0; d < y.type().shape.size(); ++d) {
    dims.push_back(static_cast<std::int64_t>(d));
  }
  const NodeRef loss = reduce_sum(y * y, dims);
  std::vector<NodeId> wrt;
  for (const NodeRef& weight : weights) wrt.push_back(weight.id);
  const std::vector<NodeId> gradients = grad(*graph, loss.id, wrt);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const NodeRef g{graph.get(), gradients[i]};
    graph->outputs.push_back((weights[i] - g * 0.1).id);
  }
  return std::shared_ptr<const Graph>(std::move(graph));
}

/// A chain of products of random widths with what stands between them: nothing, tanh, a sum with
/// what went in.
std::shared_ptr<const Graph> random_chain(std::uint32_t seed, int count) {
  std::mt19937 random(seed);
  const auto below = [&](unsigned most) { return static_cast<int>(random() % most); };
  auto graph = std::make_unique<GraphBuilder>();
  std::int64_t width = 64 << below(4);
  NodeRef h = input(*graph, "x", {16 << below(6), width}, MemoryKind::loader);
  std::vector<NodeRef> weights;
  for (int i = 0; i < count; ++i) {
    const std::int64_t next = 64 << below(4);
    weights.push_back(input(*graph, "w" + std::to_string(i), {width, next}, MemoryKind::parameter));
    const NodeRef made = einsum("bi,io->bo", h, weights.back());
    const int how = below(3);
    h = how == 0 ? made : how == 1 ? tanh(made) : next == width ? made + h : made;
    width = next;
  }
  return trained(std::move(graph), h, weights);
}

/// Blocks of two matrices with a residual sum, as of a transformer.
std::shared_ptr<const Graph> blocks(int layers, std::int64_t batch, std::int64_t width) {
  auto graph = std::make_unique<GraphBuilder>();
  NodeRef h = input(*graph, "x", {batch, width}, MemoryKind::loader);
  std::vector<NodeRef> weights;
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + '.';
    weights.push_back(input(*graph, layer + "up", {width, 4 * width}, MemoryKind::parameter));
    weights.push_back(input(*graph, layer + "down", {4 * width, width}, MemoryKind::parameter));
    const NodeRef hidden = tanh(einsum("bi,ih->bh", h, weights[weights.size() - 2]));
    h = h + einsum("bh,ho->bo", hidden, weights.back());
  }
  return trained(std::move(graph), h, weights);
}

/// The capacities that are tried: none, one that half of the hand-made plans fit into, one that few
/// plans do, and one that none does.
std::vector<std::size_t> capacities(const std::shared_ptr<const Graph>& graph, const Mesh& mesh) {
  Trials trials(graph, mesh, {.machine = h100()}, Layers::apart);
  std::vector<std::size_t> peaks;
  for (const detail::HandMade& plan : detail::hand_made(trials)) {
    peaks.push_back(trials.of(plan.choice).cost.peak_bytes);
  }
  std::ranges::sort(peaks);
  return {0, peaks[peaks.size() / 2], peaks.front(), peaks.front() / 4};
}

TEST(Search, FindsWhatBruteForceFindsOnSmallGraphs) {
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    const bool is_line = seed % 2 == 1;
    const auto graph = random_chain(seed, is_line ? 3 : 2);
    const Mesh mesh = Mesh::parse(is_line ? "data=8" : "data=4,model=2");
    for (const std::size_t capacity : capacities(graph, mesh)) {
      const CompareOptions options{.machine = h100(), .capacity_bytes = capacity};
      Trials all(graph, mesh, options, Layers::apart);
      const std::vector<detail::HandMade> starts = detail::hand_made(all);
      const detail::Outcome expected = all.of(detail::best_of_all(all));
      // The search of large programs, too.
      Trials some(graph, mesh, options, Layers::apart);
      std::vector<Choice> choices;
      for (const detail::HandMade& start : detail::hand_made(some)) {
        choices.push_back(start.choice);
        some.of(start.choice);
      }
      const detail::Outcome found = some.of(detail::best_from(some, choices));
      EXPECT_EQ(found.excess_bytes, expected.excess_bytes) << "seed " << seed;
      EXPECT_EQ(found.cost.seconds(), expected.cost.seconds()) << "seed " << seed;
      EXPECT_EQ(found.cost.peak_bytes, expected.cost.peak_bytes) << "seed " << seed;
      const SearchedPlan plan = search_marks(graph, mesh, options);
      EXPECT_TRUE(plan.is_exact);
      EXPECT_EQ(plan.cost.seconds(), expected.cost.seconds()) << "seed " << seed;
      EXPECT_EQ(plan.cost.peak_bytes, expected.cost.peak_bytes) << "seed " << seed;
    }
  }
}

TEST(Search, IsNeverWorseThanHandMadePlans) {
  const auto graph = blocks(3, 512, 256);
  for (const char* const text : {"data=8", "data=4,model=2"}) {
    const Mesh mesh = Mesh::parse(text);
    for (const std::size_t capacity : capacities(graph, mesh)) {
      const SearchedPlan plan =
          search_marks(graph, mesh, {.machine = h100(), .capacity_bytes = capacity});
      EXPECT_GE(plan.hand_made.size(), 3u);
      for (const HandMadePlan& other : plan.hand_made) {
        EXPECT_TRUE(plan.fits || !other.fits) << text << ' ' << other.name;
        if (other.fits) {
          EXPECT_LE(plan.cost.seconds(), other.cost.seconds()) << text << ' ' << other.name;
        }
      }
      EXPECT_EQ(plan_cost(plan.graph, mesh, h100()).peak_bytes, plan.cost.peak_bytes);
    }
  }
}

TEST(Search, DecidesLayersThatRepeatOnce) {
  const Mesh mesh = Mesh::parse("data=4,model=2");
  const auto graph = blocks(6, 512, 256);
  const SearchedPlan plan = search_marks(graph, mesh, {.machine = h100()});
  EXPECT_EQ(plan.marks.size(), 3u) << testing::PrintToString(plan.marks);
  EXPECT_THAT(plan.marks, Contains(testing::StartsWith("layers.*.up=")));
  EXPECT_THAT(plan.marks, Contains(testing::StartsWith("layers.*.down=")));
}

TEST(Search, StartsFromTheMarksOfTheProgram) {
  const Mesh mesh = Mesh::parse("data=4,model=2");
  Graph graph = *blocks(1, 512, 256);
  graph.node(graph.inputs[0].node).mark = PartitionSpec{{"model"}, {"data"}};
  const SearchedPlan plan =
      search_marks(std::make_shared<const Graph>(graph), mesh, {.machine = h100()});
  std::vector<std::string> names;
  for (const HandMadePlan& one : plan.hand_made) names.push_back(one.name);
  EXPECT_THAT(names, Contains("as marked"));
}

TEST(HandMade, TensorPlansAreThoseOfMegatron) {
  const Mesh mesh = Mesh::parse("data=4,model=2");
  Trials trials(blocks(2, 512, 256), mesh, {.machine = h100()}, Layers::together);
  std::map<std::string, std::vector<std::string>> plans;
  for (const detail::HandMade& plan : detail::hand_made(trials)) {
    for (std::size_t g = 0; g < trials.groups().size(); ++g) {
      plans[plan.name].push_back(trials.specs(g)[as_size(plan.choice[g])].to_string());
    }
  }
  EXPECT_THAT(plans["whole"], ElementsAre("-,-", "-,-", "-,-"));
  EXPECT_THAT(plans["data"], ElementsAre("data+model,-", "-,-", "-,-"));
  EXPECT_THAT(plans["fsdp"], ElementsAre("data+model,-", "-,data+model", "data+model,-"));
  EXPECT_THAT(plans["tensor over model"], ElementsAre("data,-", "-,model", "model,-"));
  EXPECT_THAT(plans["tensor over model, weights over the rest"],
              ElementsAre("data,-", "data,model", "model,data"));
}

TEST(InputGroups, AreLayersAndTheStateOfAWeight) {
  GraphBuilder graph;
  const auto add = [&](const char* label, const Shape& shape, MemoryKind kind) {
    append_input(graph, {DType::f32, shape}, label, kind);
  };
  for (const char* const layer : {"h.0.", "h.1."}) {
    add((layer + std::string("q")).c_str(), {8, 8}, MemoryKind::parameter);
    add((layer + std::string("o")).c_str(), {8, 8}, MemoryKind::parameter);
  }
  add("0.weight", {8, 8}, MemoryKind::parameter);  // of a chain: no layer of several
  add("2.weight", {8, 8}, MemoryKind::parameter);
  for (const char* const state : {"m.h.0.q", "m.h.1.q", "m.h.0.o", "m.h.1.o", "m.0.weight"}) {
    add(state, {8, 8}, MemoryKind::optimizer);
  }
  add("x", {8}, MemoryKind::loader);
  add("step", {}, MemoryKind::optimizer);
  std::vector<std::vector<std::string>> groups;
  std::vector<std::string> texts;
  for (const detail::InputGroup& group : detail::input_groups(graph, Layers::together)) {
    groups.emplace_back();
    for (const std::size_t i : group.inputs) groups.back().push_back(graph.inputs[i].label);
    const PartitionSpec spec = PartitionSpec::replicated(group.type.shape.size());
    for (const std::string& text : detail::mark_texts(graph, group.inputs, spec)) {
      texts.push_back(text);
    }
  }
  EXPECT_THAT(groups, ElementsAre(ElementsAre("h.0.q", "h.1.q", "m.h.0.q", "m.h.1.q"),
                                  ElementsAre("h.0.o", "h.1.o", "m.h.0.o", "m.h.1.o"),
                                  ElementsAre("0.weight", "m.0.weight"), ElementsAre("2.weight"),
                                  ElementsAre("x")));
  EXPECT_THAT(texts,
              ElementsAre("*h.*.q=-,-", "*h.*.o=-,-", "*0.weight=-,-", "2.weight=-,-", "x=-"));
  EXPECT_EQ(detail::input_groups(graph, Layers::apart).size(), 7u);
}

std::vector<std::string> specs_of(const Shape& shape, const char* mesh, std::size_t most) {
  std::vector<std::string> texts;
  for (const PartitionSpec& spec : detail::even_specs(shape, Mesh::parse(mesh), most)) {
    texts.push_back(spec.to_string());
  }
  return texts;
}

TEST(EvenSpecs, AreAllThatDivide) {
  EXPECT_THAT(specs_of({6, 4, 8}, "a=2,b=3,one=1", 16),
              UnorderedElementsAre("-,-,-", "a,-,-", "-,a,-", "-,-,a", "b,-,-", "a+b,-,-", "b,a,-",
                                   "b,-,a"));
  // Only the longest dims are cut if specs of all would be too many.
  EXPECT_THAT(specs_of({6, 4, 8}, "a=2,b=3,one=1", 9),
              UnorderedElementsAre("-,-,-", "a,-,-", "-,-,a", "b,-,-", "a+b,-,-", "b,-,a"));
}

/// Layers of two matrices each, stacked, as a scan has them.
TEST(HandMade, TensorPlansLookIntoLoops) {
  const auto graph = std::make_shared<const Graph>(parse_graph(R"(
%0 = input() "x" : f32[8, 16] kind=loader
%1 = input() "up" : f32[3, 16, 32] kind=parameter
%2 = input() "down" : f32[3, 32, 16] kind=parameter
%3 = scan(%0, %1, %2) length=[3] carries=[1] xs=[2] : bool[0] {
  %0 = input() "h" : f32[8, 16]
  %1 = input() "up" : f32[16, 32]
  %2 = input() "down" : f32[32, 16]
  %3 = dot_general(%0, %1) "bi,ih->bh" : f32[8, 32]
  %4 = tanh(%3) : f32[8, 32]
  %5 = dot_general(%4, %2) "bh,ho->bo" : f32[8, 16]
  return %5
}
%4 = result(%3) index=[0] : f32[8, 16]
return %4
)"));
  Trials trials(graph, Mesh::parse("data=2,model=2"), {.machine = h100()}, Layers::apart);
  for (const detail::HandMade& plan : detail::hand_made(trials)) {
    if (plan.name != "tensor over model") continue;
    std::vector<std::string> specs;
    for (std::size_t g = 0; g < trials.groups().size(); ++g) {
      specs.push_back(trials.specs(g)[as_size(plan.choice[g])].to_string());
    }
    EXPECT_THAT(specs, ElementsAre("data,-", "-,-,model", "-,model,-"));
  }
}

}  // namespace
}  // namespace shardwise
