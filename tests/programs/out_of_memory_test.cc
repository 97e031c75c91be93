#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/detail/suggest.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// Errors of programs that a device has no room for.

namespace shardwise {
namespace {

using testing::HasSubstr;

/// A step of training w on devices of 64 KiB.
void train(Devices& devices, const std::optional<PartitionSpec>& mark) {
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2")});
  Tensor w = counting(tracer, {64, 128}, "w", MemoryKind::parameter);
  if (mark) mark_sharding(w, *mark);
  Tensor x = counting(tracer, {8, 64}, "x", MemoryKind::loader);
  mark_sharding(x, {{"data"}, {}});
  {
    const auto scope = tracer.scope("layer0");
    const Tensor y = einsum("bi,io->bo", x, w);
    w = w - grad(reduce_sum(y * y, {0, 1}), {w})[0] * 0.5;
  }
  tracer.mark_step();
}

TEST(OutOfMemory, IsFoundBeforeAnythingRunsAndSaysWhatWouldFit) {
  Devices devices(4, {.capacity_bytes = 64 << 10});
  EXPECT_EQ(message_of(ErrorCode::resource_exhausted, [&] { train(devices, std::nullopt); }),
            "run a program: device 0: found 65536 bytes free, needed 72704 bytes\n"
            "  in use are 0 bytes of 65536 bytes\n"
            "  fullest at \"dot_general %10 in \"layer0\"\"\n"
            "  loader: 1024 bytes in 1 tensor, the largest \"x\" (f32[8, 64] cut as data,-, 1024 "
            "bytes)\n"
            "  parameter: 32768 bytes in 1 tensor, the largest \"w\" (f32[64, 128] cut as -,-, "
            "32768 bytes)\n"
            "  activation: 32768 bytes in 1 tensor, the largest \"dot_general %10 in \"layer0\"\" "
            "(f32[64, 128] cut as -,-, 32768 bytes)\n"
            "  collective: 6144 bytes in 2 tensors, the largest \"all-gather of add %9 in "
            "\"layer0\"\" (f32[8, 128] cut as -,-, 4096 bytes)\n"
            "  it fits with \"w\" cut as -,data: peak 37888 bytes");
  for (DeviceId id = 0; id < 4; ++id) EXPECT_EQ(devices.at(id).memory().in_use_bytes, 0u);
  train(devices, PartitionSpec{{}, {"data"}});
}

/// x w1 and y w2 of weights [64, 64], nothing cut.
Graph two_weights() {
  GraphBuilder graph;
  const auto input = [&](const char* label, const Shape& shape, MemoryKind kind) {
    return NodeRef{&graph, append_input(graph, {DType::f32, shape}, label, kind)};
  };
  const NodeRef x = input("x", {4, 64}, MemoryKind::loader);
  const NodeRef y = input("y", {4, 64}, MemoryKind::loader);
  const NodeRef w1 = input("w1", {64, 64}, MemoryKind::parameter);
  const NodeRef w2 = input("w2", {64, 64}, MemoryKind::parameter);
  graph.outputs = {einsum("bi,io->bo", x, w1).id, einsum("bi,io->bo", y, w2).id};
  return graph;
}

constexpr std::size_t kWeight = 64 * 64 * 4;

TEST(OutOfMemory, AdviceIsOneMarkIfOneDoesAndElseSeveral) {
  const Graph graph = two_weights();
  const Mesh mesh = Mesh::parse("data=4");
  EXPECT_EQ(suggest(graph, mesh, {}, 2 * kWeight),
            "it fits with \"w1\" cut as data,-: peak 23808 bytes");
  EXPECT_EQ(suggest(graph, mesh, {}, kWeight),
            "it fits with \"w1\" cut as data,- and \"w2\" cut as data,-: peak 10752 bytes");
  EXPECT_EQ(suggest(graph, mesh, {}, 100),
            "the least found is with \"w1\" cut as data,- and \"w2\" cut as data,-: peak 10752 "
            "bytes");
}

TEST(OutOfMemory, IsFoundForInputsThatAreNotOnTheDevicesYet) {
  const auto graph = std::make_shared<const Graph>(two_weights());
  const Executable executable(graph, Mesh::parse("data=4"), {});
  Devices devices(4, {.capacity_bytes = kWeight});
  const std::string message = message_of(ErrorCode::resource_exhausted, [&] {
    executable.check_memory(devices, {false, false, false, false});
  });
  EXPECT_THAT(message,
              HasSubstr("found 16384 bytes free, needed 36864 bytes\n  in use are 0 bytes"));
  EXPECT_THAT(message, HasSubstr("it fits with \"w1\" cut as data,- and \"w2\" cut as data,-"));
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
  Devices larger(4, {.capacity_bytes = executable.memory(0).peak_bytes});
  executable.check_memory(larger, {false, false, false, false});
  // Inputs already on the device need no more room.
  Devices smaller(4, {.capacity_bytes = executable.memory(0).peak_bytes - 2 * kWeight});
  executable.check_memory(smaller, {false, false, true, true});
}

/// Cut over one more axis, x would be cut over 8 along the one dim of its reshape: no cut can say
/// that.
TEST(OutOfMemory, WhatCannotBePlannedIsNoAdvice) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {16, 8, 2}}, "x")};
  graph.node(x.id).mark = PartitionSpec{{"a", "b", "c", "d"}, {"e", "f", "g"}, {}};
  graph.outputs = {reshape(x, {256}).id};
  const Mesh mesh = Mesh::parse("a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2");
  EXPECT_EQ(suggest(graph, mesh, {}, 1), "no marks were found with which it fits");
}

}  // namespace
}  // namespace shardwise
