#include "shardwise/runtime/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/runtime/detail/manual_impl.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using TaskId = TaskGraph::TaskId;

/// The tasks to wait for, without those that are not there and without repetition.
std::vector<TaskId> distinct(std::vector<TaskId> tasks) {
  std::sort(tasks.begin(), tasks.end());
  tasks.erase(std::unique(tasks.begin(), tasks.end()), tasks.end());
  if (!tasks.empty() && tasks.front() < 0) tasks.erase(tasks.begin());
  return tasks;
}

/// One device's share of a map step.
struct LocalStep {
  std::string name;
  ManualRegion::LocalFunction function;
  const Mesh& mesh;

  void run(std::int64_t position, std::span<const ConstBoxView> inputs,
           std::span<const BoxView> outputs) const {
    const DeviceId device = mesh.device_at(position);
    try {
      function({mesh, position, device, inputs, outputs});
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{} on device {}: {}", name, device, error.what()));
    }
  }
};

}  // namespace

ManualRegion::Impl::Impl(Devices& region_devices, Mesh region_mesh)
    : devices(region_devices), mesh(std::move(region_mesh)) {
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    devices.at(mesh.device_at(position));
  }
}

const ManualRegion::Impl::State& ManualRegion::Impl::at(Value value,
                                                        std::string_view operation) const {
  if (value.id < cleared || value.id >= cleared + static_cast<std::int64_t>(values.size())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: value {} is not in this region, which holds {} from {} on",
                            operation, value.id, values.size(), cleared));
  }
  return values[detail::index(value.id - cleared)];
}

ManualRegion::Impl::State ManualRegion::Impl::allocate(const Output& output,
                                                       std::string_view label) const {
  State state{{output.dtype, output.shape, Sharding(mesh, output.spec)},
              std::string(label),
              std::vector<TaskId>(detail::index(mesh.size()), kReady),
              {},
              {}};
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const std::size_t bytes = num_bytes(state.box(position).shape(), size_bytes(output.dtype));
    state.shards.push_back(
        devices.at(mesh.device_at(position)).allocate(bytes, MemoryKind::array, label));
  }
  return state;
}

ManualRegion::Value ManualRegion::Impl::add(State state) {
  values.push_back(std::move(state));
  return {cleared + static_cast<std::int64_t>(values.size()) - 1};
}

std::vector<TaskId> ManualRegion::Impl::add_transfer(detail::Transfer transfer,
                                                     std::span<const TaskId> made_by) {
  const auto shared = std::make_shared<const detail::Transfer>(std::move(transfer));
  std::vector<TaskId> tasks(shared->targets.size(), kReady);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::int64_t target = static_cast<std::int64_t>(i);
    std::vector<TaskId> after;
    for (const Copy& copy : shared->plan.copies_to(target)) {
      after.push_back(made_by[detail::index(copy.source)]);
    }
    if (after.empty()) continue;
    tasks[i] = graph.add([this, shared, target] { fill_target(*shared, target, devices); },
                         distinct(std::move(after)));
  }
  return tasks;
}

ManualRegion::ManualRegion(Devices& devices, Mesh mesh)
    : impl_(std::make_unique<Impl>(devices, std::move(mesh))) {}

ManualRegion::~ManualRegion() = default;

ManualRegion::Value ManualRegion::input(const ShardedArray& array) {
  if (!(array.sharding().mesh() == impl_->mesh)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ManualRegion::input: the array lies on mesh {}, needed {}",
                            array.sharding().mesh().to_string(), impl_->mesh.to_string()));
  }
  return impl_->add({array.spec(),
                     "input",
                     std::vector<TaskId>(detail::index(impl_->mesh.size()), Impl::kReady),
                     {},
                     array});
}

std::vector<ManualRegion::Value> ManualRegion::map(std::string_view name,
                                                   std::span<const Value> inputs,
                                                   std::span<const Output> outputs,
                                                   LocalFunction function) {
  if (!function) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: no function to call", name));
  }
  std::vector<const Impl::State*> read;
  for (const Value input : inputs) read.push_back(&impl_->at(input, name));
  std::vector<Impl::State> made;
  for (const Output& output : outputs) made.push_back(impl_->allocate(output, name));

  // From here on the region owns the memory that the tasks write to.
  std::vector<Value> values;
  std::vector<Impl::State*> targets;
  for (Impl::State& state : made) {
    values.push_back(impl_->add(std::move(state)));
    targets.push_back(&impl_->values.back());
  }
  const auto step = std::make_shared<const LocalStep>(
      LocalStep{std::string(name), std::move(function), impl_->mesh});
  for (std::int64_t position = 0; position < impl_->mesh.size(); ++position) {
    std::vector<ConstBoxView> from;
    std::vector<TaskId> after;
    for (const Impl::State* state : read) {
      from.push_back({state->data(position), state->box(position)});
      after.push_back(state->made_by[detail::index(position)]);
    }
    std::vector<BoxView> to;
    for (Impl::State* state : targets) to.push_back({state->data(position), state->box(position)});
    const TaskId task = impl_->graph.add([step, position, from = std::move(from),
                                          to = std::move(to)] { step->run(position, from, to); },
                                         distinct(std::move(after)));
    for (Impl::State* state : targets) state->made_by[detail::index(position)] = task;
  }
  return values;
}

void ManualRegion::run() {
  try {
    impl_->devices.executor().run(std::exchange(impl_->graph, {}));
  } catch (...) {
    clear();
    throw;
  }
  for (Impl::State& state : impl_->values) {
    if (state.array) continue;
    state.array = ShardedArray::from_shards(state.spec, std::move(state.shards));
    std::fill(state.made_by.begin(), state.made_by.end(), Impl::kReady);
  }
}

ShardedArray ManualRegion::output(Value value) const {
  const Impl::State& state = impl_->at(value, "ManualRegion::output");
  if (!state.array) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ManualRegion::output: value {} (\"{}\") has not been run", value.id,
                            state.label));
  }
  return *state.array;
}

void ManualRegion::clear() {
  impl_->graph = {};
  impl_->cleared += static_cast<std::int64_t>(impl_->values.size());
  impl_->values.clear();
}

}  // namespace shardwise
