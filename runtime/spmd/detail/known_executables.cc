#include "shardwise/runtime/spmd/detail/known_executables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

/// From this many misses in a row on, the reason names the usual cause.
constexpr std::int64_t kManyMisses = 10;

std::vector<std::optional<PartitionSpec>> take_input_marks(Graph& graph) {
  std::vector<std::optional<PartitionSpec>> marks;
  for (const GraphInput& input : graph.inputs) {
    marks.push_back(std::exchange(graph.node(input.node).mark, std::nullopt));
  }
  return marks;
}

void set_input_marks(Graph& graph, const std::vector<std::optional<PartitionSpec>>& marks) {
  for (std::size_t i = 0; i < marks.size(); ++i) graph.node(graph.inputs[i].node).mark = marks[i];
}

/// True if an input's mark or cut now suits an executable: it is the one that it was planned with,
/// or the one that the plan chose for an unmarked input.
bool suits(const std::optional<PartitionSpec>& now, const std::optional<PartitionSpec>& then,
           const PartitionSpec& chosen) {
  return now == then || (now && !then && *now == chosen);
}

const PartitionSpec& chosen_spec(const Executable& executable, std::size_t input) {
  return executable.input_spec(input).sharding.spec();
}

std::string text(const std::optional<PartitionSpec>& spec) {
  return spec ? "cut as " + spec->to_string() : "not cut yet";
}

}  // namespace

KnownExecutables::KnownExecutables(std::size_t most) : most_(most) {
  if (most == 0) {
    throw Error(ErrorCode::invalid_argument,
                "make a tracer: found room for 0 executables, needed at least 1");
  }
}

std::shared_ptr<const Executable> KnownExecutables::get(const std::shared_ptr<Graph>& traced,
                                                        const Mesh& mesh,
                                                        const CompileOptions& options) {
  const Marks marks = take_input_marks(*traced);
  const std::uint64_t key = hash(*traced);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& one) {
    return one.hash == key && is_it(one, *traced, marks, mesh, options);
  });
  std::string why = found == known_.end() ? why_missed(*traced, marks, mesh, options) : "";
  set_input_marks(*traced, marks);
  if (found != known_.end()) {
    misses_in_a_row_ = 0;
    known_.splice(known_.begin(), known_, found);
    return known_.front().executable;
  }
  auto made = std::make_shared<const Executable>(traced, mesh, options);
  if (++misses_in_a_row_ >= kManyMisses) {
    why += fmt::format(
        "; {} steps in a row were planned again: a number that changes from step to step is part "
        "of "
        "the program, a scalar tensor is not",
        misses_in_a_row_);
  }
  miss_ = std::move(why);
  if (known_.size() == most_) {
    known_.pop_back();
    ++dropped_;
  }
  known_.push_front({key, mesh, options, marks, std::move(made)});
  return known_.front().executable;
}

bool KnownExecutables::is_it(const Known& one, Graph& traced, const Marks& marks, const Mesh& mesh,
                             const CompileOptions& options) const {
  if (!(one.mesh == mesh) || one.options.may_donate != options.may_donate ||
      one.marks.size() != marks.size()) {
    return false;
  }
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const PartitionSpec& chosen = chosen_spec(*one.executable, i);
    if (!suits(marks[i], one.marks[i], chosen) ||
        !suits(options.input_specs[i], one.options.input_specs[i], chosen)) {
      return false;
    }
  }
  set_input_marks(traced, one.marks);
  const bool same = same_program(one.executable->graph(), traced);
  take_input_marks(traced);
  return same;
}

std::string KnownExecutables::why_missed(const Graph& traced, const Marks& marks, const Mesh& mesh,
                                         const CompileOptions& options) const {
  if (known_.empty()) return "";
  const Known& one = known_.front();
  Graph before = one.executable->graph();
  take_input_marks(before);  // like those of `traced`: the cut of an array is not a mark
  if (!(one.mesh == mesh)) {
    return fmt::format("found mesh {}, had {}", mesh.to_string(), one.mesh.to_string());
  }
  for (std::size_t i = 0; i < std::min(traced.nodes.size(), before.nodes.size()); ++i) {
    const auto id = static_cast<NodeId>(i);
    const std::string now = to_string(traced, id), then = to_string(before, id);
    if (now != then) return fmt::format("found {}, had {}", now, then);
    if (!(traced.node(id).attributes == before.node(id).attributes)) {
      return fmt::format("found another body or literal of {}", now);
    }
  }
  if (traced.nodes.size() != before.nodes.size()) {
    return fmt::format("found {} operations, had {}", traced.nodes.size(), before.nodes.size());
  }
  if (traced.outputs != before.outputs) {
    return fmt::format("found {} tensors still held, had {}, or others", traced.outputs.size(),
                       before.outputs.size());
  }
  for (std::size_t i = 0; i < traced.inputs.size(); ++i) {
    const std::string& label = traced.inputs[i].label;
    const PartitionSpec& chosen = chosen_spec(*one.executable, i);
    if (!suits(options.input_specs[i], one.options.input_specs[i], chosen)) {
      return fmt::format("found input \"{}\" {}, had it {}", label, text(options.input_specs[i]),
                         text(one.options.input_specs[i]));
    }
    if (!suits(marks[i], one.marks[i], chosen)) {
      return fmt::format("found input \"{}\" {}, had it {}", label, text(marks[i]),
                         text(one.marks[i]));
    }
    if (options.may_donate[i] != one.options.may_donate[i]) {
      return fmt::format("found input \"{}\" {} by the program after the step, had it {}", label,
                         options.may_donate[i] ? "not held" : "held",
                         options.may_donate[i] ? "held" : "not held");
    }
  }
  return "found another kind of an input";
}

}  // namespace shardwise::detail
