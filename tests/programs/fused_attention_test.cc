#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "h100.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/plans.h"
#include "testing/errors.h"

// Attention in the scope of a kernel is planned without its scores, unless they are asked for.

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kScores = std::size_t{2} * 64 * 64 * 4;

/// Two operations use the scores, and one outside the kernel uses the result once more.
std::shared_ptr<const Graph> attention_in(std::string_view scope) {
  return std::make_shared<const Graph>(
      parse_graph(fmt::format(R"(%0 = input() "q" : f32[2, 64, 16] marked data,-,- kind=loader
%1 = dot_general(%0, %0) "bik,bjk->bij" : f32[2, 64, 64]  # {0}
%2 = exp(%1) : f32[2, 64, 64]  # {0}
%3 = dot_general(%2, %0) "bij,bjk->bik" : f32[2, 64, 16]  # {0}
%4 = tanh(%3) : f32[2, 64, 16]  # layer0
return %4
)",
                              scope)));
}

/// The bytes that a device needs at the peak.
std::size_t peak(const std::shared_ptr<const Graph>& graph, std::int64_t devices, Attention how) {
  const Executable executable(graph, Mesh({{"data", devices}}), {.attention = how});
  return executable.memory(0).peak_bytes;
}

std::size_t counted_scores(const std::shared_ptr<const Graph>& graph, std::int64_t devices = 1) {
  return peak(graph, devices, Attention::written) - peak(graph, devices, Attention::fused);
}

TEST(FusedAttention, HasNoMemoryForItsScoresOnAnyMesh) {
  const auto graph = attention_in("layer0/fused attention");
  EXPECT_EQ(counted_scores(graph, 1), kScores);
  EXPECT_EQ(counted_scores(graph, 2), kScores / 2);
  EXPECT_EQ(counted_scores(attention_in("fused attention [12]")), kScores);
  for (const std::string_view other : {"layer0", "fused attention/layer0", "fused attentions"}) {
    EXPECT_EQ(counted_scores(attention_in(other)), 0U) << other;
  }
}

TEST(FusedAttention, IsWhatOnlyOperationsOfOneKernelUse) {
  const auto graph = attention_in("layer0/fused attention");
  EXPECT_THAT(within_kernels(*graph), ElementsAre(false, true, true, false, false));
  EXPECT_THAT(within_kernels(*attention_in("layer0")), IsEmpty());
  Graph changed = *graph;
  changed.outputs.push_back(2);
  EXPECT_THAT(within_kernels(changed), ElementsAre(false, true, false, false, false));
  changed = *graph;
  changed.nodes[3].backward = true;  // the gradient's kernel has them from memory
  EXPECT_THAT(within_kernels(changed), ElementsAre(false, true, false, false, false));
  EXPECT_EQ(counted_scores(std::make_shared<const Graph>(changed)), 0U);
}

TEST(FusedAttention, IsWrittenWhereThatIsAskedFor) {
  const auto graph = attention_in("layer0/fused attention [2]");
  const auto written = with_written_attention(graph);
  EXPECT_THAT(dump(*written), HasSubstr("# layer0/written attention [2]\n"));
  EXPECT_THAT(within_kernels(*written), IsEmpty());
  EXPECT_EQ(peak(written, 1, Attention::fused), peak(graph, 1, Attention::written));
  EXPECT_EQ(planned_attention(*graph), "fused");
  EXPECT_EQ(planned_attention(*written), "written");
  EXPECT_EQ(planned_attention(*attention_in("layer0")), "");
  EXPECT_EQ(with_written_attention(written), written);
  const Mesh mesh({{"data", 1}});
  EXPECT_EQ(plan_cost(written, mesh, h100()).peak_bytes - plan_cost(graph, mesh, h100()).peak_bytes,
            kScores);
}

/// The same attention of nodes, in a body if one is open.
NodeRef kernel_of(const NodeRef& q) {
  GraphBuilder& graph = q.graph->body != nullptr ? *q.graph->body : *q.graph;
  graph.scopes.emplace_back(kFusedAttention);
  graph.scope = static_cast<std::int32_t>(graph.scopes.size()) - 1;
  const NodeRef made = einsum("bij,bjk->bik", exp(einsum("bik,bjk->bij", q, q)), q);
  graph.scope = 0;
  return tanh(made);
}

TEST(FusedAttention, IsInLoopsAndBranchesToo) {
  for (const bool is_loop : {true, false}) {
    auto graph = std::make_shared<GraphBuilder>();
    const NodeRef q{graph.get(), append_input(*graph, {DType::f32, {2, 64, 16}}, "q")};
    const NodeRef made =
        is_loop ? scan([](const NodeRef& h,
                          std::nullptr_t) { return std::pair(kernel_of(h), nullptr); },
                       q, nullptr, {.length = 3})
                      .first
                : cond(
                      gt(sum(q), 0.0), [&] { return kernel_of(q); }, [&] { return q + q; });
    graph->outputs = {made.id};
    EXPECT_EQ(planned_attention(*graph), "fused") << is_loop;
    EXPECT_EQ(counted_scores(graph), kScores) << is_loop;
    EXPECT_EQ(planned_attention(*with_written_attention(graph)), "written") << is_loop;
  }
}

TEST(FusedAttention, IsNotRun) {
  const Executable executable(attention_in("fused attention"), Mesh({{"data", 1}}),
                              {.attention = Attention::fused});
  Devices devices(1);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] { executable.run(devices, std::vector<ShardedArray>{}); }),
            "run a program: found one that is planned with fused attention, needed one with "
            "CompileOptions::attention as Attention::written");
}

}  // namespace
}  // namespace shardwise
