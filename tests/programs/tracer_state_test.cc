#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// Values of tensors after a step: marked ones, and those of a step that failed.
namespace shardwise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(TracerState, ATensorThatIsOnlyMarkedGetsItsValueAsMarked) {
  Devices devices(8);
  const Mesh mesh = Mesh::parse("data=4,model=2");
  Tracer tracer(devices, {.mesh = mesh});
  Tensor t = counting(tracer, {8, 4}, "t");
  mark_sharding(t, mesh, {{"data"}, {"model"}});
  tracer.mark_step();
  EXPECT_EQ(t.array().sharding().to_string(), "data,model on data=4,model=2");
  EXPECT_EQ(t.array().shard(3).box, Box({2, 2}, {4, 4}));
  EXPECT_EQ(floats(t)[9], 9);
  // Once is enough.
  const std::byte* const before = t.array().shard(0).data;
  tracer.mark_step();
  EXPECT_EQ(t.array().shard(0).data, before);
}

TEST(TracerState, ATensorThatIsOnlyMarkedGetsItsValueBesideOtherOperations) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  Tensor t = counting(tracer, {8, 4}, "t"), unmarked = counting(tracer, {8, 4}, "unmarked");
  mark_sharding(t, {{"data"}, {}});
  const Tensor other = counting(tracer, {8}, "other");
  const Tensor twice = other * 2.0;
  tracer.mark_step();
  EXPECT_EQ(t.array().sharding().spec().to_string(), "data,-");
  EXPECT_EQ(floats(twice)[3], 6);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { unmarked.array(); }),
              HasSubstr("is on the host"));
}

TEST(TracerState, AnArrayThatIsMarkedOtherwiseIsMoved) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
  Tensor t = counting(tracer, {8, 4}, "t"), cleared = counting(tracer, {8}, "cleared");
  mark_sharding(t, {{"data"}, {}});
  mark_sharding(cleared, {{"data"}});
  clear_sharding(cleared);
  tracer.mark_step();
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { cleared.array(); }),
              HasSubstr("is on the host"));
  clear_sharding(t);
  mark_sharding(t, {{}, {"data"}});
  tracer.mark_step();
  EXPECT_EQ(t.array().sharding().spec().to_string(), "-,data");
  EXPECT_EQ(floats(t)[31], 31);
}

/// One weight that each step replaces, on one device of 1 MiB.
struct Job {
  Job() { step(1); }

  void step(std::int64_t rows) {
    const Tensor big = broadcast(w, {rows, 1000}, {1});
    const Tensor loss = reduce_sum(transpose(tanh(big), {1, 0}), {0, 1});
    w = w - w * loss * 0.0 - 1.0;
    tracer.mark_step();
  }

  Devices devices{1, {.capacity_bytes = 1 << 20, .threads = 1}};
  Tracer tracer{devices, {.mesh = Mesh::line(1)}};
  Tensor w = counting(tracer, {1000}, "w", MemoryKind::parameter);
};

TEST(TracerState, WeightsAreThereAfterAStepThatWasRefusedForMemory) {
  Job job;
  ASSERT_EQ(floats(job.w)[50], 49);
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted, [&] { job.step(100'000); }),
              HasSubstr("run a program: device 0: found"));
  ASSERT_TRUE(job.w.has_value());
  EXPECT_EQ(floats(job.w)[50], 49);
  job.step(2);
  EXPECT_EQ(floats(job.w)[50], 48);
  // Also the first step, whose weights are on the host.
  Devices devices(1, {.capacity_bytes = 1 << 20, .threads = 1});
  Tracer tracer(devices);
  Tensor w = counting(tracer, {1000}, "w", MemoryKind::parameter);
  w = w - reduce_sum(transpose(tanh(broadcast(w, {100'000, 1000}, {1})), {1, 0}), {0, 1});
  EXPECT_THROW(tracer.mark_step(), Error);
  EXPECT_TRUE(w.has_value());
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
  w = w + 1.0;
  tracer.mark_step();
  EXPECT_EQ(floats(w)[50], 51);
}

TEST(TracerState, WeightsAreThereAfterAStepThatFailedBeforeItReplacedThem) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::line(2, "data")});
  Tensor table = counting(tracer, {4, 2}, "table", MemoryKind::parameter);
  Tensor moment = counting(tracer, {4, 2}, "moment", MemoryKind::optimizer);
  mark_sharding(table, {{"data"}, {}});
  mark_sharding(moment, {{"data"}, {}});
  const auto step = [&](std::int64_t ids) {
    const Tensor x = counting(tracer, {ids}, "ids", MemoryKind::loader);
    const Tensor looked = take(table, convert(x, DType::i32), 0);
    const Tensor gradient = grad(reduce_sum(looked, {0, 1}), {table})[0];
    moment = 0.5 * moment + gradient;
    table = table - moment;
    tracer.mark_step();
  };
  step(2);
  const std::vector<float> table_before = floats(table), moment_before = floats(moment);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { step(6); }), HasSubstr("id 4"));
  ASSERT_TRUE(table.has_value() && moment.has_value());
  EXPECT_EQ(floats(table), table_before);
  EXPECT_EQ(floats(moment), moment_before);
  step(2);
  EXPECT_NE(floats(table), table_before);
}

TEST(TracerState, WeightsAreThereAfterNaNAndAfterAProgramThatCannotBePlanned) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::line(2, "data"), .nan_check = NanCheck::on});
  Tensor w = counting(tracer, {4}, "w", MemoryKind::parameter);
  w = w + 1.0;
  tracer.mark_step();
  w = w - reduce_sum(log(w - 10.0), {0});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
              HasSubstr("NaN"));
  EXPECT_THAT(floats(w), ElementsAre(1, 2, 3, 4));

  // More devices than there are.
  Tracer large(devices, {.mesh = Mesh::line(3, "data")});
  Tensor v = counting(large, {4}, "v", MemoryKind::parameter);
  v = v + 1.0;
  EXPECT_THROW(large.mark_step(), Error);
  EXPECT_TRUE(v.has_value());
}

TEST(TracerState, NaNIsNamedByItsPlaceInTheWholeTensor) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2"), .nan_check = NanCheck::on});
  Tensor x = counting(tracer, {6, 4}, "x");
  mark_sharding(x, {{"data"}, {"model"}});
  // Not a number for 19 only, which is at [4, 3]: one device finds it.
  const Tensor y = log((x - 19.0) * (x - 19.0) - 0.5);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
              HasSubstr("on device 3: found NaN at [4, 3]"));
}

TEST(TracerState, AWeightThatAFailingStepHadBegunToReplaceSaysSo) {
  Devices devices(1, {.threads = 1});
  Tracer tracer(devices);
  Tensor w = counting(tracer, {4}, "w", MemoryKind::parameter);
  w = w + 1.0;
  tracer.mark_step();
  const Tensor table = counting(tracer, {2}, "table");
  w = w + 1.0;
  const Tensor looked = take(table, convert(w, DType::i32), 0);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
              HasSubstr("needed"));
  EXPECT_FALSE(w.has_value());
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { const Tensor x = w + 1.0; }),
              AllOf(HasSubstr("\"w\""), HasSubstr("begun to write over it")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { looked.array(); }),
              HasSubstr("the step that it was recorded in failed"));
}

TEST(TracerState, ATensorOfATracerThatHasGoneIsNamedAsSuch) {
  Devices devices(1);
  std::optional<Tracer> tracer(std::in_place, devices);
  const Tensor x = counting(*tracer, {4}), y = x + x;
  tracer.reset();
  for (const Tensor& tensor : {x, y}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { const Tensor z = tensor + x; }),
                AllOf(HasSubstr("f32[4]"), HasSubstr("tracer that has gone")));
  }
}

TEST(TracerState, AJobWhoseWeightsBeginOnTheHostIsPlannedOnce) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2")});
  Tensor embed = counting(tracer, {12, 8}, "embed", MemoryKind::parameter);
  Tensor w = counting(tracer, {8, 8}, "w", MemoryKind::parameter);
  Tensor velocity = counting(tracer, {8, 8}, "velocity", MemoryKind::optimizer);
  mark_sharding(w, {{}, {"model"}});
  for (int i = 0; i < 4; ++i) {
    Tensor x = counting(tracer, {6, 12}, "x", MemoryKind::loader);
    mark_sharding(x, {{"data"}, {}});
    const Tensor h = einsum("be,ei->bi", x, embed);
    const Tensor y = einsum("bi,io->bo", h, w);
    const Tensor loss = reduce_sum(y * y, {0, 1});
    const std::vector<Tensor> gradients = grad(loss, {embed, w});
    velocity = velocity * 0.5 + gradients[1] * 1e-9;
    embed = embed - gradients[0] * 1e-9;
    w = w - velocity;
    tracer.mark_step();
    EXPECT_EQ(tracer.last_miss(), "");
  }
  EXPECT_EQ(tracer.counters().traces, 4);
  EXPECT_EQ(tracer.counters().hits, 3);
  // An array that is cut otherwise than the plan chose is another matter.
  clear_sharding(w);
  mark_sharding(w, {{"model"}, {}});
  tracer.mark_step();
  const Tensor y = einsum("bi,io->bo", counting(tracer, {6, 8}, "x"), w);
  tracer.mark_step();
  EXPECT_THAT(tracer.last_miss(), HasSubstr("had"));
}

TEST(TracerState, AMarkedWeightStaysCutAsItIsMarked) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::parse("model=2")});
  Tensor w = counting(tracer, {8, 6}, "w", MemoryKind::parameter);
  mark_sharding(w, PartitionSpec::parse("-,-"));
  for (int i = 0; i < 3; ++i) {
    Tensor x = counting(tracer, {4, 8}, "x", MemoryKind::loader);
    mark_sharding(x, PartitionSpec::parse("-,model"));  // so that w's gradient is cut
    const Tensor loss = reduce_sum(einsum("bi,io->bo", x, w), {0, 1});
    w = w - grad(loss, {w})[0] * 1e-3;
    tracer.mark_step();
    EXPECT_EQ(w.array().sharding().spec().to_string(), "-,-");
  }
  EXPECT_EQ(tracer.counters().kept, 1);
  const Tensor y = w * 2;  // replaces nothing
  tracer.mark_step();
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] { mark_sharding(w, PartitionSpec::parse("model,-")); }),
            "mark \"w\" : f32[8, 6]: found spec \"model,-\", needed the \"-,-\" that it is marked "
            "already: clear_sharding takes a mark away");
}

TEST(TracerState, TheReasonOfAMissNamesNoMarkThatNobodyMade) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2")});
  Tensor w = counting(tracer, {8, 8}, "w", MemoryKind::parameter);
  const auto step = [&](const Tensor& made) {
    const Tensor y = made;
    tracer.mark_step();
  };
  step(w * 2.0);
  step(w * 3.0);  // w is an array now
  EXPECT_EQ(tracer.last_miss(),
            "found %0 = constant() 3 : f32[8, 8], had %0 = constant() 2 : f32[8, 8]");
  step(w * 3.0);
  EXPECT_EQ(tracer.counters().hits, 1);
  Tensor cut = counting(tracer, {8, 8}, "w", MemoryKind::parameter);
  mark_sharding(cut, {{"data"}, {}});
  tracer.mark_step();
  clear_sharding(cut);
  step(cut * 3.0);
  EXPECT_EQ(tracer.last_miss(), "found input \"w\" cut as data,-, had it cut as -,-");
}

TEST(TracerState, KeepsTheExecutablesThatWereUsedLast) {
  Devices devices(1);
  Tracer tracer(devices, {.executables = 3});
  Tensor t = counting(tracer, {8});
  const auto step = [&](double number) {
    t = t * number;
    tracer.mark_step();
  };
  for (const double number : {1.0, 2.0, 3.0}) step(number);
  EXPECT_EQ(tracer.counters().kept, 3);
  EXPECT_EQ(tracer.counters().dropped, 0);
  step(1);
  EXPECT_EQ(tracer.counters().hits, 1);
  step(4);  // in the place of 2
  EXPECT_EQ(tracer.counters().kept, 3);
  EXPECT_EQ(tracer.counters().dropped, 1);
  step(1);
  step(3);
  EXPECT_EQ(tracer.counters().hits, 3);
  step(2);
  EXPECT_EQ(tracer.counters().hits, 3);
  EXPECT_THROW(Tracer(devices, {.executables = 0}), Error);
}

TEST(TracerState, ANumberThatChangesFromStepToStepIsNamedAsTheCause) {
  Devices devices(1);
  Tracer tracer(devices);
  Tensor t = counting(tracer, {8});
  for (int i = 0; i < 20; ++i) {
    t = t * (1.0 + i);
    tracer.mark_step();
    EXPECT_EQ(tracer.last_miss().find("a number that changes") != std::string::npos, i >= 9);
  }
  // As a tensor it is no part of the program.
  const std::int64_t hits = tracer.counters().hits;
  for (int i = 0; i < 20; ++i) {
    const float rate = 1.0F + static_cast<float>(i);
    t = t * tracer.tensor({DType::f32, {}}, std::as_bytes(std::span(&rate, 1)), "rate");
    tracer.mark_step();
  }
  EXPECT_EQ(tracer.counters().hits, hits + 19);
}

TEST(TracerState, AdviceIsGivenAlsoIfWeightsDoNotFit) {
  Devices devices(4, {.capacity_bytes = 40'000});
  const auto step = [&](bool cut) {
    Tracer tracer(devices, {.mesh = Mesh::line(4, "data")});
    Tensor w = counting(tracer, {100, 100}, "w", MemoryKind::parameter);
    Tensor velocity = counting(tracer, {100, 100}, "velocity", MemoryKind::optimizer);
    if (cut) {
      mark_sharding(w, {{"data"}, {}});
      mark_sharding(velocity, {{"data"}, {}});
    }
    velocity = velocity * 0.5;
    w = w - velocity;
    tracer.mark_step();
  };
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted, [&] { step(false); }),
              AllOf(HasSubstr("needed 80000 bytes"), HasSubstr("it fits with")));
  for (DeviceId d = 0; d < 4; ++d) EXPECT_EQ(devices.at(d).memory().in_use_bytes, 0u);
  step(true);
}

}  // namespace
}  // namespace shardwise
