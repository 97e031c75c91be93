#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/executable.h"
#include "tensors.h"

// A batch that does not divide over the devices, flattened with its sequence and split again, as
// every transformer does for its linear layers: 10 rows of 4 over 8 devices are 2 rows for each of
// the first five. Nothing is moved, and no device computes more than its rows.

namespace shardwise {
namespace {

constexpr std::int64_t kRows = 10, kSequence = 4, kWidth = 6, kInner = 5;
constexpr std::int64_t kMostRows = 2;  ///< of one device

std::string moves_of(const Executable& executable) {
  std::string text;
  for (const PartitionedGraph::Step& step : planned_program(executable).partitioned.steps) {
    const auto* const move = std::get_if<PartitionedGraph::Move>(&step);
    if (move != nullptr && move->wire_bytes > 0) {
      const NodeId node = planned_program(executable).partitioned.values[as_size(move->from)].node;
      text += std::string(name(move->kind)) + " of " + to_string(executable.graph(), node) + '\n';
    }
  }
  return text;
}

TEST(UnevenBatch, FlattenedForALayerIsNotMovedAndEachDeviceComputesItsRows) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=8")});
  Tensor x = counting(tracer, {kRows, kSequence, kWidth}, "x", MemoryKind::loader);
  mark_sharding(x, {{"data"}, {}, {}});
  const Tensor w = counting(tracer, {kWidth, kInner}, "w", MemoryKind::parameter);
  const Tensor y = [&] {
    const Tensor flat = reshape(x, {kRows * kSequence, kWidth});
    return reshape(tanh(einsum("ni,io->no", flat, w) / 1000.0), {kRows, kSequence, kInner});
  }();
  tracer.mark_step();
  const Executable& step = *tracer.last();
  EXPECT_EQ(moves_of(step), "");
  EXPECT_EQ(report(step, machines()[0]).device_flops, 2 * kMostRows * kSequence * kWidth * kInner);
  const std::string text = dump_steps(step);
  EXPECT_NE(text.find("[data in 8s,-] = dot_general"), std::string::npos) << text;
  EXPECT_EQ(y.array().sharding().to_string(), "data,-,- on data=8");
  for (std::int64_t p = 0; p < 8; ++p) {
    EXPECT_EQ(step.memory(p).peak_bytes, devices.at(p).memory().peak_bytes) << "position " << p;
  }
}

/// Only the gradients of weights and the loss are combined.
TEST(UnevenBatch, AStepOfTrainingMovesNoActivations) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=8")});
  Tensor x = counting(tracer, {kRows, kSequence, kWidth}, "x", MemoryKind::loader);
  mark_sharding(x, {{"data"}, {}, {}});
  const Tensor w = counting(tracer, {kWidth, kInner}, "w", MemoryKind::parameter);
  const Tensor v = counting(tracer, {kInner, kWidth}, "v", MemoryKind::parameter);
  std::vector<Tensor> gradients;
  {
    const Tensor flat = reshape(x / 100.0, {kRows * kSequence, kWidth});
    const Tensor inner = reshape(tanh(einsum("ni,io->no", flat, w)), {kRows, kSequence, kInner});
    const Tensor attended = einsum("bso,bto->bst", inner, inner);
    const Tensor mixed = einsum("bst,bto->bso", attended, inner);
    const Tensor again = reshape(mixed, {kRows * kSequence, kInner});
    const Tensor out = einsum("no,oi->ni", again, v);
    gradients = grad(reduce_sum(out * out, {0, 1}), {w, v});
  }
  tracer.mark_step();
  const Executable& step = *tracer.last();
  for (const CollectiveTotal& total : step.collectives()) {
    EXPECT_EQ(name(total.kind), "all-reduce") << moves_of(step);
    EXPECT_EQ(total.bytes, 2 * kWidth * kInner * sizeof(float)) << moves_of(step);
  }
  EXPECT_EQ(report(step, machines()[0]).device_flops, flops(step) * kMostRows / kRows);
}

/// Two axes, one of them on the heads; to a dim that holds no more whole rows.
TEST(UnevenBatch, OtherAxesStayWhereTheyAre) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=4,model=2")});
  Tensor x = counting(tracer, {kRows, kSequence, kWidth}, "x", MemoryKind::loader);
  mark_sharding(x, {{"data"}, {}, {"model"}});
  const Tensor y = reshape(reshape(x, {kRows * kSequence, 2, 3}) + 1.0, {kRows / 2, 8, kWidth});
  tracer.mark_step();
  const Executable& step = *tracer.last();
  const std::string text = dump_steps(step);
  EXPECT_NE(text.find("[data in 12s,model,-]"), std::string::npos) << text;
  const std::vector<float> values = floats(y);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<float>(i % 97 + 1)) << i;
  }
}

/// Inputs and outputs of a program have the tiles that their specs say.
TEST(UnevenBatch, InputsAndOutputsAreCutAsSpecsSay) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=8")});
  const Tensor labels = counting(tracer, {kRows * kSequence}, "labels", MemoryKind::loader);
  Tensor x = counting(tracer, {kRows, kSequence}, "x", MemoryKind::loader);
  mark_sharding(x, {{"data"}, {}});
  const Tensor flat = reshape(x, {kRows * kSequence});
  const Tensor sum = flat + labels;
  tracer.mark_step();
  EXPECT_EQ(sum.array().sharding().to_string(), "data on data=8");
  EXPECT_EQ(labels.array().sharding().to_string(), "- on data=8");
  const std::vector<float> values = floats(sum);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 2 * i) << i;
  const Tensor again = sum + flat;
  tracer.mark_step();
  EXPECT_EQ(tracer.last()->collectives().size(), 0u) << moves_of(*tracer.last());
  EXPECT_EQ(floats(again)[39], 3 * 39);
}

}  // namespace
}  // namespace shardwise
