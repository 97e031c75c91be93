#include "shardwise/runtime/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "tensors.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Tracer, FindsTheExecutableOfAStepThatItKnows) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  const auto step = [&](std::int64_t rows) {
    Tensor x = counting(tracer, {rows, 3}, "x", MemoryKind::loader);
    mark_sharding(x, {{"data"}, {}});
    const Tensor sum = reduce_sum(x, {0, 1});
    tracer.mark_step();
    return sum.item();
  };
  EXPECT_EQ(step(2), 0 + 1 + 2 + 3 + 4 + 5);
  EXPECT_EQ(tracer.last_miss(), "");
  EXPECT_EQ(step(2), 15);
  EXPECT_EQ(tracer.counters().traces, 2);
  EXPECT_EQ(tracer.counters().hits, 1);
  EXPECT_EQ(step(3), 36);
  EXPECT_THAT(tracer.last_miss(), AllOf(HasSubstr("f32[3, 3]"), HasSubstr("f32[2, 3]")));
  EXPECT_EQ(step(2), 15);
  EXPECT_EQ(tracer.counters().hits, 2);
}

TEST(Tracer, SaysWhatElseHasChanged) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  Tensor x = counting(tracer, {8}), other = counting(tracer, {8});
  mark_sharding(x, {{"data"}});
  mark_sharding(other, {{"data"}});
  std::optional<Tensor> held;
  const auto step = [&](bool hold, const PartitionSpec& spec) {
    const Tensor z = [&] {
      Tensor y = x + other;
      mark_sharding(y, spec);
      if (hold) held = y;
      return y * 2.0;
    }();
    tracer.mark_step();
  };
  step(false, {{"data"}});
  step(false, {{}});
  EXPECT_THAT(tracer.last_miss(), AllOf(HasSubstr("marked data"), HasSubstr("marked -")));
  step(true, {{}});
  EXPECT_THAT(tracer.last_miss(), HasSubstr("still held"));
}

TEST(Tracer, GivesTheMemoryOfReplacedWeightsToTheNewOnes) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::line(2, "data")});
  Tensor w = counting(tracer, {64, 64}, "w", MemoryKind::parameter);
  mark_sharding(w, {{"data"}, {}});
  w = w + 1.0;
  tracer.mark_step();
  const std::byte* const before = w.array().buffer(0)->data();
  w = w + 1.0;
  tracer.mark_step();
  EXPECT_EQ(w.array().buffer(0)->data(), before);
  EXPECT_EQ(devices.at(0).memory().in_use_by_kind[static_cast<std::size_t>(MemoryKind::parameter)],
            64u * 32 * sizeof(float));

  // Who holds the array keeps its values.
  const ShardedArray held = w.array();
  const std::vector<std::byte> values = held.to_host();
  w = w + 1.0;
  tracer.mark_step();
  EXPECT_NE(w.array().buffer(0)->data(), before);
  EXPECT_EQ(held.to_host(), values);
  EXPECT_EQ(floats(w)[0], 3);
}

TEST(Tracer, ComputesOnlyWhatIsHeld) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = counting(tracer, {4});
  const Tensor kept = x + 1.0;
  { const Tensor dropped = einsum("a,b->ab", x, x); }
  tracer.mark_step();
  EXPECT_THAT(floats(kept), ElementsAre(1, 2, 3, 4));
  for (const Program::Step& step : planned_program(*tracer.last()).lowered.program.steps()) {
    EXPECT_THAT(name(step), testing::Not(HasSubstr("dot_general")));
  }
}

TEST(Tracer, TakesTheMeshOfTheFirstMarkOrTheDefaultMesh) {
  Devices devices(4);
  Tracer marked(devices);
  Tensor x = counting(marked, {8});
  mark_sharding(x, Mesh::line(4, "data"), {{"data"}});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { mark_sharding(x, Mesh::line(2, "data"), {{"data"}}); }),
              AllOf(HasSubstr("data=2"), HasSubstr("data=4")));
  const Tensor y = x + 1.0;
  marked.mark_step();
  EXPECT_EQ(y.array().sharding().to_string(), "data on data=4");

  Tracer plain(devices);
  Tensor z = counting(plain, {8});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { mark_sharding(z, {{"x"}}); }),
              HasSubstr("no mesh"));
  EXPECT_FALSE(default_mesh());
  set_default_mesh(Mesh::line(2, "x"));
  EXPECT_EQ(default_mesh(), Mesh::line(2, "x"));
  mark_sharding(z, {{"x"}});
  set_default_mesh(std::nullopt);
  EXPECT_FALSE(default_mesh());
  const Tensor w = z * 2.0;
  plain.mark_step();
  EXPECT_EQ(w.array().sharding().to_string(), "x on x=2");
}

TEST(Tracer, MarksAreMetAndMayBeTakenAway) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("a=2,b=2")});
  Tensor x = counting(tracer, {8, 8});
  mark_sharding(x, {{"a"}, {}});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           mark_sharding(x, {{"b"}, {}});
                         }),
              AllOf(HasSubstr("\"a,-\""), HasSubstr("\"b,-\"")));
  clear_sharding(x);
  mark_sharding(x, {{"b"}, {}});
  Tensor middle = x * 2.0;
  mark_sharding(middle, {{}, {"a", "b"}});
  Tensor gradient = grad(reduce_sum(middle * middle, {0, 1}), {x})[0];
  mark_sharding(gradient, {{"b", "a"}, {}});
  tracer.mark_step();
  EXPECT_EQ(x.array().sharding().spec().to_string(), "b,-");
  EXPECT_EQ(middle.array().sharding().spec().to_string(), "-,a+b");
  EXPECT_EQ(gradient.array().sharding().spec().to_string(), "b+a,-");
  EXPECT_EQ(floats(gradient)[5], 8 * 5);
}

TEST(Tracer, ArraysOfAnotherMeshAreMoved) {
  Devices devices(4);
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  const ShardedArray array =
      ShardedArray::from_host(devices, {DType::f32, {6}, Sharding(Mesh::line(3, "x"), {{"x"}})},
                              std::as_bytes(std::span(values)));
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  Tensor x = tracer.tensor(array, "x");
  mark_sharding(x, {{"data"}});
  const Tensor y = x + 1.0;
  tracer.mark_step();
  EXPECT_THAT(floats(y), ElementsAre(2, 3, 4, 5, 6, 7));
  EXPECT_EQ(y.array().sharding().spec().to_string(), "data");
}

TEST(Tracer, AFailedStepLeavesItUsable) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::line(2, "data")});
  Tensor table = counting(tracer, {4, 2}, "table");
  mark_sharding(table, {{"data"}, {}});
  const Tensor x = counting(tracer, {6});
  Tensor looked = take(table, convert(x, DType::i32), 0);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
              AllOf(HasSubstr("take"), HasSubstr("on device"), HasSubstr("id 4")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { const Tensor y = looked + 1.0; }),
              HasSubstr("failed"));
  const Tensor y = table * 2.0;
  tracer.mark_step();
  EXPECT_EQ(floats(y)[7], 14);
}

TEST(Tracer, KeepsGatheredWeightsWhereAsked) {
  const auto gathers = [](bool keep, DType computes) {
    Devices devices(4);
    Tracer tracer(devices, {.mesh = Mesh::line(4, "fsdp"), .keep_gathered_weights = keep});
    Tensor w = counting(tracer, {16, 16}, "w", MemoryKind::parameter);
    mark_sharding(w, {{"fsdp"}, {}});
    Tensor x = counting(tracer, {64, 16}, "x", MemoryKind::loader);
    mark_sharding(x, {{"fsdp"}, {}});
    const Tensor used = convert(w, computes);
    Tensor loss = convert(x, computes);
    for (int i = 0; i < 2; ++i) loss = einsum("bi,io->bo", loss, used);
    loss = reduce_sum(loss, {0, 1});
    w = w - grad(loss, {w})[0];
    tracer.mark_step();
    for (const CollectiveTotal& total : tracer.last()->collectives()) {
      if (total.kind == CollectiveKind::all_gather) return total.tensors;
    }
    return std::int64_t{0};
  };
  for (const DType computes : {DType::f32, DType::bf16}) {  // weights are f32
    EXPECT_EQ(gathers(false, computes), 2);
    EXPECT_EQ(gathers(true, computes), 1);
  }
}

}  // namespace
}  // namespace shardwise
