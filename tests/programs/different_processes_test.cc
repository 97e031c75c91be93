#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/manual.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/socket_transport.h"
#include "trial.h"

// Processes, which are threads here, whose programs, options or order differ: every one gets an
// error that says what differs, none waits for its deadline, and none gets another's data.
namespace shardwise {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::int64_t kDevices = 4;

/// The error of `job` on each rank, which then meets the others, as in jobs.
std::vector<std::string> run_job(int ranks, const std::function<void(Devices&, int)>& job) {
  return run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    Devices devices(kDevices, {.threads = 1, .group = ProcessGroup(std::move(transport))});
    job(devices, rank);
    devices.group().barrier();
  });
}

/// Three steps of training; `also` may do more in each.
void train(Devices& devices, const std::function<void(Tracer&, int, const Tensor&)>& also,
           TracerOptions options = {}) {
  options.mesh = Mesh::line(kDevices, "data");
  Tracer tracer(devices, options);
  Tensor w = counting(tracer, {8, 4}, "w", MemoryKind::parameter);
  mark_sharding(w, {{"data"}, {}});
  for (int step = 0; step < 3; ++step) {
    const Tensor y = [&] {
      Tensor x = counting(tracer, {8, 8}, "x", MemoryKind::loader);
      mark_sharding(x, {{"data"}, {}});
      return einsum("bi,io->bo", x, w);
    }();
    const Tensor loss = reduce_sum(y * y, {0, 1});
    w = w - grad(loss, {w})[0] * 1e-6;
    also(tracer, step, y);
    tracer.mark_step();
    EXPECT_GE(loss.item(), 0);
  }
}

void nothing_else(Tracer&, int, const Tensor&) {}

TEST(DifferentProcesses, OneThatHoldsAnotherTensorIsNamed) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    EXPECT_THAT(run_job(ranks, [](Devices& devices, int) { train(devices, nothing_else); }),
                Each(""));
    for (int odd = 0; odd < ranks; ++odd) {
      SCOPED_TRACE(testing::Message() << "rank " << odd << " of " << ranks);
      // In the second step, when the others know their executable.
      const auto errors = run_job(ranks, [&](Devices& devices, int rank) {
        std::vector<Tensor> kept;
        train(devices, [&](Tracer&, int step, const Tensor& y) {
          if (rank == odd && step == 1) kept.push_back(y + 1.0);
        });
      });
      EXPECT_THAT(errors, Each(AllOf(AnyOf(HasSubstr("run a program: found the number of "),
                                           HasSubstr("move the same data in the same way")),
                                     HasSubstr("rank " + std::to_string(odd)))));
    }
  }
}

TEST(DifferentProcesses, OnesWithOtherOptionsMarksOrNumbersAreNamed) {
  const auto errors_of = [](const std::function<void(Devices&, bool)>& job) {
    return run_job(3, [&](Devices& devices, int rank) { job(devices, rank == 1); });
  };
  EXPECT_THAT(errors_of([](Devices& devices, bool odd) {
                train(devices, nothing_else, {.nan_check = odd ? NanCheck::on : NanCheck::off});
              }),
              Each(HasSubstr("found the NaN check")));
  EXPECT_THAT(errors_of([](Devices& devices, bool odd) {
                train(devices, nothing_else, {.keep_gathered_weights = odd});
              }),
              Each(HasSubstr("found keep_gathered_weights")));
  EXPECT_THAT(errors_of([](Devices& devices, bool odd) {
                std::vector<Tensor> kept;
                train(devices, [&](Tracer& tracer, int step, const Tensor& y) {
                  kept.push_back(y * (odd && step == 2 ? 3.0 : 2.0));
                  static_cast<void>(tracer);
                });
              }),
              Each(HasSubstr("found a hash of the operations")));
  EXPECT_THAT(errors_of([](Devices& devices, bool odd) {
                train(devices, [&](Tracer& tracer, int step, const Tensor&) {
                  Tensor only_marked = counting(tracer, {8}, "only marked");
                  mark_sharding(only_marked, {{"data"}});
                  if (step > 0) return;
                  tracer.mark_step();
                  if (!odd) return;
                  clear_sharding(only_marked);
                  mark_sharding(only_marked, {{}});
                  tracer.mark_step();
                });
              }),
              Each(HasSubstr("\"redistribute an array\"")));
}

TEST(DifferentProcesses, WhatFailsToBePlannedOnOneEndsTheStepOnAll) {
  const auto errors = run_job(3, [](Devices& devices, int rank) {
    std::vector<Axis> axes{{"data", kDevices}};
    // More than a program can have.
    for (int i = 0; rank == 1 && i < 64; ++i) axes.push_back({"axis" + std::to_string(i), 1});
    Tracer tracer(devices, {.mesh = Mesh(axes)});
    const Tensor x = counting(tracer, {8, 8}, "x");
    const Tensor y = x * 2.0;
    tracer.mark_step();
  });
  EXPECT_THAT(errors, Each(HasSubstr("found a mesh of 65 axes, needed at most ")));
}

TEST(DifferentProcesses, OnesThatMoveOtherArraysAreNamed) {
  const auto errors = run_job(4, [](Devices& devices, int rank) {
    const Mesh mesh = Mesh::line(kDevices, "data");
    const std::vector<std::byte> bytes(64 * sizeof(float));
    const Shape shape = rank == 2 ? Shape{64} : Shape{8, 8};
    const ArraySpec spec{DType::f32, shape,
                         Sharding(mesh, PartitionSpec{{"data"}}.padded(shape.size()))};
    const ShardedArray array = ShardedArray::from_host(devices, spec, bytes);
    array.redistribute(devices, Sharding(mesh, PartitionSpec{}.padded(shape.size())));
  });
  EXPECT_THAT(errors, Each(HasSubstr("found a hash of shape and shardings")));
}

TEST(DifferentProcesses, RandomProgramsInAnotherOrderOrWithOtherChoicesEndInErrors) {
  int tried = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    const Trial trial = random_trial(seed), other = random_trial(seed + 1000);
    std::int64_t count = 0;
    for (const Trial* one : {&trial, &other}) {
      for (std::int64_t p = 0; p < one->mesh.size(); ++p) {
        count = std::max(count, one->mesh.device_at(p) + 1);
      }
    }
    const int ranks = 2 + static_cast<int>(seed % 3);
    if (count < ranks) continue;
    ++tried;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ranks << " ranks");
    const int odd = static_cast<int>(seed / 3) % ranks;
    const auto run = [](Devices& devices, const Trial& one) {
      const Executable executable(std::make_shared<const Graph>(one.graph), one.mesh, one.options);
      std::vector<ShardedArray> inputs;
      for (std::size_t i = 0; i < one.inputs.size(); ++i) {
        inputs.push_back(ShardedArray::from_host(devices, executable.input_spec(i), one.inputs[i]));
      }
      executable.run(devices, std::move(inputs));
    };
    const auto errors = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const bool is_odd = transport->rank() == odd;
      Devices devices(count, {.threads = 1, .group = ProcessGroup(std::move(transport))});
      Trial changed = trial;
      if (seed % 2 == 0) {  // the same two programs, the other one first
        run(devices, is_odd ? other : trial);
        run(devices, is_odd ? trial : other);
      } else {
        if (is_odd) changed.graph.outputs.push_back(trial.graph.inputs.front().node);
        run(devices, changed);
      }
      devices.group().barrier();
    });
    // Data of the wrong program may be found before all have been compared.
    EXPECT_THAT(errors, Each(AnyOf(HasSubstr("found the number of "), HasSubstr("found a hash"),
                                   HasSubstr("found the NaN"), HasSubstr("found keep"),
                                   HasSubstr("move the same data in the same way"))));
  }
  EXPECT_GT(tried, 20);
}

TEST(DifferentProcesses, ManualRegionsThatDifferAreNamed) {
  const auto errors = run_job(2, [](Devices& devices, int rank) {
    const Mesh mesh = Mesh::line(kDevices, "data");
    const Sharding sharding(mesh, PartitionSpec{{"data"}});
    const std::vector<std::byte> bytes(64 * sizeof(float));
    ManualRegion region(devices, mesh);
    const auto x =
        region.input(ShardedArray::from_host(devices, {DType::f32, {64}, sharding}, bytes));
    const auto y = region.all_gather(x, "data", 0);
    if (rank == 1) region.all_gather(x, "data", 0);
    region.run();
    region.output(y);
  });
  EXPECT_THAT(errors, Each(HasSubstr("run a manual region: found the number of steps")));
}

}  // namespace
}  // namespace shardwise
