#include "plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "shardwise/shard/error.h"

namespace gpt {
namespace {

namespace sw = shardwise;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// `rank`: of the weight of one layer.
bool is_of_expert(std::string_view name, std::size_t rank) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return (is_one_of(last, {"w1", "w2"}) && rank == 3) ||
         (is_one_of(last, {"b1", "b2"}) && rank == 2);
}

}  // namespace

sw::Mesh parse_mesh(const std::string& text) { return sw::Mesh::parse(text == "1" ? "" : text); }

Plan::Plan(std::string_view name, const sw::Mesh& mesh) : mesh_(mesh) {
  const auto has = [&](std::string_view axis) {
    return std::any_of(mesh.axes().begin(), mesh.axes().end(),
                       [&](const sw::Axis& one) { return one.name == axis; });
  };
  const auto need = [&](std::string_view axis) {
    if (has(axis)) return std::string(axis);
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("plan \"{}\": found mesh \"{}\", needed one with an axis \"{}\"",
                                name, mesh.to_string(), axis));
  };
  if (!is_one_of(name, {"none", "data", "fsdp", "tensor", "2d", "pipeline", "context", "expert"})) {
    throw sw::Error(
        sw::ErrorCode::invalid_argument,
        fmt::format(
            "found plan \"{}\", needed none, data, fsdp, tensor, 2d, pipeline, context or expert",
            name));
  }
  if (name == "none") return;
  for (const char* const axis : {"data", "fsdp"}) {
    if (has(axis)) batch_axes_.emplace_back(axis);
  }
  if (name == "data" && batch_axes_.empty()) need("data");
  if (name == "fsdp" || name == "2d") gather_axis_ = has("fsdp") ? "fsdp" : need("data");
  if (name == "tensor" || name == "2d") tensor_axis_ = need("model");
  if (name == "pipeline") stage_axis_ = need("stage");
  if (name == "context") context_axis_ = need("context");
  if (name == "expert") {
    expert_axis_ = need("expert");
    batch_axes_.push_back(expert_axis_);
  }
  if (is_one_of(name, {"pipeline", "context", "expert"}) && has("model")) tensor_axis_ = "model";
}

Recipe Plan::spread(Recipe recipe) const {
  recipe.experts.group_axes = batch_axes_;
  if (expert_axis_.empty()) return recipe;
  const std::int64_t count = recipe.experts.count, devices = mesh_.axis_size(expert_axis_);
  if (count == 0 || count % devices != 0) {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("plan \"expert\": found {} experts over {}={}, needed a multiple",
                                count, expert_axis_, devices));
  }
  recipe.experts.expert_axes = {expert_axis_};
  return recipe;
}

sw::PartitionSpec Plan::weight(std::string_view name, const sw::Shape& shape) const {
  std::vector<sw::PartitionSpec::Entry> entries(shape.size());
  const std::size_t dot = name.rfind('.');
  const std::size_t first = name.starts_with("layers.") ? 1 : 0;  // of layers that are stacked
  if (!stage_axis_.empty() && first == 1) entries[0] = {stage_axis_};
  if (!stage_axis_.empty() && name == "embed") entries[0] = {stage_axis_};
  if (!stage_axis_.empty() && name == "head") entries[1] = {stage_axis_};
  if (!tensor_axis_.empty() && dot != std::string_view::npos) {
    const std::string_view last = name.substr(dot + 1);
    if (is_one_of(last, {"wq", "wk", "wv", "bq", "bk", "bv", "w1", "b1"})) {
      entries.back() = {tensor_axis_};
    } else if (is_one_of(last, {"wo", "w2"})) {
      entries[entries.size() - 2] = {tensor_axis_};
    }
  }
  if (!expert_axis_.empty() && is_of_expert(name, shape.size() - first)) {
    entries[first] = {expert_axis_};
  }
  if (!gather_axis_.empty()) {
    std::optional<std::size_t> longest;
    for (std::size_t dim = first; dim < shape.size(); ++dim) {
      if (!entries[dim].empty() || shape[dim] % mesh_.axis_size(gather_axis_) != 0) continue;
      if (!longest || shape[dim] > shape[*longest]) longest = dim;
    }
    if (longest) entries[*longest] = {gather_axis_};
  }
  return sw::PartitionSpec(std::move(entries));
}

sw::PartitionSpec Plan::batch() const { return {batch_axes_, {}}; }

sw::PartitionSpec Plan::ordered_batch() const { return {batch_axes_, {context_axis_}}; }

sw::PartitionSpec Plan::cache() const {
  const sw::PartitionSpec::Entry heads =
      tensor_axis_.empty() ? sw::PartitionSpec::Entry() : sw::PartitionSpec::Entry{tensor_axis_};
  return {batch_axes_, heads, {}, {}};
}

}  // namespace gpt
