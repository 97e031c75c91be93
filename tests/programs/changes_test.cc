#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "h100.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/detail/plans/batch.h"
#include "shardwise/runtime/spmd/detail/plans/recompute.h"
#include "shardwise/runtime/spmd/plans.h"
#include "testing/errors.h"

// Changes that make a program fit: marks, another mesh, a smaller batch.

namespace shardwise {
namespace {

using testing::HasSubstr;

std::shared_ptr<const Graph> parsed(const std::string& text) {
  return std::make_shared<const Graph>(parse_graph(text));
}

/// A look-up, rows and columns as one dim, two products, and a step of gradient descent.
std::string program(std::int64_t batch) {
  const std::int64_t rows = batch * 16;
  return fmt::format(R"(%0 = input() "ids" : i64[{0}, 16] marked data,- kind=loader
%1 = input() "table" : f32[100, 64] marked -,model kind=parameter
%2 = input() "w" : f32[64, 512] kind=parameter
%3 = take(%1, %0) dims=[0] : f32[{0}, 16, 64]
%4 = reshape(%3) : f32[{1}, 64]
%5 = dot_general(%4, %2) "ai,ij->aj" : f32[{1}, 512]
%6 = reshape(%5) : f32[{0}, 16, 512]
%7 = constant() 0.5 : f32[{0}, 16, 512]
%8 = mul(%6, %7) : f32[{0}, 16, 512]
%9 = slice(%8) begin=[0, 0, 0] end=[{0}, 8, 512] stride=[1, 1, 1] : f32[{0}, 8, 512]
%10 = reduce_sum(%9) dims=[0, 1] : f32[512]
%11 = reshape(%8) : f32[{1}, 512]
%12 = dot_general(%4, %11) "ai,aj->ij" : f32[64, 512] backward
%13 = sub(%2, %12) : f32[64, 512]
return %13 %10
)",
                     batch, rows);
}

TEST(BatchSize, MakesTheProgramThatAnotherBatchGives) {
  const detail::BatchSize size(parsed(program(64)));
  EXPECT_EQ(size.get(), 64);
  EXPECT_EQ(size.refused(), "");
  for (const std::int64_t batch : {1, 24, 32, 128}) {
    EXPECT_EQ(dump(*size.with(batch)), dump(*parsed(program(batch))));
  }
}

TEST(BatchSize, RefusesWhatSaysTheBatchInAnotherWay) {
  const auto refusal = [](const std::string& text) {
    const detail::BatchSize size(parsed(text));
    EXPECT_EQ(size.get(), 4);
    return message_of(ErrorCode::unsupported, [&] { size.with(2); });
  };
  const std::string x = "%0 = input() \"x\" : f32[4, 8] kind=loader\n";
  EXPECT_THAT(refusal(x + "%1 = slice(%0) begin=[1, 0] end=[4, 8] stride=[1, 1] : f32[3, 8]\n"
                          "return %1\n"),
              HasSubstr("found a slice in %1 = slice("));
  GraphBuilder padded;
  const NodeRef data{&padded, append_input(padded, {DType::f32, {4, 8}}, "x", MemoryKind::loader)};
  padded.outputs = {pad(data, {1, 0}, {0, 0}, 0).id};
  EXPECT_THAT(refusal(dump(padded)), HasSubstr("found padding in %1 = pad("));
  const auto reason = [](const std::string& text) {
    const detail::BatchSize size(parsed(text));
    EXPECT_EQ(size.get(), 0);
    return size.refused();
  };
  EXPECT_EQ(reason(x + "%1 = input() \"y\" : f32[6] kind=loader\nreturn %1\n"),
            "data has 4 and 6 rows");
  EXPECT_EQ(reason("%0 = input() \"x\" : f32[1, 8] kind=loader\nreturn %0\n"),
            "the program has no batch of several rows");
}

/// Three blocks, each of a product and tanh, and the values that the gradient of the last two uses.
std::shared_ptr<const Graph> three_blocks() {
  return parsed(R"(
%0 = input() "x" : f32[64, 32] marked data,- kind=loader
%1 = input() "w" : f32[32, 32] kind=parameter
%2 = dot_general(%0, %1) "bi,io->bo" : f32[64, 32]  # net/layer0
%3 = tanh(%2) : f32[64, 32]  # net/layer0
%4 = exp(%3) : f32[64, 32]  # net/layer0
%5 = dot_general(%4, %1) "bi,io->bo" : f32[64, 32]  # net/layer1/mlp
%6 = tanh(%5) : f32[64, 32]  # net/layer1/mlp
%7 = exp(%6) : f32[64, 32]  # net/layer1
%8 = dot_general(%7, %1) "bi,io->bo" : f32[64, 32]  # net/layer2
%9 = tanh(%8) : f32[64, 32]  # net/layer2
%10 = mul(%9, %9) : f32[64, 32] backward  # net/layer2
%11 = mul(%10, %6) : f32[64, 32] backward  # net/layer1
%12 = mul(%11, %7) : f32[64, 32] backward  # net/layer1
%13 = mul(%12, %3) : f32[64, 32] backward  # net/layer0
%14 = dot_general(%0, %13) "bi,bo->io" : f32[32, 32] backward  # net/layer0
return %14
)");
}

TEST(Recompute, IsOfWhatBlocksKeepForTheGradient) {
  const auto graph = three_blocks();
  const std::vector<detail::RepeatedBlocks> all = detail::repeated_blocks(*graph);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "net/layer*");
  EXPECT_EQ(all[0].count, 3);
  // Values between blocks (%4, %7) are kept; all else comes just before its first use.
  EXPECT_EQ(dump(*detail::recomputed(*graph, all[0])),
            R"(%0 = input() "x" : f32[64, 32] marked data,- kind=loader
%1 = input() "w" : f32[32, 32] kind=parameter
%2 = dot_general(%0, %1) "bi,io->bo" : f32[64, 32]  # net/layer0
%3 = tanh(%2) : f32[64, 32]  # net/layer0
%4 = exp(%3) : f32[64, 32]  # net/layer0
%5 = dot_general(%4, %1) "bi,io->bo" : f32[64, 32]  # net/layer1/mlp
%6 = tanh(%5) : f32[64, 32]  # net/layer1/mlp
%7 = exp(%6) : f32[64, 32]  # net/layer1
%8 = dot_general(%7, %1) "bi,io->bo" : f32[64, 32]  # net/layer2
%9 = tanh(%8) : f32[64, 32]  # net/layer2
%10 = dot_general(%7, %1) "bi,io->bo" : f32[64, 32] backward  # net/layer2
%11 = tanh(%10) : f32[64, 32] backward  # net/layer2
%12 = mul(%11, %11) : f32[64, 32] backward  # net/layer2
%13 = dot_general(%4, %1) "bi,io->bo" : f32[64, 32] backward  # net/layer1/mlp
%14 = tanh(%13) : f32[64, 32] backward  # net/layer1/mlp
%15 = mul(%12, %14) : f32[64, 32] backward  # net/layer1
%16 = mul(%15, %7) : f32[64, 32] backward  # net/layer1
%17 = dot_general(%0, %1) "bi,io->bo" : f32[64, 32] backward  # net/layer0
%18 = tanh(%17) : f32[64, 32] backward  # net/layer0
%19 = mul(%16, %18) : f32[64, 32] backward  # net/layer0
%20 = dot_general(%0, %19) "bi,bo->io" : f32[32, 32] backward  # net/layer0
return %20
)");
}

/// As a step that adds up the gradients of two parts of its batch.
TEST(Recompute, KeepsValuesThatBlocksMakeAfterTheirGradientBegan) {
  const auto graph = parsed(R"(
%0 = input() "w" : f32[32] kind=parameter
%1 = exp(%0) : f32[32]  # layer0
%2 = tanh(%1) : f32[32]  # layer1
%3 = mul(%2, %1) : f32[32] backward  # layer1
%4 = sin(%0) : f32[32]  # layer0
%5 = neg(%4) : f32[32]  # layer0
%6 = tanh(%5) : f32[32]  # layer1
%7 = mul(%6, %4) : f32[32] backward  # layer0
%8 = add(%3, %7) : f32[32] backward
return %8
)");
  EXPECT_EQ(dump(*detail::recomputed(*graph, detail::repeated_blocks(*graph).at(0))),
            R"(%0 = input() "w" : f32[32] kind=parameter
%1 = exp(%0) : f32[32]  # layer0
%2 = tanh(%1) : f32[32]  # layer1
%3 = tanh(%1) : f32[32] backward  # layer1
%4 = mul(%3, %1) : f32[32] backward  # layer1
%5 = sin(%0) : f32[32]  # layer0
%6 = neg(%5) : f32[32]  # layer0
%7 = tanh(%6) : f32[32]  # layer1
%8 = sin(%0) : f32[32] backward  # layer0
%9 = mul(%7, %8) : f32[32] backward  # layer0
%10 = add(%4, %9) : f32[32] backward
return %10
)");
}

TEST(Recompute, IsNothingWithoutBlocksOrAGradient) {
  EXPECT_TRUE(detail::repeated_blocks(*parsed(program(64))).empty());
  std::string text = dump(*three_blocks());
  for (std::size_t at; (at = text.find(" backward")) != std::string::npos;) text.erase(at, 9);
  EXPECT_TRUE(detail::repeated_blocks(*parsed(text)).empty());
}

const Change* of_kind(const Changes& changes, Change::Kind kind) {
  const auto at = std::ranges::find(changes.changes, kind, &Change::kind);
  return at == changes.changes.end() ? nullptr : &*at;
}

TEST(Changes, OfTheBatchIsTheLargestThatFits) {
  const auto graph = parsed(program(64));
  const Mesh mesh = Mesh::parse("data=4,model=2");
  const auto peak = [&](std::int64_t batch) {
    return plan_cost(parsed(program(batch)), mesh, h100()).peak_bytes;
  };
  for (const std::size_t capacity : {peak(64) - 1, peak(40), peak(4)}) {
    const Changes changes =
        changes_that_fit(graph, mesh, {.machine = h100(), .capacity_bytes = capacity});
    EXPECT_EQ(changes.batch_refused, "");
    const Change* const change = of_kind(changes, Change::Kind::batch);
    ASSERT_NE(change, nullptr);
    EXPECT_TRUE(change->fits);
    EXPECT_EQ(change->cost.peak_bytes, peak(change->batch));
    EXPECT_EQ(change->text, fmt::format("batch {} in place of 64", change->batch));
    EXPECT_EQ(change->batch % 4, 0);  // as many rows on each device
    EXPECT_GT(peak(change->batch + 4), capacity);
    EXPECT_DOUBLE_EQ(change->seconds(),
                     change->cost.seconds() * 64 / static_cast<double>(change->batch));
  }
  // If no batch fits, the smallest is given.
  const Changes none = changes_that_fit(graph, mesh, {.machine = h100(), .capacity_bytes = 1});
  EXPECT_FALSE(of_kind(none, Change::Kind::batch)->fits);
  EXPECT_EQ(of_kind(none, Change::Kind::batch)->batch, 4);
  const Changes whole = changes_that_fit(parsed(program(4)), Mesh::parse("data=4,model=2"),
                                         {.machine = h100(), .capacity_bytes = 1});
  EXPECT_EQ(whole.batch_refused, "each device has one row of the batch of 4");
  EXPECT_EQ(of_kind(whole, Change::Kind::batch), nullptr);
}

TEST(Changes, AllFitWithoutACapacity) {
  const Changes changes =
      changes_that_fit(parsed(program(64)), Mesh::parse("data=4,model=2"), {.machine = h100()});
  EXPECT_FALSE(changes.changes.empty());
  for (const Change& change : changes.changes) EXPECT_TRUE(change.fits) << change.text;
}

TEST(Changes, OfMarksAndMeshCostWhatTheySay) {
  const auto graph = parsed(program(64));
  const Mesh mesh = Mesh::parse("data=2,model=4");
  const std::size_t now = plan_cost(graph, mesh, h100()).peak_bytes;
  const CompareOptions options{.machine = h100(), .capacity_bytes = now - 1};
  const Changes changes = changes_that_fit(graph, mesh, options);
  const Change* const other = of_kind(changes, Change::Kind::mesh);
  ASSERT_NE(other, nullptr);
  EXPECT_NE(*other->mesh, mesh);
  EXPECT_EQ(plan_cost(graph, *other->mesh, h100()).peak_bytes, other->cost.peak_bytes);
  for (const MeshPlan& plan : plan_meshes(graph, 8, options)) {
    if (plan.mesh == mesh || !plan.fits) continue;
    EXPECT_LE(other->cost.seconds(), plan.cost->seconds());
  }
  // The best mesh with its axes in another order is no other mesh: the next one is told.
  const std::vector<MeshPlan> all = plan_meshes(graph, 8, options);
  std::vector<Axis> axes(all[0].mesh.axes().begin(), all[0].mesh.axes().end());
  std::ranges::reverse(axes);
  const Changes turned = changes_that_fit(graph, Mesh(axes), options);
  EXPECT_EQ(*of_kind(turned, Change::Kind::mesh)->mesh, all[1].mesh);
  const Change* const marks = of_kind(changes, Change::Kind::marks);
  ASSERT_NE(marks, nullptr);
  EXPECT_TRUE(marks->fits);
  EXPECT_LT(marks->cost.peak_bytes, now);
  EXPECT_FALSE(marks->marks.empty());
  // Changes that fit come first, the fastest before others.
  for (std::size_t i = 1; i < changes.changes.size(); ++i) {
    const Change &before = changes.changes[i - 1], &after = changes.changes[i];
    EXPECT_TRUE(before.fits || !after.fits);
    EXPECT_TRUE(before.fits != after.fits || before.seconds() <= after.seconds());
  }
}

TEST(Changes, OfBlocksThatAreComputedAgainCostWhatTheySay) {
  const auto graph = three_blocks();
  const Mesh mesh = Mesh::parse("data=4");
  const std::size_t now = plan_cost(graph, mesh, h100()).peak_bytes;
  const Changes changes =
      changes_that_fit(graph, mesh, {.machine = h100(), .capacity_bytes = now - 1});
  const Change* const change = of_kind(changes, Change::Kind::recompute);
  ASSERT_NE(change, nullptr);
  EXPECT_EQ(change->text, "recompute the 3 blocks net/layer* for the gradient");
  const auto again = detail::recomputed(*graph, detail::repeated_blocks(*graph)[0]);
  EXPECT_EQ(change->cost.peak_bytes, plan_cost(again, mesh, h100()).peak_bytes);
  EXPECT_GT(change->cost.seconds(), plan_cost(graph, mesh, h100()).seconds());
}

TEST(Changes, PutMarksTogetherIfNoneDoesAlone) {
  std::string text, outputs;
  for (int i = 0; i < 3; ++i) {
    text += fmt::format("%{} = input() \"{}\" : f32[64, 64] kind=parameter\n", i, "abc"[i]);
  }
  text += "%3 = input() \"x\" : f32[4] marked data kind=loader\n";
  for (int i = 0; i < 3; ++i) {
    text += fmt::format("%{} = reduce_sum(%{}) dims=[0, 1] : f32[]\n", 4 + i, i);
  }
  text += "return %3 %4 %5 %6\n";
  const Mesh mesh = Mesh::parse("data=4");
  constexpr std::size_t kWeight = 64 * 64 * 4;
  // Each of the three weights in quarters, and no batch.
  const CompareOptions options{.machine = h100(), .capacity_bytes = kWeight};
  const Changes changes = changes_that_fit(parsed(text), mesh, options);
  const Change* const marks = of_kind(changes, Change::Kind::marks);
  ASSERT_NE(marks, nullptr);
  EXPECT_TRUE(marks->fits) << marks->cost.peak_bytes;
  EXPECT_EQ(marks->marks.size(), 3u);
}

}  // namespace
}  // namespace shardwise
