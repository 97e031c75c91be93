#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "h100.h"
#include "random_program.h"
#include "shardwise/runtime/spmd/detail/html/collective_times.h"
#include "shardwise/runtime/spmd/detail/html/json_writer.h"
#include "shardwise/runtime/spmd/detail/html/memory_curve.h"
#include "shardwise/runtime/spmd/detail/html/page_data.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/passed.h"
#include "shardwise/runtime/spmd/plans.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using detail::JsonWriter;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint32_t kPrograms = 60;

struct Case {
  explicit Case(std::uint32_t seed, MovePlans moves = MovePlans::made)
      : program(seed), mesh(program.random_mesh()) {
    program.mark(mesh);
    const auto graph = std::make_shared<const Graph>(program.graph);
    const std::vector<bool> may_donate(graph->inputs.size(), seed % 2 == 0);
    executable = std::make_unique<Executable>(
        graph, mesh, CompileOptions{.moves = moves, .may_donate = may_donate});
    told = report(*executable, h100());
  }

  RandomProgram program;
  Mesh mesh;
  std::unique_ptr<Executable> executable;
  StepReport told;
};

/// Bytes in memory at a step, by kind, found by looking at each value.
std::map<std::string_view, std::size_t> brute_force(const PlannedProgram& planned,
                                                    std::size_t step) {
  std::map<std::string_view, std::size_t> bytes;
  const MemoryPlan& plan = planned.plan;
  std::vector<bool> is_there(plan.homes.size(), false);
  for (const auto input : planned.lowered.inputs) is_there[as_size(input)] = true;
  for (std::size_t o = 0; o < planned.lowered.outputs.size(); ++o) {
    if (plan.donated[o] < 0) is_there[as_size(planned.lowered.outputs[o])] = true;
  }
  for (std::size_t v = 0; v < plan.homes.size(); ++v) {
    const Lifetime& life = plan.lifetimes[as_size(plan.roots[v])];
    const bool is_root = as_size(plan.roots[v]) == v;
    const bool in_region = plan.homes[v] == MemoryPlan::Home::region && is_root &&
                           plan.hosts[v] < 0 && life.first <= static_cast<std::int64_t>(step) &&
                           static_cast<std::int64_t>(step) <= life.last;
    if (!is_there[v] && !in_region) continue;
    bytes[detail::kind_name(planned, static_cast<Program::ValueId>(v))] += plan.bytes[v];
  }
  std::erase_if(bytes, [](const auto& one) { return one.second == 0; });
  return bytes;
}

TEST(MemoryCurve, IsWhatHasMemoryAtEachStep) {
  for (std::uint32_t seed = 0; seed < kPrograms; ++seed) {
    const Case one(seed);
    const PlannedProgram& planned = planned_program(*one.executable);
    const detail::MemoryCurve curve = detail::memory_curve(planned, 1 << 20);
    ASSERT_EQ(curve.points.size(), std::max<std::size_t>(curve.steps, 1)) << "seed " << seed;
    std::size_t most = 0;
    for (const detail::CurvePoint& point : curve.points) {
      std::map<std::string_view, std::size_t> bytes;
      for (std::size_t kind = 0; kind < curve.kinds.size(); ++kind) {
        if (point.bytes[kind] > 0) bytes[curve.kinds[kind]] = point.bytes[kind];
      }
      EXPECT_EQ(bytes, brute_force(planned, point.step)) << "seed " << seed;
      most =
          std::max(most, std::accumulate(point.bytes.begin(), point.bytes.end(), std::size_t{0}));
      for (std::size_t i = 1; i < point.largest.size(); ++i) {
        EXPECT_GE(planned.plan.bytes[as_size(point.largest[i - 1])],
                  planned.plan.bytes[as_size(point.largest[i])]);
      }
    }
    // The fullest point equals the peak in the page's text and JSON.
    const detail::CurvePoint& fullest = curve.points[curve.fullest];
    EXPECT_EQ(std::accumulate(fullest.bytes.begin(), fullest.bytes.end(), std::size_t{0}), most);
    for (const auto& [kind, bytes] :
         bytes_by_kind(fullest_step(*one.executable), one.told.memory.peak_bytes)) {
      if (kind == "gaps") continue;
      const auto at = std::ranges::find(curve.kinds, kind);
      ASSERT_NE(at, curve.kinds.end()) << kind;
      EXPECT_EQ(fullest.bytes[as_size(at - curve.kinds.begin())], bytes) << "seed " << seed;
    }
    // With fewer points the peak stays.
    const detail::MemoryCurve thin = detail::memory_curve(planned, 4);
    EXPECT_LE(thin.points.size(), 4U);
    EXPECT_EQ(thin.points[thin.fullest].step, fullest.step);
    EXPECT_EQ(thin.points[thin.fullest].bytes, fullest.bytes);
  }
}

TEST(CollectiveTimes, AreThoseOfTheReportAndBytesThoseOfTheTraffic) {
  std::size_t loops = 0;
  // Compilers draw other programs: they evaluate arguments in other orders.
  for (std::uint32_t seed = 0; seed < kPrograms || (loops == 0 && seed < 40 * kPrograms); ++seed) {
    const Case one(seed);
    const PlannedProgram& planned = planned_program(*one.executable);
    const detail::CollectiveTimes times = detail::collective_times(planned, h100(), 1 << 20);
    const double whole = one.told.compute_seconds + one.told.collective_seconds;
    EXPECT_NEAR(times.seconds, whole, 1e-9 * whole) << "seed " << seed;
    EXPECT_EQ(times.begins.size(), planned.steps.size());
    EXPECT_EQ(times.left_out, 0);
    using Key = std::tuple<CollectiveKind, std::vector<std::string>, std::string, bool>;
    std::map<Key, std::pair<std::int64_t, std::size_t>> found, expected;
    double end = 0;
    for (const detail::TimedMove& move : times.moves) {
      auto& [tensors, bytes] = found[{move.kind, move.axes, move.scope, move.is_asked_for}];
      tensors += move.times;
      bytes += move.wire_bytes;
      loops += move.times > 1 ? 1 : 0;
      EXPECT_GE(move.begin, end - 1e-9 * whole) << "seed " << seed << ": two at the same time";
      end = move.begin + move.seconds;
    }
    EXPECT_LE(end, whole * (1 + 1e-9)) << "seed " << seed;
    for (const Traffic& row : traffic(*one.executable)) {
      expected[{row.kind, row.axes, row.scope, row.is_asked_for}] = {row.tensors, row.wire_bytes};
    }
    EXPECT_EQ(found, expected) << "seed " << seed;

    const std::size_t most = times.moves.size() / 2;
    const detail::CollectiveTimes less = detail::collective_times(planned, h100(), most);
    EXPECT_EQ(less.moves.size(), most);
    EXPECT_EQ(as_size(less.left_out), times.moves.size() - most);
    const auto sent = [](const detail::CollectiveTimes& some) {
      return std::accumulate(
          some.moves.begin(), some.moves.end(), some.left_out_bytes,
          [](std::size_t sum, const auto& move) { return sum + move.wire_bytes; });
    };
    EXPECT_EQ(sent(less), sent(times));
  }
  EXPECT_GT(loops, 0U) << "no program sends something in a loop";
}

/// Bytes that a device sends in each move of a step, without empty slices; if the move is no sum,
/// the most that one receives by its plan.
std::vector<std::size_t> sent_by_plans(const PlannedProgram& planned, std::size_t step,
                                       std::size_t& windows) {
  std::vector<std::size_t> sent;
  const auto* const move = std::get_if<Program::Move>(&planned.lowered.program.steps()[step]);
  for (std::size_t p = 0; move != nullptr && p < move->parts.size(); ++p) {
    const auto& cut =
        std::get<PartitionedGraph::Move>(planned.partitioned.steps[planned.steps[step].steps[p]]);
    std::size_t most = 0;
    for (const DeviceBytes& bytes : move->parts[p].plan.traffic) {
      most = std::max(most, bytes.received);
    }
    if (cut.kind == CollectiveKind::all_reduce || cut.kind == CollectiveKind::reduce_scatter) {
      most = cut.wire_bytes;
    }
    if (cut.kind == CollectiveKind::slice && most == 0) continue;
    sent.push_back(most);
    const Program& program = planned.lowered.program;
    windows += program.value(move->parts[p].from).layout.has_windows() ||
                       program.value(move->parts[p].to).layout.has_windows()
                   ? 1
                   : 0;
  }
  return sent;
}

TEST(PlanWithoutMoves, SaysWhatOneWithThemSays) {
  std::size_t moves = 0, windows = 0;
  for (std::uint32_t seed = 0; seed < 2 * kPrograms; ++seed) {
    const Case whole(seed), planned(seed, MovePlans::left_out);
    const PageOptions options{.program = "random", .has_times = true, .capacity_bytes = 1 << 20};
    const auto line_of = [](NodeId node) { return std::to_string(node); };
    EXPECT_EQ(page(*planned.executable, planned.told, options),
              page(*whole.executable, whole.told, options))
        << "seed " << seed;
    EXPECT_EQ(plan_html(*planned.executable, planned.told, options, line_of),
              plan_html(*whole.executable, whole.told, options, line_of))
        << "seed " << seed;
    EXPECT_EQ(to_string(planned.told), to_string(whole.told)) << "seed " << seed;
    EXPECT_EQ(dump(*planned.executable), dump(*whole.executable)) << "seed " << seed;
    for (std::int64_t position = 0; position < whole.mesh.size(); ++position) {
      EXPECT_LE(whole.executable->memory(position).peak_bytes, whole.told.memory.peak_bytes)
          << "seed " << seed;
    }
    for (const Program::Step& step : planned_program(*planned.executable).lowered.program.steps()) {
      const auto* const move = std::get_if<Program::Move>(&step);
      for (std::size_t p = 0; move != nullptr && p < move->parts.size(); ++p) {
        EXPECT_TRUE(move->parts[p].plan.phases.empty()) << "seed " << seed;
      }
    }
    const PlannedProgram &made = planned_program(*whole.executable),
                         &left_out = planned_program(*planned.executable);
    const Passed in = passed(left_out);
    for (std::size_t step = 0; step < made.steps.size(); ++step) {
      std::vector<std::size_t> sent;
      for_each_move_of_step(in, step,
                            [&](const CountedMove& one) { sent.push_back(one.wire_bytes); });
      EXPECT_EQ(sent, sent_by_plans(made, step, windows)) << "seed " << seed << ", step " << step;
      moves += sent.size();
    }
  }
  EXPECT_GT(moves, 100U);
  EXPECT_GT(windows, 10U);
}

TEST(PlanWithoutMoves, IsNotRun) {
  const Case one(0, MovePlans::left_out);
  Devices devices(one.mesh.size());
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] { one.executable->run(devices, std::vector<ShardedArray>{}); }),
            "run a program: found one that is planned without its moves, needed one with "
            "CompileOptions::moves as MovePlans::made");
}

TEST(PageData, HasTheTilesOfEachDevice) {
  for (std::uint32_t seed = 0; seed < kPrograms; ++seed) {
    const Case one(seed);
    const Executable& executable = *one.executable;
    const PageOptions options{.program = "random", .has_times = true};
    const json data = json::parse(detail::page_data(executable, one.told, options, {}));
    EXPECT_EQ(data["plan"], json::parse(plan_json(executable, one.told, options)));
    const std::vector<GraphInput>& inputs = executable.graph().inputs;
    ASSERT_EQ(data["inputs"]["rows"].size(), inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const json& row = data["inputs"]["rows"][i];
      const json& layout = data["layouts"][row["layout"].get<std::size_t>()];
      const ArraySpec spec = executable.input_spec(i);
      EXPECT_EQ(row["tensor"], inputs[i].label);
      for (std::int64_t position = 0; position < one.mesh.size(); ++position) {
        auto tile = layout["tiles"][as_size(position)].get<std::size_t>();
        const Box box = spec.sharding.box_at(position, spec.shape);
        for (std::size_t dim = box.rank(); dim-- > 0;) {
          const json& cuts = layout["cuts"][dim];
          const std::size_t number = tile % (cuts.size() - 1);
          tile /= cuts.size() - 1;
          EXPECT_EQ(cuts[number], box.begin(dim)) << "seed " << seed;
          EXPECT_EQ(cuts[number + 1], box.end(dim)) << "seed " << seed;
        }
      }
    }
  }
}

TEST(JsonWriter, KeepsTextsApartFromTheirPage) {
  JsonWriter writer;
  writer.open('[').text("</script><!--&\"\\\n\x01").text("\xE2\x80\xA8\xC3\xA9\xF0\x9F\x98\x80");
  writer
      .text(
          "a\xFF\xC0\xAF"
          "b\xED\xA0\x80")
      .close(']');
  EXPECT_THAT(writer.done(), Not(testing::AnyOf(HasSubstr("<"), HasSubstr(">"), HasSubstr("&"))));
  const json read = json::parse(writer.done());
  EXPECT_EQ(read[0], "</script><!--&\"\\\n\x01");
  EXPECT_EQ(read[1], "\xE2\x80\xA8\xC3\xA9\xF0\x9F\x98\x80");
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(read[2], "a" + mark + mark + mark + "b" + mark + mark + mark);
}

TEST(JsonWriter, WritesNumbersThatAreReadAsTheSame) {
  JsonWriter writer;
  writer.open('{').key("a").open('[').number(0.1).number(1e300).number(4.0).number(1.0 / 0.0);
  writer.number(std::size_t{18446744073709551615U}).number(std::int64_t{-3}).close(']');
  writer.key("b").boolean(true).key("c").null().close('}');
  EXPECT_EQ(writer.done(),
            R"({"a":[0.1,1e+300,4.0,null,18446744073709551615,-3],"b":true,"c":null})");
}

TEST(PlanHtml, PutsNothingIntoWhatItHasPutIn) {
  Case one(1);
  const std::string name = "{{data}}{{script}}<b>";
  const std::string html = plan_html(*one.executable, one.told, {.program = name}, {});
  EXPECT_THAT(html, HasSubstr("<title>{{data}}{{script}}&lt;b&gt;: plan</title>"));
  EXPECT_THAT(html, HasSubstr(R"("program":"{{data}}{{script}}\u003cb\u003e")"));
  EXPECT_THAT(html, Not(HasSubstr("{{style}}")));
  EXPECT_TRUE(html.ends_with("</html>\n"));
}

}  // namespace
}  // namespace shardwise
