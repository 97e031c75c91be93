// Saves that come while another one is under way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// A source that waits, once, until the test says so. Thread-safe.
class Gate {
 public:
  TensorSource source(const HostTensor& tensor, std::string problem = "") {
    return callback_tensor("x", tensor.spec,
                           [this, &tensor, problem](const Box& box, std::span<std::byte> out) {
                             pass();
                             if (!problem.empty()) throw Error(ErrorCode::io, problem);
                             tensor.source().reader->read(0, box, out);
                           });
  }

  void open() {
    {
      const MutexLock lock(mutex_);
      is_open_ = true;
    }
    changed_.notify_all();
  }

  void wait_for_somebody() {
    const MutexLock lock(mutex_);
    while (!is_wanted_) changed_.wait(mutex_);
  }

 private:
  void pass() {
    const MutexLock lock(mutex_);
    is_wanted_ = true;
    changed_.notify_all();
    while (!is_open_) changed_.wait(mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  bool is_open_ SHARDWISE_GUARDED_BY(mutex_) = false;
  bool is_wanted_ SHARDWISE_GUARDED_BY(mutex_) = false;
};

class SaveQueue : public testing::Test {
 protected:
  std::vector<std::int64_t> steps(const CheckpointManager& manager) const {
    std::vector<std::int64_t> steps;
    for (const Step& step : manager.steps()) steps.push_back(step.step);
    return steps;
  }

  const TempDir dir_;
  const HostTensor tensor_ = host_tensor("x", DType::f32, {100, 10}, "2", "0,-");
};

TEST_F(SaveQueue, ASaveThatComesTooEarlyIsSkippedIfAsked) {
  Gate gate;
  CheckpointManager manager(dir_.path(), {.write = {.when_busy = WhenBusy::skip}});
  const PendingSave first = manager.save_async(1, {gate.source(tensor_)});
  const SaveStats second = manager.save_async(2, {tensor_.source()}).wait();
  EXPECT_TRUE(second.skipped);
  gate.open();
  EXPECT_FALSE(first.wait().skipped);
  EXPECT_FALSE(manager.save_async(3, {tensor_.source()}).wait().skipped);
  EXPECT_THAT(steps(manager), ElementsAre(1, 3));
}

TEST_F(SaveQueue, ASaveTakesThePlaceOfTheOneThatWaitsIfAsked) {
  Gate gate;
  {
    CheckpointManager manager(dir_.path(), {.write = {.when_busy = WhenBusy::replace}});
    const PendingSave first = manager.save_async(1, {gate.source(tensor_)});
    std::vector<float> values(8);
    const auto state = [&](float value) {
      values.assign(values.size(), value);
      return std::vector{host_source("x", values)};
    };
    const PendingSave second = manager.save_async(2, state(2));
    EXPECT_FALSE(second.done());
    const PendingSave third = manager.save_async(3, state(3));
    EXPECT_TRUE(second.done());
    EXPECT_TRUE(second.wait().skipped);
    EXPECT_EQ(second.wait().directory, "");
    const PendingSave fourth = manager.save_async(4, state(4));
    EXPECT_TRUE(third.wait().skipped);
    state(5);  // what waits has a copy
    EXPECT_FALSE(first.done());
    EXPECT_FALSE(fourth.done());
    gate.open();
    EXPECT_FALSE(first.wait().skipped);
    EXPECT_FALSE(fourth.wait().skipped);
    EXPECT_GE(fourth.wait().memory_bytes, 8 * sizeof(float));
    EXPECT_THAT(CheckpointReader(dir_ / "step-00000004").read<float>("x"), Each(4));
    manager.save_async(5, state(5));
    manager.save_async(6, state(6));
    manager.close();
    EXPECT_THAT(manager.steps().back().step, 6);
  }
  const std::vector<std::int64_t> there = steps(CheckpointManager(dir_.path()));
  EXPECT_THAT(there, AnyOf(ElementsAre(1, 4, 5, 6), ElementsAre(1, 4, 6)));
}

TEST_F(SaveQueue, ASaveThatHasBegunIsNotReplaced) {
  Gate gates[2];
  CheckpointManager manager(dir_.path(), {.write = {.when_busy = WhenBusy::replace}});
  const PendingSave first = manager.save_async(1, {gates[0].source(tensor_)});
  const PendingSave second = manager.save_async(2, {gates[1].source(tensor_)});
  gates[0].open();
  gates[1].wait_for_somebody();
  const PendingSave third = manager.save_async(3, {tensor_.source()});
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(second.done());
  const PendingSave fourth = manager.save_async(4, {tensor_.source()});
  EXPECT_TRUE(third.wait().skipped);
  gates[1].open();
  EXPECT_FALSE(second.wait().skipped);
  manager.close();
  EXPECT_THAT(steps(manager), ElementsAre(1, 2, 4));
}

TEST_F(SaveQueue, WhatWentWrongBeforeASaveThatWaitedIsTold) {
  Gate gates[3];
  CheckpointManager manager(dir_.path(), {.write = {.when_busy = WhenBusy::replace}});
  manager.save(9, {tensor_.source()});
  manager.save_async(1, {gates[0].source(tensor_, "the first is broken")});
  manager.save_async(2, {gates[1].source(tensor_)});
  EXPECT_THAT(
      message_of(ErrorCode::already_exists, [&] { manager.save_async(9, {tensor_.source()}); }),
      HasSubstr("save step 9"));
  gates[0].open();
  gates[1].wait_for_somebody();  // what cannot be saved has replaced nothing
  EXPECT_THAT(message_of(ErrorCode::io, [&] { manager.save_async(4, {tensor_.source()}); }),
              HasSubstr("the first is broken"));
  const PendingSave last = manager.save_async(5, {gates[2].source(tensor_, "and the last")});
  gates[1].open();
  gates[2].open();
  EXPECT_THAT(message_of(ErrorCode::io, [&] { manager.close(); }), HasSubstr("and the last"));
  EXPECT_TRUE(last.done());
  manager.close();
  EXPECT_THAT(steps(manager), ElementsAre(2, 9));
}

// Beside each step that is there, by names that its SaveStats have.

}  // namespace
}  // namespace shardwise
