#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model.h"
#include "plan.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

// Bytes on the wire of one training step against the smaller of what XLA's partitioner inserts (JAX
// 0.10.2, 8 CPU devices, measured for this project) and the textbook, and planned memory against
// measured.

namespace shardwise {
namespace {

struct Bound {
  const char *mesh, *plan;
  std::size_t one_layer, four_layers;
};

std::size_t wire_bytes(const Executable& step) {
  std::size_t bytes = 0;
  for (const CollectiveTotal& total : step.collectives()) bytes += total.wire_bytes;
  return bytes;
}

void expect_planned_memory(const Devices& devices, const Executable& step) {
  for (std::int64_t p = 0; p < step.mesh().size(); ++p) {
    EXPECT_EQ(step.memory(p).peak_bytes, devices.at(p).memory().peak_bytes) << "position " << p;
  }
}

Tensor zeros(Tracer& tracer, const TensorType& type, const PartitionSpec& spec, MemoryKind kind) {
  Tensor tensor = full(tracer, type, 0, "tensor", kind);
  mark_sharding(tensor, spec);
  return tensor;
}

std::size_t gpt_wire_bytes(const Bound& bound, std::int64_t layers) {
  const Mesh mesh = Mesh::parse(bound.mesh);
  const gpt::Plan plan(bound.plan, mesh);
  const gpt::Sizes sizes{.layers = layers};
  Devices devices(mesh.size());
  Tracer tracer(devices, {.mesh = mesh});
  std::vector<Tensor> weights, first, second;
  std::map<std::string, Tensor> by_name;
  for (const gpt::Weight& weight : gpt::weights(sizes)) {
    const TensorType type{DType::f32, weight.shape};
    const PartitionSpec spec = plan.weight(weight.name, weight.shape);
    weights.push_back(zeros(tracer, type, spec, MemoryKind::parameter));
    first.push_back(zeros(tracer, type, spec, MemoryKind::optimizer));
    second.push_back(zeros(tracer, type, spec, MemoryKind::optimizer));
    by_name.emplace(weight.name, weights.back());
  }
  AdamWState<Tensor> state{std::move(first), std::move(second),
                           zeros(tracer, {DType::f32, {}}, {}, MemoryKind::optimizer)};
  const TensorType ids{DType::i32, {sizes.batch, sizes.context}};
  const Tensor loss = [&] {
    const Tensor x = zeros(tracer, ids, plan.batch(), MemoryKind::loader);
    const Tensor y = zeros(tracer, ids, plan.batch(), MemoryKind::loader);
    const std::map<std::string, Tensor> mine = std::exchange(by_name, {});
    Tensor mean = gpt::loss(tracer, sizes, {}, mine, state.steps, x, y).mean;
    adamw(weights, state, grad(mean, weights), 1e-3);
    return mean;
  }();
  tracer.mark_step();
  expect_planned_memory(devices, *tracer.last());
  return wire_bytes(*tracer.last());
}

TEST(GoldenTraining, TheGptMovesNoMoreThanXlaOrTheTextbook) {
  const Bound bounds[] = {
      {"data=8", "data", 1963143, 6126855},           {"fsdp=8", "fsdp", 2944711, 9190279},
      {"model=4", "tensor", 6291456, 25165824},       {"model=8", "tensor", 13107200, 52428800},
      {"data=4,model=2", "tensor", 2138758, 7075846}, {"fsdp=4,model=2", "2d", 2683846, 8516616}};
  for (const Bound& bound : bounds) {
    SCOPED_TRACE(std::string(bound.mesh) + " " + bound.plan);
    EXPECT_LE(gpt_wire_bytes(bound, 1), bound.one_layer);
    EXPECT_LE(gpt_wire_bytes(bound, 4), bound.four_layers);
  }
}

/// 784-1024-1024-10, batch 1024, SGD with momentum.
TEST(GoldenTraining, ThePerceptronMovesNoMoreThanXlaOrTheTextbook) {
  const std::pair<const char*, std::size_t> bounds[] = {{"data=8", 13045837},
                                                        {"data=4,model=2", 6673474},
                                                        {"model=8", 7340032},
                                                        {"fsdp=8", 16751693}};
  for (const auto& [text, bound] : bounds) {
    SCOPED_TRACE(text);
    const Mesh mesh = Mesh::parse(text);
    PartitionSpec::Entry batch, columns, gathered;
    for (const Axis& axis : mesh.axes()) {
      if (axis.name == "model") columns = {"model"};
      if (axis.name == "fsdp") gathered = {"fsdp"};
      if (axis.name != "model") batch = {axis.name};
    }
    const bool is_fsdp = !gathered.empty();
    const std::vector<std::pair<Shape, PartitionSpec>> layers = {
        {{784, 1024}, {{}, is_fsdp ? gathered : columns}},
        {{1024}, {is_fsdp ? gathered : columns}},
        {{1024, 1024}, {is_fsdp ? gathered : columns, {}}},
        {{1024}, {gathered}},
        {{1024, 10}, {gathered, {}}},
        {{10}, {{}}}};
    Devices devices(mesh.size());
    Tracer tracer(devices, {.mesh = mesh});
    std::vector<Tensor> weights, velocities;
    for (const auto& [shape, spec] : layers) {
      weights.push_back(zeros(tracer, {DType::f32, shape}, spec, MemoryKind::parameter));
      velocities.push_back(zeros(tracer, {DType::f32, shape}, spec, MemoryKind::optimizer));
    }
    const Tensor loss = [&] {
      const Tensor x = zeros(tracer, {DType::f32, {1024, 784}}, {batch, {}}, MemoryKind::loader);
      const Tensor y = zeros(tracer, {DType::i32, {1024}}, {batch}, MemoryKind::loader);
      const Tensor h = relu(linear(x, weights[0], weights[1]));
      const Tensor logits = linear(relu(linear(h, weights[2], weights[3])), weights[4], weights[5]);
      Tensor mean = cross_entropy(logits, y);
      sgd_with_momentum(weights, velocities, grad(mean, weights), 0.05);
      return mean;
    }();
    tracer.mark_step();
    expect_planned_memory(devices, *tracer.last());
    EXPECT_LE(wire_bytes(*tracer.last()), bound);
  }
}

}  // namespace
}  // namespace shardwise
