#include "shardwise/runtime/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/program/detail/run.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Ends the run of all processes if they recorded different regions.
void agree(const Program& program, const Devices& devices) {
  if (devices.group().size() == 1) return;
  const std::array<ProcessGroup::Fact, 3> facts{{{"the number of steps", program.steps().size()},
                                                 {"the number of values", program.values().size()},
                                                 {"a hash of steps and shardings", hash(program)}}};
  devices.group().agree("run a manual region", facts);
}

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
    refuse(operation, fmt::format("dim {} of a value of rank {}, needed a dim below it", dim,
                                  sharding.rank()));
  }
}

void check_unused(const Sharding& sharding, std::size_t axis, std::string_view operation) {
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
    const std::vector<std::size_t> axes = axes_of(sharding, dim);
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) continue;
    refuse(operation,
           fmt::format(
               "axis \"{}\" already cuts dim {} of the value with spec {}, needed an axis that "
               "cuts none",
               sharding.mesh().axes()[axis].name, dim, sharding.spec().to_string()));
  }
}

void check_last(const Sharding& sharding, std::size_t axis, std::size_t dim,
                std::string_view operation) {
  check_dim(sharding, dim, operation);
  const std::vector<std::size_t> axes = axes_of(sharding, dim);
  if (!axes.empty() && axes.back() == axis) return;
  refuse(operation,
         fmt::format(
             "axis \"{}\" is not the last that cuts dim {} of the value with spec {}, needed the "
             "last",
             sharding.mesh().axes()[axis].name, dim, sharding.spec().to_string()));
}

void check_reduction(Reduction reduction, DType dtype, std::string_view operation) {
  if (reduction == Reduction::none) refuse(operation, "no reduction, needed sum, max or min");
  if (is_computed(dtype)) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("{}: found {}, needed a type that is computed with", operation, name(dtype)));
}

}  // namespace

/// The program recorded so far and the memory of its values. Thread-compatible.
struct ManualRegion::Impl {
  Impl(Devices& region_devices, Mesh region_mesh)
      : devices(region_devices), mesh(std::move(region_mesh)), program(mesh), storage(mesh.size()) {
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      devices.process_of(mesh.device_at(position));  // there is such a device
    }
  }

  /// The program's number of a value of this region. Throws invalid_argument, naming the operation.
  Program::ValueId id(Value value, std::string_view operation) const {
    const auto count = static_cast<std::int64_t>(program.values().size());
    if (value.id < cleared || value.id >= cleared + count) {
      refuse(operation,
             fmt::format("value {} is not in this region, needed one of the {} values from {} on",
                         value.id, count, cleared));
    }
    return value.id - cleared;
  }

  /// A value with its memory.
  struct Made {
    Program::Value value;
    std::vector<std::shared_ptr<Buffer>> shards;
  };

  /// Throws resource_exhausted.
  Made make(const Output& output, std::string_view label) const {
    Made made{
        {ArraySpec{output.dtype, output.shape, Sharding(mesh, output.spec)}, std::string(label)},
        {}};
    detail::together(devices, [&] {
      for (std::int64_t position = 0; position < mesh.size(); ++position) {
        const DeviceId id = mesh.device_at(position);
        if (!devices.is_addressable(id)) {
          made.shards.emplace_back();
          continue;
        }
        const Shape shape = made.value.box(position).shape();
        Device& device = devices.at(id);
        made.shards.push_back(device.allocate(num_bytes(shape, size_bytes(output.dtype)),
                                              made.value.kind, made.value.label));
      }
    });
    return made;
  }

  /// To be filled by the step that is recorded next.
  Program::ValueId add(Made made) {
    const Program::ValueId value = program.add_value(std::move(made.value));
    storage.bind(value, std::move(made.shards));
    return value;
  }

  Value handle(Program::ValueId value) const { return {cleared + value}; }

  /// Records a move into a new value that has the spec `spec`.
  Value move(Program::ValueId from, const PartitionSpec& spec, std::string_view operation,
             MovePlan plan) {
    const Program::Value& old = program.value(from);
    std::string name = fmt::format("{} of {}", operation, old.label);
    const Program::ValueId to = add(make({old.dtype, old.shape, spec}, name));
    program.add_step(Program::Move{std::move(name), {{from, to, std::move(plan)}}});
    return handle(to);
  }

  /// A new value under another spec, combined from the devices that differ only along `axes`.
  Value reshard(Program::ValueId from, const PartitionSpec& spec, std::span<const std::size_t> axes,
                Reduction reduction, std::string_view operation) {
    const ArraySpec old = program.value(from).spec();
    MovePlan plan =
        plan_move(old.sharding, Sharding(mesh, spec), old.shape, old.dtype, axes, reduction);
    return move(from, spec, operation, std::move(plan));
  }

  Devices& devices;
  const Mesh mesh;
  Program program;
  Storage storage;
  std::size_t steps_run = 0;
  std::int64_t cleared = 0;  ///< number of dropped values: the id of the program's first value
};

ManualRegion::ManualRegion(Devices& devices, Mesh mesh)
    : impl_(std::make_unique<Impl>(devices, std::move(mesh))) {}

ManualRegion::~ManualRegion() = default;

ManualRegion::Value ManualRegion::input(const ShardedArray& array) {
  if (!(array.sharding().mesh() == impl_->mesh)) {
    refuse("input", fmt::format("the array is on mesh {}, needed {}",
                                array.sharding().mesh().to_string(), impl_->mesh.to_string()));
  }
  const Program::ValueId value = impl_->program.add_value({array.spec(), "input"});
  impl_->storage.bind(value, array);
  return impl_->handle(value);
}

std::vector<ManualRegion::Value> ManualRegion::map(std::string_view name,
                                                   std::span<const Value> inputs,
                                                   std::span<const Output> outputs,
                                                   LocalFunction function) {
  if (!function) refuse(name, "no function to call");
  Program::Call call{std::string(name), {}, {}, std::move(function)};
  for (const Value input : inputs) call.inputs.push_back(impl_->id(input, name));
  std::vector<Impl::Made> made;
  for (const Output& output : outputs) made.push_back(impl_->make(output, name));
  std::vector<Value> values;
  for (Impl::Made& one : made) {
    call.outputs.push_back(impl_->add(std::move(one)));
    values.push_back(impl_->handle(call.outputs.back()));
  }
  impl_->program.add_step(std::move(call));
  return values;
}

ManualRegion::Value ManualRegion::all_reduce(Value value, std::span<const std::string> axes,
                                             Reduction reduction) {
  constexpr std::string_view kName = "all_reduce";
  const Program::ValueId from = impl_->id(value, kName);
  const Sharding& sharding = impl_->program.value(from).layout.sharding();
  check_reduction(reduction, impl_->program.value(from).dtype, kName);
  std::vector<std::size_t> numbers;
  for (const std::string& axis : axes) {
    numbers.push_back(impl_->mesh.axis_index(axis));
    check_unused(sharding, numbers.back(), kName);
    if (std::count(numbers.begin(), numbers.end(), numbers.back()) > 1) {
      refuse(kName, fmt::format("found axis \"{}\" twice, needed each once", axis));
    }
  }
  return impl_->reshard(from, sharding.spec(), numbers, reduction, kName);
}

ManualRegion::Value ManualRegion::all_gather(Value value, std::string_view axis, std::size_t dim) {
  constexpr std::string_view kName = "all_gather";
  const Program::ValueId from = impl_->id(value, kName);
  const Sharding& sharding = impl_->program.value(from).layout.sharding();
  check_last(sharding, impl_->mesh.axis_index(axis), dim, kName);
  auto spec = sharding.spec().entries();
  spec[dim].pop_back();
  // Uses all axes of the dim: if blocks are uneven, the joined block may begin with elements of the
  // group before.
  return impl_->reshard(from, PartitionSpec(std::move(spec)), axes_of(sharding, dim),
                        Reduction::none, kName);
}

ManualRegion::Value ManualRegion::reduce_scatter(Value value, std::string_view axis,
                                                 std::size_t dim, Reduction reduction) {
  constexpr std::string_view kName = "reduce_scatter";
  const Program::ValueId from = impl_->id(value, kName);
  const Sharding& sharding = impl_->program.value(from).layout.sharding();
  const std::size_t number = impl_->mesh.axis_index(axis);
  check_reduction(reduction, impl_->program.value(from).dtype, kName);
  check_dim(sharding, dim, kName);
  check_unused(sharding, number, kName);
  auto spec = sharding.spec().entries();
  spec[dim].push_back(std::string(axis));
  std::vector<std::size_t> axes = axes_of(sharding, dim);  // all: as in all_gather
  axes.push_back(number);
  return impl_->reshard(from, PartitionSpec(std::move(spec)), axes, reduction, kName);
}

ManualRegion::Value ManualRegion::all_to_all(Value value, std::string_view axis,
                                             std::size_t split_dim, std::size_t concat_dim) {
  constexpr std::string_view kName = "all_to_all";
  const Program::ValueId from = impl_->id(value, kName);
  const Sharding& sharding = impl_->program.value(from).layout.sharding();
  check_dim(sharding, split_dim, kName);
  check_last(sharding, impl_->mesh.axis_index(axis), concat_dim, kName);
  if (split_dim == concat_dim)
    refuse(kName, fmt::format("found dim {} twice, needed two dims", split_dim));
  auto spec = sharding.spec().entries();
  spec[concat_dim].pop_back();
  spec[split_dim].push_back(std::string(axis));
  std::vector<std::size_t> axes = axes_of(sharding, concat_dim);  // all: as in all_gather
  for (const std::size_t other : axes_of(sharding, split_dim)) axes.push_back(other);
  return impl_->reshard(from, PartitionSpec(std::move(spec)), axes, Reduction::none, kName);
}

ManualRegion::Value ManualRegion::permute(Value value, std::string_view axis,
                                          std::span<const std::int64_t> targets) {
  constexpr std::string_view kName = "permute";
  const Program::ValueId from = impl_->id(value, kName);
  const ArraySpec spec = impl_->program.value(from).spec();
  MovePlan plan =
      plan_permute(spec.sharding, spec.shape, spec.dtype, impl_->mesh.axis_index(axis), targets);
  std::vector<bool> receives(static_cast<std::size_t>(impl_->mesh.size()), false);
  for (const MoveGroup& group : plan.phases.front().groups) {
    receives[static_cast<std::size_t>(group.targets.front())] = true;
  }
  const Value result = impl_->move(from, spec.sharding.spec(), kName, std::move(plan));
  Program::Fill zeros{std::string(kName), impl_->id(result, kName), {}};
  for (std::int64_t position = 0; position < impl_->mesh.size(); ++position) {
    if (!receives[static_cast<std::size_t>(position)]) zeros.positions.push_back(position);
  }
  if (!zeros.positions.empty()) impl_->program.add_step(std::move(zeros));
  return result;
}

void ManualRegion::run() {
  const Schedule schedule(impl_->program, impl_->steps_run);
  try {
    detail::together(impl_->devices, [&] { agree(impl_->program, impl_->devices); });
    shardwise::run(impl_->program, schedule, impl_->storage, impl_->devices,
                   impl_->devices.group().size() > 1 ? hash(impl_->program) : 0);
  } catch (...) {
    clear();
    throw;
  }
  impl_->steps_run = impl_->program.steps().size();
  impl_->storage.finish(impl_->program, impl_->devices);
}

ShardedArray ManualRegion::output(Value value) const {
  const Program::ValueId id = impl_->id(value, "output");
  const std::optional<ShardedArray>& array = impl_->storage.array(id);
  if (!array) {
    refuse("output", fmt::format("value {} (\"{}\") has not been run", value.id,
                                 impl_->program.value(id).label));
  }
  return *array;
}

void ManualRegion::clear() {
  impl_->cleared += static_cast<std::int64_t>(impl_->program.values().size());
  impl_->program = Program(impl_->mesh);
  impl_->storage = Storage(impl_->mesh.size());
  impl_->steps_run = 0;
}

}  // namespace shardwise
