#include "shardwise/runtime/spmd/detail/plans/passed.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "shardwise/runtime/spmd/detail/control/lower_body.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

// Keeps sums over a program's moves within 64 bits.
constexpr std::int64_t kMostRuns = std::int64_t{1} << 40;

Passed body_of(const Passed& in, const PartitionedGraph::Loop& loop, const PartitionedBody& body,
               const LoweredBody& lowered) {
  const std::string& scope = in.graph.scopes[as_size(in.graph.node(loop.node).scope)];
  const std::int64_t trips = lowered.body->trips;
  if (trips > 0 && in.times > kMostRuns / trips) {
    throw Error(ErrorCode::unsupported,
                fmt::format("count what loops do: found {} trips of a loop that runs {} times, "
                            "needed at most {} together",
                            trips, in.times, kMostRuns));
  }
  return {*body.graph,
          *body.propagation,
          body.partitioned,
          lowered.steps,
          lowered.body->program,
          lowered.bodies,
          in.times * trips,
          scope.empty() ? in.scope : scope,
          in.received};
}

void for_each_move_known(const Passed& in, WireBytes& known, const CountMove& count) {
  for (std::size_t s = 0; s < in.steps.size(); ++s) {
    if (const std::optional<Passed> body = body_of_step(in, s, known)) {
      for_each_move_known(*body, known, count);
    } else {
      for_each_move_of_step(in, s, count);
    }
  }
}

std::size_t body_wire_bytes(Passed body, WireBytes& known) {
  const auto found = known.find(&body.partitioned);
  if (found != known.end()) return found->second;
  body.times = 1;
  std::size_t bytes = 0;
  for_each_move_known(body, known, [&](const CountedMove& one) {
    bytes += as_size(one.in.times) * one.wire_bytes;
  });
  return known[&body.partitioned] = bytes;
}

}  // namespace

Passed passed(const PlannedProgram& planned) {
  return {*planned.graph,
          planned.propagation,
          planned.partitioned,
          planned.steps,
          planned.lowered.program,
          planned.lowered.bodies,
          1,
          "",
          std::make_shared<ReceivedBytes>()};
}

std::size_t ReceivedBytes::of(const Program::Value& from, const Program::Value& to) {
  for (const Known& known : known_) {
    if (known.shape == from.shape && known.dtype == from.dtype && known.from == from.layout &&
        known.to == to.layout) {
      return known.bytes;
    }
  }
  known_.push_back({from.layout, to.layout, from.shape, from.dtype,
                    most_received(from.layout, to.layout, from.shape, from.dtype)});
  return known_.back().bytes;
}

std::optional<Passed> body_of_step(const Passed& in, std::size_t step, WireBytes& known) {
  const PartitionedGraph::Step& first = in.partitioned.steps[in.steps[step].steps.front()];
  const auto* const loop = std::get_if<PartitionedGraph::Loop>(&first);
  if (loop == nullptr) return std::nullopt;
  const LoweredBodies& bodies = in.bodies.at(step);
  std::optional<Passed> body;
  body.emplace(body_of(in, *loop, *loop->body, *bodies.body));
  if (loop->otherwise != nullptr) {
    const Passed other = body_of(in, *loop, *loop->otherwise, *bodies.otherwise);
    if (body_wire_bytes(other, known) > body_wire_bytes(*body, known)) body.emplace(other);
  }
  return body;
}

NodeId CountedMove::tensor() const { return in.partitioned.values[as_size(move.from)].node; }

bool CountedMove::is_asked_for() const {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter ||
         in.graph.node(tensor()).mark.has_value();
}

const std::string& CountedMove::scope() const {
  const std::string& own = in.graph.scopes[as_size(in.graph.node(move.consumer).scope)];
  return own.empty() ? in.scope : own;
}

std::vector<std::string> CountedMove::axes(const Mesh& mesh) const {
  std::vector<std::string> names;
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    if (move.axes >> axis & 1) names.push_back(mesh.axes()[axis].name);
  }
  return names;
}

void for_each_move_of_step(const Passed& in, std::size_t step, const CountMove& count) {
  const auto* const moves = std::get_if<Program::Move>(&in.program.steps()[step]);
  if (moves == nullptr) return;
  for (std::size_t part = 0; part < moves->parts.size(); ++part) {
    const auto& move =
        std::get<PartitionedGraph::Move>(in.partitioned.steps[in.steps[step].steps[part]]);
    const bool combines =
        move.kind == CollectiveKind::all_reduce || move.kind == CollectiveKind::reduce_scatter;
    const Program::Move::Part& one = moves->parts[part];
    const std::size_t wire =
        combines ? move.wire_bytes
                 : in.received->of(in.program.value(one.from), in.program.value(one.to));
    // Uneven parts may overlap several of the source parts.
    const bool is_slice = move.kind == CollectiveKind::slice;
    if (is_slice && wire == 0) continue;
    count(CountedMove{in, move, is_slice ? CollectiveKind::general : move.kind, wire, part == 0});
  }
}

void for_each_move(const Passed& in, const CountMove& count) {
  WireBytes known;
  for_each_move_known(in, known, count);
}

}  // namespace shardwise
