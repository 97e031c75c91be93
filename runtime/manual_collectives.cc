#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "shardwise/runtime/detail/manual_impl.h"
#include "shardwise/runtime/manual.h"
#include "shardwise/shard/error.h"

// The collectives of manual mode. Each is one or two transfer plans per group of devices; there is
// no other data movement here.
namespace shardwise {
namespace {

using TaskId = TaskGraph::TaskId;

[[noreturn]] void refuse(std::string_view operation, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", operation, why));
}

/// The numbers of the mesh axes that cut a dim.
std::vector<std::size_t> axes_of(const Sharding& sharding, std::size_t dim) {
  std::vector<std::size_t> axes;
  for (const std::string& axis : sharding.spec()[dim]) {
    axes.push_back(sharding.mesh().axis_index(axis));
  }
  return axes;
}

void check_dim(const Sharding& sharding, std::size_t dim, std::string_view operation) {
  if (dim >= sharding.rank()) {
    refuse(operation, fmt::format("dim {} of a value of rank {}", dim, sharding.rank()));
  }
}

void check_unused(const Sharding& sharding, std::size_t axis, std::string_view operation) {
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
    const std::vector<std::size_t> axes = axes_of(sharding, dim);
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) continue;
    refuse(operation,
           fmt::format("axis \"{}\" already cuts dim {} of the value, whose spec is {}",
                       sharding.mesh().axes()[axis].name, dim, sharding.spec().to_string()));
  }
}

void check_last(const Sharding& sharding, std::size_t axis, std::size_t dim,
                std::string_view operation) {
  check_dim(sharding, dim, operation);
  const std::vector<std::size_t> axes = axes_of(sharding, dim);
  if (!axes.empty() && axes.back() == axis) return;
  refuse(operation,
         fmt::format("axis \"{}\" is not the last that cuts dim {} of the value, whose "
                     "spec is {}",
                     sharding.mesh().axes()[axis].name, dim, sharding.spec().to_string()));
}

void check_reduction(Reduction reduction, std::string_view operation) {
  if (reduction == Reduction::none) refuse(operation, "no reduction, needed sum, max or min");
}

std::vector<PartitionSpec::Entry> entries(const PartitionSpec& spec) {
  std::vector<PartitionSpec::Entry> all;
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) all.push_back(spec[dim]);
  return all;
}

/// The group's shards cut into one part per device, counted in elements of the row-major shard.
std::vector<Box> even_parts(std::int64_t elements, std::int64_t parts) {
  // Whole pages of f32: a part is worth a task, and no two devices write to one cache line.
  constexpr std::int64_t kGrain = 1024;
  const std::int64_t even = (elements + parts - 1) / parts;
  const std::int64_t block = (even + kGrain - 1) / kGrain * kGrain;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < parts; ++i) {
    boxes.emplace_back(Index{std::min(i * block, elements)},
                       Index{std::min((i + 1) * block, elements)});
  }
  return boxes;
}

void check_targets(const Sharding& sharding, const Shape& shape,
                   std::span<const std::vector<std::int64_t>> groups,
                   std::span<const std::int64_t> targets) {
  const std::int64_t count = static_cast<std::int64_t>(groups.front().size());
  if (targets.size() != groups.front().size()) {
    refuse("permute",
           fmt::format("{} targets for {} devices along the axis", targets.size(), count));
  }
  std::vector<bool> receives(targets.size(), false);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == -1) continue;
    if (targets[i] < -1 || targets[i] >= count) {
      refuse("permute",
             fmt::format("device {} sends to {}, needed -1 to {}", i, targets[i], count - 1));
    }
    if (receives[detail::index(targets[i])]) {
      refuse("permute", fmt::format("device {} along the axis receives twice", targets[i]));
    }
    receives[detail::index(targets[i])] = true;
    for (const std::vector<std::int64_t>& group : groups) {
      const Shape sent = sharding.box_at(group[i], shape).shape();
      const Shape wanted = sharding.box_at(group[detail::index(targets[i])], shape).shape();
      if (sent == wanted) continue;
      refuse("permute",
             fmt::format("position {} would send {} to position {}, which holds {}", group[i],
                         to_string(sent), group[detail::index(targets[i])], to_string(wanted)));
    }
  }
}

}  // namespace

std::vector<std::vector<std::int64_t>> ManualRegion::Impl::groups(
    std::span<const std::size_t> axes) const {
  std::vector<std::vector<std::int64_t>> all;
  std::vector<std::size_t> group_of(detail::index(mesh.size()));
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    std::int64_t first = position;
    for (const std::size_t axis : axes)
      first -= mesh.coordinate(position, axis) * mesh.stride(axis);
    if (first == position) {
      group_of[detail::index(position)] = all.size();
      all.emplace_back();
    }
    all[group_of[detail::index(first)]].push_back(position);
  }
  return all;
}

ManualRegion::Value ManualRegion::Impl::reshard(const State& from, const PartitionSpec& spec,
                                                std::span<const std::size_t> axes,
                                                Reduction reduction, std::string_view operation) {
  const Value value = add(allocate({from.spec.dtype, from.spec.shape, spec},
                                   fmt::format("{} of {}", operation, from.label)));
  State& to = values.back();
  for (const std::vector<std::int64_t>& group : groups(axes)) {
    std::vector<Piece> sources, targets;
    std::vector<ConstBoxView> source_views;
    std::vector<BoxView> target_views;
    std::vector<TaskId> made_by;
    for (const std::int64_t position : group) {
      sources.push_back({mesh.device_at(position), from.box(position)});
      source_views.push_back({from.data(position), from.box(position)});
      targets.push_back({mesh.device_at(position), to.box(position)});
      target_views.push_back({to.data(position), to.box(position)});
      made_by.push_back(from.made_by[detail::index(position)]);
    }
    const std::vector<TaskId> tasks =
        add_transfer({TransferPlan(sources, targets, {.reduction = reduction}), from.spec.dtype,
                      std::move(source_views), std::move(target_views)},
                     made_by);
    for (std::size_t i = 0; i < group.size(); ++i) to.made_by[detail::index(group[i])] = tasks[i];
  }
  return value;
}

ManualRegion::Value ManualRegion::all_reduce(Value value, std::span<const std::string> axis_names,
                                             Reduction reduction) {
  constexpr std::string_view kName = "all_reduce";
  const Impl::State& from = impl_->at(value, kName);
  check_reduction(reduction, kName);
  std::vector<std::size_t> axes;
  for (const std::string& axis : axis_names) {
    axes.push_back(impl_->mesh.axis_index(axis));
    check_unused(from.spec.sharding, axes.back(), kName);
    if (std::count(axes.begin(), axes.end(), axes.back()) > 1) {
      refuse(kName, fmt::format("axis \"{}\" comes twice", axis));
    }
  }
  const Value result =
      impl_->add(impl_->allocate({from.spec.dtype, from.spec.shape, from.spec.sharding.spec()},
                                 fmt::format("{} of {}", kName, from.label)));
  Impl::State& to = impl_->values.back();
  // Each device combines one part of the shards, straight into its result, and the others copy it
  // from there. So every element is combined once, not once per device.
  for (const std::vector<std::int64_t>& group : impl_->groups(axes)) {
    const std::int64_t elements = from.box(group.front()).num_elements();
    const std::vector<Box> part_boxes =
        even_parts(elements, static_cast<std::int64_t>(group.size()));
    const Box whole({0}, {elements});
    std::vector<Piece> wholes, parts;
    std::vector<ConstBoxView> inputs, combined;
    std::vector<BoxView> results;
    std::vector<TaskId> made_by;
    for (std::size_t i = 0; i < group.size(); ++i) {
      wholes.push_back({impl_->mesh.device_at(group[i]), whole});
      parts.push_back({impl_->mesh.device_at(group[i]), part_boxes[i]});
      inputs.push_back({from.data(group[i]), whole});
      combined.push_back({to.data(group[i]), whole});
      results.push_back({to.data(group[i]), whole});
      made_by.push_back(from.made_by[detail::index(group[i])]);
    }
    const DType dtype = from.spec.dtype;
    made_by = impl_->add_transfer(
        {TransferPlan(wholes, parts, {.reduction = reduction}), dtype, inputs, results}, made_by);
    made_by = impl_->add_transfer({TransferPlan(parts, wholes), dtype, combined, results}, made_by);
    for (std::size_t i = 0; i < group.size(); ++i) to.made_by[detail::index(group[i])] = made_by[i];
  }
  return result;
}

ManualRegion::Value ManualRegion::all_gather(Value value, std::string_view axis, std::size_t dim) {
  constexpr std::string_view kName = "all_gather";
  const Impl::State& from = impl_->at(value, kName);
  const Sharding& sharding = from.spec.sharding;
  check_last(sharding, impl_->mesh.axis_index(axis), dim, kName);
  auto spec = entries(sharding.spec());
  spec[dim].pop_back();
  // All the axes of the dim: where blocks are uneven, the joined block may begin with elements of
  // the group before.
  return impl_->reshard(from, PartitionSpec(std::move(spec)), axes_of(sharding, dim),
                        Reduction::none, kName);
}

ManualRegion::Value ManualRegion::reduce_scatter(Value value, std::string_view axis,
                                                 std::size_t dim, Reduction reduction) {
  constexpr std::string_view kName = "reduce_scatter";
  const Impl::State& from = impl_->at(value, kName);
  const Sharding& sharding = from.spec.sharding;
  const std::size_t number = impl_->mesh.axis_index(axis);
  check_reduction(reduction, kName);
  check_dim(sharding, dim, kName);
  check_unused(sharding, number, kName);
  auto spec = entries(sharding.spec());
  spec[dim].push_back(std::string(axis));
  std::vector<std::size_t> axes = axes_of(sharding, dim);  // all: as in all_gather
  axes.push_back(number);
  return impl_->reshard(from, PartitionSpec(std::move(spec)), axes, reduction, kName);
}

ManualRegion::Value ManualRegion::all_to_all(Value value, std::string_view axis,
                                             std::size_t split_dim, std::size_t concat_dim) {
  constexpr std::string_view kName = "all_to_all";
  const Impl::State& from = impl_->at(value, kName);
  const Sharding& sharding = from.spec.sharding;
  check_dim(sharding, split_dim, kName);
  check_last(sharding, impl_->mesh.axis_index(axis), concat_dim, kName);
  if (split_dim == concat_dim) refuse(kName, fmt::format("from dim {} to itself", split_dim));
  auto spec = entries(sharding.spec());
  spec[concat_dim].pop_back();
  spec[split_dim].push_back(std::string(axis));
  std::vector<std::size_t> axes = axes_of(sharding, concat_dim);  // all: as in all_gather
  for (const std::size_t other : axes_of(sharding, split_dim)) axes.push_back(other);
  return impl_->reshard(from, PartitionSpec(std::move(spec)), axes, Reduction::none, kName);
}

ManualRegion::Value ManualRegion::permute(Value value, std::string_view axis,
                                          std::span<const std::int64_t> targets) {
  constexpr std::string_view kName = "permute";
  const Impl::State& from = impl_->at(value, kName);
  const std::size_t axes[] = {impl_->mesh.axis_index(axis)};
  const auto groups = impl_->groups(axes);
  check_targets(from.spec.sharding, from.spec.shape, groups, targets);
  const Value result =
      impl_->add(impl_->allocate({from.spec.dtype, from.spec.shape, from.spec.sharding.spec()},
                                 fmt::format("{} of {}", kName, from.label)));
  Impl::State& to = impl_->values.back();
  std::vector<std::int64_t> sources(targets.size(), -1);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] >= 0) sources[detail::index(targets[i])] = static_cast<std::int64_t>(i);
  }
  for (const std::vector<std::int64_t>& group : groups) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      const std::int64_t receiver = group[i];
      TaskId& made_by = to.made_by[detail::index(receiver)];
      if (sources[i] < 0) {
        std::byte* data = to.data(receiver);
        const std::size_t bytes = to.shards[detail::index(receiver)]->size_bytes();
        made_by = impl_->graph.add([data, bytes] { std::memset(data, 0, bytes); });
        continue;
      }
      const std::int64_t sender = group[detail::index(sources[i])];
      // The shard as such changes place, so it is counted from its own beginning on both sides.
      const Box box = Box::whole(from.box(sender).shape());
      const TaskId sent_by[] = {from.made_by[detail::index(sender)]};
      made_by = impl_
                    ->add_transfer({TransferPlan({{impl_->mesh.device_at(sender), box}},
                                                 {{impl_->mesh.device_at(receiver), box}}),
                                    from.spec.dtype,
                                    {{from.data(sender), box}},
                                    {{to.data(receiver), box}}},
                                   sent_by)
                    .front();
    }
  }
  return result;
}

}  // namespace shardwise
