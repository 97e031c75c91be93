#include "shardwise/runtime/spmd/detail/html/collective_times.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/modelled.h"
#include "shardwise/runtime/spmd/detail/plans/passed.h"

namespace shardwise::detail {
namespace {

class Walk {
 public:
  Walk(const PlannedProgram& planned, const Machine& machine)
      : mesh_(planned.mesh), machine_(machine), whole_(passed(planned)) {}

  CollectiveTimes run() {
    result_.seconds = steps(whole_, 0, 1, std::nullopt);
    return std::move(result_);
  }

 private:
  /// Counts steps from `begin` on, each `times` longer than once; returns the time of one trip.
  double steps(const Passed& in, double begin, double times, std::optional<NodeId> loop) {
    std::vector<bool> is_fused(in.partitioned.steps.size(), false);
    for (const FusedStep& fused : in.steps) {
      for (const std::size_t one : fused.steps) is_fused[one] = true;
    }
    // A step that is read in place, and does not run itself, is counted before the next one that
    // does.
    std::size_t next = 0;
    double at = 0;
    const auto add_until = [&](std::size_t end) {
      for (; next < end; ++next) {
        if (!is_fused[next]) at += seconds_of(in, next);
      }
    };
    for (std::size_t s = 0; s < in.steps.size(); ++s) {
      add_until(in.steps[s].steps.back());
      if (!loop) result_.begins.push_back(begin + at);
      if (const std::optional<Passed> body = body_of_step(in, s, known_)) {
        const NodeId node = node_of(in, s);
        const std::int64_t trips = body->times / std::max<std::int64_t>(in.times, 1);
        steps(*body, begin + times * at, times * static_cast<double>(trips), loop.value_or(node));
      } else {
        add_moves(in, s, begin + times * at, times, loop);
      }
      at += seconds(in, s);
    }
    add_until(is_fused.size());
    return at;
  }

  static NodeId node_of(const Passed& in, std::size_t step) {
    return std::get<PartitionedGraph::Loop>(in.partitioned.steps[in.steps[step].steps.front()])
        .node;
  }

  double seconds_of(const Passed& in, std::size_t partitioned_step) {
    const auto [known, is_new] = within_.try_emplace(&in.graph);
    if (is_new) known->second = within_kernels(in.graph);
    return modelled_step(in.graph, mesh_, in.propagation, in.partitioned, partitioned_step,
                         known->second, machine_)
        .seconds();
  }

  double seconds(const Passed& in, std::size_t step) {
    double sum = 0;
    for (const std::size_t one : in.steps[step].steps) sum += seconds_of(in, one);
    return sum;
  }

  void add_moves(const Passed& in, std::size_t step, double begin, double times,
                 std::optional<NodeId> loop) {
    for_each_move_of_step(in, step, [&](const CountedMove& one) {
      double before = 0, own = 0;
      for (const std::size_t part : in.steps[step].steps) {
        const bool is_this =
            &std::get<PartitionedGraph::Move>(in.partitioned.steps[part]) == &one.move;
        own = seconds_of(in, part);
        if (is_this) break;
        before += own;
      }
      result_.moves.push_back({one.kind, one.axes(mesh_), one.scope(),
                               loop.value_or(one.move.consumer), to_string(in.graph, one.tensor()),
                               one.is_asked_for(), in.times, as_size(in.times) * one.wire_bytes,
                               begin + times * before, times * own});
    });
  }

  const Mesh& mesh_;
  const Machine& machine_;
  Passed whole_;
  WireBytes known_;
  std::map<const Graph*, std::vector<bool>> within_;  ///< of the program and its bodies
  CollectiveTimes result_;
};

}  // namespace

CollectiveTimes collective_times(const PlannedProgram& planned, const Machine& machine,
                                 std::size_t most_moves) {
  CollectiveTimes times = Walk(planned, machine).run();
  std::vector<TimedMove>& moves = times.moves;
  if (moves.size() <= most_moves) return times;
  std::vector<std::size_t> sent;
  sent.reserve(moves.size());
  for (const TimedMove& move : moves) sent.push_back(move.wire_bytes);
  const auto last = sent.begin() + static_cast<std::ptrdiff_t>(most_moves);
  std::nth_element(sent.begin(), last, sent.end(), std::greater());
  // As many of those that send as much as the last one as there is room for.
  auto room =
      static_cast<std::int64_t>(most_moves) -
      std::ranges::count_if(moves, [&](const TimedMove& move) { return move.wire_bytes > *last; });
  std::erase_if(moves, [&](const TimedMove& move) {
    const bool stays = move.wire_bytes > *last || (move.wire_bytes == *last && room-- > 0);
    if (stays) return false;
    ++times.left_out;
    times.left_out_bytes += move.wire_bytes;
    return true;
  });
  return times;
}

}  // namespace shardwise::detail
