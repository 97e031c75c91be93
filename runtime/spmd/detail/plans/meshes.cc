#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/plan_all.h"
#include "shardwise/runtime/spmd/detail/plans/trials.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise {
namespace {

constexpr std::size_t kMostMeshes = 1000;

/// All ways to write a number as a product of the sizes of these axes; adds them to `meshes`.
void factor(std::int64_t devices, const std::vector<std::string>& axes, std::vector<Axis>& begun,
            std::vector<Mesh>& meshes) {
  if (begun.size() + 1 == axes.size()) {
    begun.push_back({axes.back(), devices});
    meshes.emplace_back(begun);
    begun.pop_back();
    if (meshes.size() > kMostMeshes) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("compare meshes: found more than {} of {} axes ({}), needed fewer "
                              "axes or devices",
                              kMostMeshes, axes.size(), fmt::join(axes, ", ")));
    }
    return;
  }
  for (std::int64_t size = devices; size >= 1; --size) {
    if (devices % size != 0) continue;
    begun.push_back({axes[begun.size()], size});
    factor(devices / size, axes, begun, meshes);
    begun.pop_back();
  }
}

MeshPlan plan_on(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                 const CompareOptions& options) {
  MeshPlan result{mesh, {}, "", false};
  try {
    result.cost = plan_cost(graph, mesh, options.machine);
    result.fits = detail::outcome_of(*result.cost, options).excess_bytes == 0;
  } catch (const Error& error) {
    result.refused = error.what();
  }
  return result;
}

}  // namespace

std::vector<MeshPlan> plan_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                  const CompareOptions& options) {
  if (devices < 1 || devices > kMostMeshDevices) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("compare meshes: found {} devices, needed 1 to {}", devices, kMostMeshDevices));
  }
  const std::vector<std::string> axes = mark_axes(*graph);
  if (axes.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "compare meshes: found no marks, needed some: the axes are those that marks name");
  }
  std::vector<Axis> begun;
  std::vector<Mesh> meshes;
  factor(devices, axes, begun, meshes);
  std::vector<std::optional<MeshPlan>> made(meshes.size());
  const auto count = static_cast<std::int64_t>(meshes.size());
  detail::plan_all(
      count, options,
      [&](std::int64_t i) { made[as_size(i)] = plan_on(graph, meshes[as_size(i)], options); }, 0,
      count);
  std::vector<MeshPlan> plans;
  plans.reserve(made.size());
  for (auto& one : made) plans.push_back(*std::move(one));
  const auto order = [](const MeshPlan& plan) {
    const PlanCost cost = plan.cost.value_or(PlanCost());
    return std::tuple(!plan.cost.has_value(), !plan.fits, cost.seconds(), cost.peak_bytes);
  };
  std::ranges::stable_sort(
      plans, [&](const MeshPlan& a, const MeshPlan& b) { return order(a) < order(b); });
  return plans;
}

}  // namespace shardwise
