#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

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
  MeshPlan result{.mesh = mesh, .cost = {}, .refused = ""};
  try {
    result.cost = plan_cost(graph, mesh, options.machine);
    result.fits = detail::outcome_of(*result.cost, options).excess_bytes == 0;
  } catch (const Error& error) {
    result.refused = error.what();
  }
  return result;
}

MeshPlan search_on(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                   const CompareOptions& options) {
  MeshPlan result{.mesh = mesh, .cost = {}, .refused = ""};
  try {
    result.searched = search_marks(graph, mesh, options);
    result.cost = result.searched->cost;
    result.fits = result.searched->fits;
  } catch (const Error& error) {
    result.refused = error.what();
  }
  return result;
}

/// The mesh with each axis in turn as the last one, whose devices are neighbours. That makes a
/// difference only if a machine has slower links between nodes.
std::vector<Mesh> orders(const Mesh& mesh, const std::optional<Machine>& machine) {
  std::vector<Mesh> all = {mesh};
  if (!machine || machine->node_devices == 0 || machine->node_devices >= mesh.size()) return all;
  const std::vector<Axis> axes(mesh.axes().begin(), mesh.axes().end());
  for (std::size_t last = 0; last + 1 < axes.size(); ++last) {
    if (axes[last].size == 1) continue;
    std::vector<Axis> moved = axes;
    std::rotate(moved.begin() + static_cast<std::ptrdiff_t>(last),
                moved.begin() + static_cast<std::ptrdiff_t>(last) + 1, moved.end());
    const auto is_long = [](const Axis& axis) { return axis.size > 1; };
    if (std::any_of(axes.begin() + static_cast<std::ptrdiff_t>(last) + 1, axes.end(), is_long)) {
      all.emplace_back(std::move(moved));
    }
  }
  return all;
}

bool is_better(const MeshPlan& a, const MeshPlan& b) {
  const auto key = [](const MeshPlan& plan) {
    const PlanCost cost = plan.cost.value_or(PlanCost());
    return std::tuple(!plan.cost.has_value(), !plan.fits, cost.seconds(), cost.peak_bytes);
  };
  return key(a) < key(b);
}

/// All meshes of this number of devices with these axes.
std::vector<Mesh> meshes_of(std::int64_t devices, const std::vector<std::string>& axes) {
  if (devices < 1 || devices > kMostMeshDevices) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("compare meshes: found {} devices, needed 1 to {}", devices, kMostMeshDevices));
  }
  if (axes.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "compare meshes: found no marks, needed some: the axes are those that marks name. A "
        "search needs none");
  }
  std::vector<Axis> begun;
  std::vector<Mesh> meshes;
  factor(devices, axes, begun, meshes);
  return meshes;
}

}  // namespace

std::vector<MeshPlan> plan_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                  const CompareOptions& options) {
  const std::vector<Mesh> meshes = meshes_of(devices, mark_axes(*graph));
  std::vector<std::optional<MeshPlan>> made(meshes.size());
  const auto count = static_cast<std::int64_t>(meshes.size());
  detail::plan_all(
      count, options,
      [&](std::int64_t i) {
        std::optional<MeshPlan>& best = made[as_size(i)];
        for (const Mesh& mesh : orders(meshes[as_size(i)], options.machine)) {
          MeshPlan plan = plan_on(graph, mesh, options);
          if (!best || is_better(plan, *best)) best = std::move(plan);
        }
      },
      0, count);
  std::vector<MeshPlan> plans;
  plans.reserve(made.size());
  for (auto& one : made) plans.push_back(*std::move(one));
  std::ranges::stable_sort(plans, is_better);
  return plans;
}

std::vector<MeshPlan> search_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                    const CompareOptions& options) {
  std::vector<std::string> axes = mark_axes(*graph);
  for (const char* const axis : {"data", "model"}) {
    if (axes.size() < 2 && std::ranges::find(axes, axis) == axes.end()) axes.emplace_back(axis);
  }
  const std::vector<Mesh> meshes = meshes_of(devices, axes);
  const auto count = static_cast<std::int64_t>(meshes.size());
  std::vector<MeshPlan> plans;
  for (std::int64_t i = 0; i < count; ++i) {
    CompareOptions of_one = options;  // a search has threads of its own
    if (options.progress) {
      of_one.progress = [&options, i, count](std::int64_t done, std::int64_t of) {
        options.progress(i * of + done, count * of);
      };
    }
    plans.push_back(search_on(graph, meshes[as_size(i)], of_one));
  }
  std::ranges::stable_sort(plans, is_better);
  return plans;
}

}  // namespace shardwise
