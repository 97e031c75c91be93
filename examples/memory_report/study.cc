#include "study.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "plan.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/tracer.h"

namespace memory_report {

namespace sw = shardwise;

namespace {

using MakeTensor = std::function<sw::Tensor(const sw::TensorType& type, const std::string& name,
                                            sw::MemoryKind kind)>;

/// Records a step. `held` keeps the tensors that it replaces, like a training loop.
sw::Tensor record_step(sw::Tracer& tracer, const gpt::Sizes& sizes, const Layout& layout,
                       gpt::Recompute recompute, const MakeTensor& make,
                       std::vector<sw::Tensor>& held) {
  const gpt::Plan plan(layout.plan, sw::Mesh::parse(layout.mesh));
  const gpt::Recipe recipe{.recompute = recompute,
                           .scan = layout.stages > 0,
                           .stages = layout.stages,
                           .micro_batches = layout.micro_batches};
  const auto marked = [&](const std::string& name, const sw::Shape& shape, sw::MemoryKind kind) {
    sw::Tensor tensor = make({sw::DType::f32, shape}, name, kind);
    sw::mark_sharding(tensor, plan.weight(name, shape));
    return tensor;
  };
  std::vector<sw::Tensor> weights, first, second;
  std::map<std::string, sw::Tensor> by_name;
  for (const gpt::Weight& weight : gpt::weights(sizes, recipe)) {
    weights.push_back(marked(weight.name, weight.shape, sw::MemoryKind::parameter));
    first.push_back(marked(weight.name, weight.shape, sw::MemoryKind::optimizer));
    second.push_back(marked(weight.name, weight.shape, sw::MemoryKind::optimizer));
    by_name.emplace(weight.name, weights.back());
  }
  sw::AdamWState<sw::Tensor> state{std::move(first), std::move(second),
                                   marked("steps", {}, sw::MemoryKind::optimizer)};
  const sw::TensorType ids{sw::DType::i32, {sizes.batch, sizes.context}};
  sw::Tensor tokens = make(ids, "tokens", sw::MemoryKind::loader);
  sw::Tensor targets = make(ids, "targets", sw::MemoryKind::loader);
  for (sw::Tensor* const input : {&tokens, &targets}) sw::mark_sharding(*input, plan.batch());
  sw::Tensor loss = gpt::loss(tracer, sizes, recipe, by_name, state.steps, tokens, targets).mean;
  by_name.clear();
  sw::adamw(weights, state, sw::grad(loss, weights), 1e-4);
  held = std::move(weights);
  for (std::vector<sw::Tensor>* const moments : {&state.first, &state.second}) {
    held.insert(held.end(), moments->begin(), moments->end());
  }
  held.push_back(state.steps);
  return loss;
}

double mfu(const gpt::Sizes& sizes, double seconds, std::int64_t devices,
           const sw::Machine& machine) {
  const auto tokens = static_cast<double>(sizes.batch * sizes.context);
  return 6 * parameters(sizes) * tokens / seconds /
         (static_cast<double>(devices) * machine.flops_per_second);
}

}  // namespace

std::vector<Model> models() {
  const auto sizes = [](std::int64_t layers, std::int64_t width, std::int64_t heads) {
    return gpt::Sizes{.layers = layers,
                      .width = width,
                      .heads = heads,
                      .context = 1024,
                      .batch = 16,
                      .vocabulary = 50'304};
  };
  return {{"124M", sizes(12, 768, 12)},
          {"355M", sizes(24, 1024, 16)},
          {"1.3B", sizes(24, 2048, 16)},
          {"4B", sizes(32, 3072, 32)}};
}

double parameters(const gpt::Sizes& sizes) {
  double count = 0;
  for (const gpt::Weight& weight : gpt::weights(sizes)) {
    count += static_cast<double>(sw::num_elements(weight.shape));
  }
  return count;
}

std::vector<Layout> layouts(std::int64_t devices) {
  std::int64_t model = 1;  // a square, or twice as long
  while (4 * model * model <= devices && devices % (2 * model) == 0) model *= 2;
  const std::string both = fmt::format("data={},model={}", devices / model, model);
  return {{"replicated", fmt::format("data={}", devices), "data"},
          {"FSDP", fmt::format("fsdp={}", devices), "fsdp"},
          {"tensor", both, "tensor"},
          {"2-d", both, "2d"}};
}

std::vector<Layout> parallel_layouts(std::int64_t devices) {
  const std::vector<Layout> all = layouts(devices);
  return {{"1-d", all[1].mesh, all[1].plan},
          all[3],
          {"pipeline", fmt::format("data={},stage=4", devices / 4), "pipeline", 4, 8}};
}

std::vector<Layout> layouts_on(const sw::Mesh& mesh) {
  std::vector<Layout> fit;
  for (Layout& layout : layouts(mesh.size())) {
    layout.mesh = mesh.to_string();
    try {
      gpt::Plan(layout.plan, mesh);
    } catch (const sw::Error&) {
      continue;  // the plan's error names the missing axis
    }
    fit.push_back(std::move(layout));
  }
  return fit;
}

Planned plan(const gpt::Sizes& sizes, const Layout& layout, gpt::Recompute recompute,
             const sw::Machine& machine) {
  const sw::Mesh mesh = sw::Mesh::parse(layout.mesh);
  sw::Devices devices(mesh.size());
  sw::Tracer tracer(devices, {.mesh = mesh});
  std::vector<sw::Tensor> held;
  const sw::Tensor loss = record_step(
      tracer, sizes, layout, recompute,
      [&](const sw::TensorType& type, const std::string& name, sw::MemoryKind kind) {
        return tracer.abstract_tensor(type, name, kind);
      },
      held);
  const std::shared_ptr<const sw::Executable> step = tracer.plan();
  Planned planned;
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    planned.peak_bytes = std::max(planned.peak_bytes, step->memory(p).peak_bytes);
  }
  for (const sw::CollectiveTotal& total : step->collectives()) {
    planned.wire_bytes += static_cast<double>(total.wire_bytes);
  }
  planned.seconds = tracer.last_seconds().trace + tracer.last_seconds().compile;
  const sw::StepReport modelled = sw::report(*step, machine);
  planned.modelled_seconds = modelled.compute_seconds + modelled.collective_seconds;
  planned.compute_seconds = modelled.compute_seconds;
  planned.modelled_mfu = mfu(sizes, planned.modelled_seconds, mesh.size(), machine);
  if (layout.stages > 0) {
    const auto waits = static_cast<double>(layout.stages - 1);
    planned.bubble = waits / (waits + static_cast<double>(layout.micro_batches));
  }
  return planned;
}

Planned counted_as_fsdp(Planned one_dim, const gpt::Sizes& sizes, std::int64_t devices,
                        const sw::Machine& machine) {
  const auto others = static_cast<double>(devices - 1);
  const double weights = parameters(sizes) * sizeof(float);
  const double collectives = 3 * static_cast<double>(sizes.layers + 1);
  one_dim.wire_bytes = 3 * weights * others / static_cast<double>(devices);
  one_dim.modelled_seconds = one_dim.compute_seconds +
                             one_dim.wire_bytes / machine.link_bytes_per_second +
                             collectives * others * machine.link_seconds;
  one_dim.modelled_mfu = mfu(sizes, one_dim.modelled_seconds, devices, machine);
  return one_dim;
}

std::size_t measured_peak(const gpt::Sizes& sizes, const Layout& layout, gpt::Recompute recompute) {
  const sw::Mesh mesh = sw::Mesh::parse(layout.mesh);
  sw::Devices devices(mesh.size());
  sw::Tracer tracer(devices, {.mesh = mesh});
  std::vector<sw::Tensor> held;
  const sw::Tensor loss = record_step(
      tracer, sizes, layout, recompute,
      [&](const sw::TensorType& type, const std::string& name, sw::MemoryKind kind) {
        return sw::full(tracer, type, 0, name, kind);
      },
      held);
  tracer.mark_step();
  std::size_t peak = 0;
  for (const sw::DeviceId id : devices.addressable()) {
    peak = std::max(peak, devices.at(id).memory().peak_bytes);
  }
  return peak;
}

}  // namespace memory_report
