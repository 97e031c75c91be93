#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// Tensors without values, and steps that are planned and not run.

namespace shardwise {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

/// w - d/dw sum(x w)^2, by the batch.
Tensor loss_of(const Tensor& x, const Tensor& w) {
  const Tensor y = einsum("bi,io->bo", x, w);
  return reduce_sum(y * y, {0, 1});
}

TEST(Abstract, AStepOfTensorsLargerThanMemoryIsPlanned) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=8")});
  Tensor w = tracer.abstract_tensor({DType::f32, {kMillion, kMillion}}, "w", MemoryKind::parameter);
  mark_sharding(w, {{"data"}, {}});
  w = w - w * 0.5;
  const std::shared_ptr<const Executable> step = tracer.plan();
  const std::size_t part = kMillion / 8 * kMillion * sizeof(float);
  EXPECT_EQ(step->memory(0).peak_bytes, part);  // in place
  EXPECT_EQ(step.get(), tracer.last());
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
  EXPECT_FALSE(w.has_value());
  EXPECT_EQ(w.shape(), Shape({kMillion, kMillion}));
}

TEST(Abstract, PlansWhatTheStepThenNeeds) {
  const Mesh mesh = Mesh::parse("data=2,model=2");
  Devices devices(4);
  Tracer tracer(devices, {.mesh = mesh});
  Tensor w = counting(tracer, {6, 10}, "w", MemoryKind::parameter);
  mark_sharding(w, {{"model"}, {}});
  Tensor x = counting(tracer, {9, 6}, "x", MemoryKind::loader);
  mark_sharding(x, {{"data"}, {}});
  const auto record = [&] {
    Tensor loss = loss_of(x, w);
    w = w - grad(loss, {w})[0] * 0.125;
    return loss;
  };
  const std::vector<float> before = [&] {
    tracer.mark_step();  // places marked tensors
    return floats(w);
  }();
  Tensor planned_loss = record();
  const std::shared_ptr<const Executable> planned = tracer.plan();
  EXPECT_EQ(floats(w), before);  // as nothing ran
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { neg(planned_loss); }),
            "use a tensor: f32[] has no value: the step that it was recorded in was planned, not "
            "run");
  for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
  const Tensor loss = record();
  tracer.mark_step();
  EXPECT_EQ(tracer.counters().hits, 1) << tracer.last_miss();  // as planned
  EXPECT_EQ(tracer.counters().traces, 1);
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    EXPECT_EQ(planned->memory(p).peak_bytes, devices.at(p).memory().peak_bytes);
  }
  EXPECT_NE(floats(w), before);
  EXPECT_TRUE(loss.has_value());
}

TEST(Abstract, AStepOfThemIsNotRun) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2")});
  const Tensor x = tracer.abstract_tensor({DType::f32, {4, 6}}, "x", MemoryKind::loader);
  Tensor w = counting(tracer, {6, 2}, "w", MemoryKind::parameter);
  w = w - grad(loss_of(x, w), {w})[0];
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
            "run a step: found the abstract tensor \"x\" : f32[4, 6], needed tensors with values "
            "(plan() takes abstract ones)");
  w = w + 1;  // it has its value
  tracer.mark_step();
  EXPECT_EQ(floats(w)[3], 4);
}

TEST(Abstract, TheSameStepIsPlannedAgain) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=4")});
  Tensor w = tracer.abstract_tensor({DType::f32, {8, 8}}, "w", MemoryKind::parameter);
  mark_sharding(w, {{"data"}, {}});
  const Tensor x = tracer.abstract_tensor({DType::f32, {4, 8}}, "x");
  std::vector<std::size_t> peaks;
  for (int i = 0; i < 2; ++i) {
    w = w - grad(loss_of(x, w), {w})[0];
    peaks.push_back(tracer.plan()->memory(3).peak_bytes);
  }
  EXPECT_EQ(peaks[0], peaks[1]);
  EXPECT_EQ(tracer.counters().hits, 1);
}

TEST(Abstract, RefusesWhatNothingHasBytesFor) {
  Devices devices(1);
  Tracer tracer(devices);
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_THROW(tracer.abstract_tensor({DType::f32, {huge, huge}}, "x"), Error);
  EXPECT_EQ(tracer.plan()->memory(0).peak_bytes, 0u);  // of nothing
}

}  // namespace
}  // namespace shardwise
