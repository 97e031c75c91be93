#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/memory/detail/offsets.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

namespace shardwise {
namespace {

TEST(PlanOffsets, NothingThatIsNeededAtTheSameTimeOverlaps) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Lifetime> lifetimes(1 + random() % 40);
    for (Lifetime& one : lifetimes) {
      one.bytes = random() % 5 == 0 ? 0 : random() % 5000;
      one.first = random() % 20;
      one.last = one.first + random() % 10;
    }
    const Offsets planned = plan_offsets(lifetimes);
    std::size_t live_at_once = 0;
    for (std::int64_t step = 0; step < 30; ++step) {
      std::size_t live = 0;
      for (const Lifetime& one : lifetimes) {
        if (one.first <= step && step <= one.last) live += one.bytes;
      }
      live_at_once = std::max(live_at_once, live);
    }
    EXPECT_GE(planned.total_bytes, live_at_once);
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      EXPECT_EQ(planned.offsets[i] % 64, 0u);
      EXPECT_LE(planned.offsets[i] + lifetimes[i].bytes, planned.total_bytes);
      for (std::size_t j = 0; j < i; ++j) {
        const Lifetime &a = lifetimes[i], &b = lifetimes[j];
        if (a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(planned.offsets[i] + a.bytes <= planned.offsets[j] ||
                    planned.offsets[j] + b.bytes <= planned.offsets[i]);
      }
    }
  }
}

TEST(PlanHosted, IsInMemoryThatNothingElseNeedsThen) {
  std::mt19937 random(2);
  std::size_t placed = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const auto some = [&](std::size_t count) {
      std::vector<Lifetime> made(count);
      for (Lifetime& one : made) {
        one.bytes = random() % 5 == 0 ? 0 : random() % 5000;
        one.first = random() % 20;
        one.last = one.first + random() % 10;
      }
      return made;
    };
    const std::vector<Lifetime> hosts = some(1 + random() % 4), lifetimes = some(1 + random() % 40);
    const std::vector<Hosted> found = plan_hosted(hosts, lifetimes);
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      if (found[i].host < 0) continue;
      ++placed;
      const Lifetime &a = lifetimes[i], &host = hosts[as_size(found[i].host)];
      EXPECT_EQ(found[i].offset % 64, 0u);
      EXPECT_LE(found[i].offset + a.bytes, host.bytes);
      EXPECT_LT(a.last, host.first);
      for (std::size_t j = 0; j < i; ++j) {
        const Lifetime& b = lifetimes[j];
        if (found[j].host != found[i].host || a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(found[i].offset + a.bytes <= found[j].offset ||
                    found[j].offset + b.bytes <= found[i].offset);
      }
    }
  }
  EXPECT_GT(placed, 300u);
}

TEST(PlanOffsets, UsesTheSmallestGap) {
  // 0 and 2 leave gaps of 128 and 64 bytes at step 1; the last one fits into the smaller.
  const std::vector<Lifetime> lifetimes{{1024, 0, 9}, {128, 0, 0}, {512, 0, 9},
                                        {64, 0, 0},   {256, 0, 9}, {64, 1, 1}};
  const Offsets planned = plan_offsets(lifetimes);
  EXPECT_EQ(planned.total_bytes, 1024u + 512 + 256 + 128 + 64);
}

/// The definition: all that was placed is looked at for each.
std::vector<std::size_t> smallest_gaps(const std::vector<Lifetime>& lifetimes) {
  std::vector<std::size_t> order(lifetimes.size()), offsets(lifetimes.size(), 0), placed;
  const auto aligned = [&](std::size_t i) { return (lifetimes[i].bytes + 63) / 64 * 64; };
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  for (const std::size_t one : order) {
    if (lifetimes[one].bytes == 0) continue;
    std::size_t end = 0, best = 0, best_gap = SIZE_MAX;
    for (const std::size_t other : placed) {
      if (lifetimes[other].last < lifetimes[one].first ||
          lifetimes[one].last < lifetimes[other].first) {
        continue;
      }
      if (offsets[other] >= end + aligned(one) && offsets[other] - end < best_gap) {
        best = end;
        best_gap = offsets[other] - end;
      }
      end = std::max(end, offsets[other] + aligned(other));
    }
    offsets[one] = best_gap == SIZE_MAX ? end : best;
    const auto later = std::find_if(placed.begin(), placed.end(), [&](std::size_t other) {
      return offsets[other] > offsets[one];
    });
    placed.insert(later, one);
  }
  return offsets;
}

TEST(PlanOffsets, AreThoseOfTheDefinition) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<Lifetime> lifetimes(1 + random() % 120);
    const std::int64_t steps = 1 + random() % 60;
    for (Lifetime& one : lifetimes) {
      one.bytes = random() % 2 == 0 ? 64 * (1 + random() % 4) : random() % 3000;
      one.first = random() % steps;
      one.last = one.first + random() % (1 + steps / 4);
    }
    EXPECT_EQ(plan_offsets(lifetimes).offsets, smallest_gaps(lifetimes)) << trial;
  }
}

/// Values that are all needed at once, as those of a loss for its gradient, and values that are
/// needed for three steps each.
TEST(PlanOffsets, TheWorkGrowsAsTheProgramDoes) {
  const auto visits = [](std::int64_t count, bool all_at_once) {
    std::vector<Lifetime> lifetimes;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t bytes = 64 * static_cast<std::size_t>(1 + i * 37 % 10);
      lifetimes.push_back({bytes, i, all_at_once ? 2 * count - i : i + 2});
    }
    return plan_offsets(lifetimes).visits;
  };
  for (const bool all_at_once : {false, true}) {
    const std::size_t few = visits(1000, all_at_once);
    EXPECT_LT(few, 1000u * 100);
    EXPECT_LT(visits(4000, all_at_once), 6 * few);
    EXPECT_LT(visits(16000, all_at_once), 32 * few);
  }
}

/// The result is x: reversed 20 times, with one added and taken away, and with zero products.
TEST(MemoryPlan, MemoryIsUsedAgainAndTheRightValuesComeOut) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2")});
  Tensor x = counting(tracer, {16, 16}, "x", MemoryKind::loader);
  const Tensor w = counting(tracer, {16, 16}, "w", MemoryKind::parameter);
  mark_sharding(x, {{"data"}, {}});
  Tensor y = x;
  for (int i = 0; i < 20; ++i) {
    y = reverse(y, {1}) + 1.0;
    y = einsum("bi,io->bo", y, w * 0.0) + y;
    y = y - 1.0;
  }
  tracer.mark_step();
  EXPECT_EQ(floats(y), floats(x));
  const Executable& step = *tracer.last();
  // 20 rounds of three values each would not fit.
  EXPECT_LT(step.memory(0).peak_bytes, 12u * 16 * 16 * sizeof(float));
}

TEST(MemoryPlan, PlannedIsMeasuredToTheByteAndByKind) {
  Devices devices(8);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=4,model=2")});
  Tensor w = counting(tracer, {30, 14}, "w", MemoryKind::parameter);
  Tensor m = full_like(w, 0);
  mark_sharding(w, {{"data"}, {"model"}});
  for (int step = 0; step < 3; ++step) {
    Tensor x = counting(tracer, {9, 30}, "x", MemoryKind::loader);
    mark_sharding(x, {{"data"}, {}});
    {
      const Tensor y = einsum("bi,io->bo", x, w);
      w = w - grad(reduce_sum(y * y, {0, 1}), {w})[0] * 1e-6;
    }
    for (DeviceId id = 0; id < 8; ++id) devices.at(id).reset_peak();
    tracer.mark_step();
    for (std::int64_t p = 0; p < 8; ++p) {
      // The first step makes m too: an output more.
      EXPECT_EQ(
          tracer.last()->memory(p).peak_bytes + (step > 0 ? m.array().buffer(p)->size_bytes() : 0),
          devices.at(p).memory().peak_bytes)
          << "step " << step << " position " << p;
    }
  }
}

/// Every device's parts are read by others while sums are written over them. Of 32 devices some
/// combine results; of three elements some devices combine none.
TEST(MemoryPlan, AnAllReduceIsWrittenOverItsParts) {
  for (const std::int64_t count : {2, 7, 8, 32}) {
    for (const std::int64_t size : {3, 10'000}) {
      Devices devices(count);
      Tracer tracer(devices, {.mesh = Mesh::line(count, "data")});
      Tensor x = counting(tracer, {2 * count, size});
      mark_sharding(x, {{"data"}, {}});
      const Tensor sum = reduce_sum(x, {0});
      tracer.mark_step();
      std::vector<float> right(as_size(size), 0);
      const std::vector<float> all = floats(x);
      for (std::size_t i = 0; i < all.size(); ++i) right[i % right.size()] += all[i];
      EXPECT_EQ(floats(sum), right) << count << " devices, " << size << " elements";
      // Two rows, and the sum.
      EXPECT_EQ(tracer.last()->memory(0).peak_bytes, 3 * as_size(size) * sizeof(float));
    }
  }
}

/// Each micro-batch is a slice of a batch of six: only the sum has memory of its own.
TEST(MemoryPlan, ASliceThatIsOneRangeOfAnInputTakesNoMemory) {
  Devices devices(4);
  for (const char* const spec : {"-,data,-", "-,-,data"}) {
    Tracer tracer(devices, {.mesh = Mesh::parse("data=4")});
    Tensor x = counting(tracer, {6, 16, 32}, "x", MemoryKind::loader);
    mark_sharding(x, PartitionSpec::parse(spec));
    Tensor sum = reshape(slice(x, {0, 0, 0}, {1, 16, 32}), {16, 32});
    for (std::int64_t i = 1; i < 6; ++i) {
      sum = sum + reshape(slice(x, {i, 0, 0}, {i + 1, 16, 32}), {16, 32});
    }
    tracer.mark_step();
    std::vector<float> right(16 * 32);
    const std::vector<float> all = floats(x);
    for (std::size_t i = 0; i < all.size(); ++i) right[i % right.size()] += all[i];
    EXPECT_EQ(floats(sum), right);
    EXPECT_EQ(tracer.last()->memory(0).peak_bytes, (6 + 1) * 16 * 32 * sizeof(float) / 4);
  }
}

/// Slices of slices, under other shapes, of uneven shards, with strides: as indices say. The input
/// is replaced in the same step, after what read it.
TEST(MemoryPlan, SlicesOfInputsAreThoseOfTheDefinition) {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random()) % end; };
  for (int trial = 0; trial < 200; ++trial) {
    const Mesh mesh = Mesh::parse(trial % 3 == 0 ? "a=1" : trial % 3 == 1 ? "a=3" : "a=2,b=2");
    Devices devices(mesh.size());
    Tracer tracer(devices, {.mesh = mesh});
    Shape shape;
    std::string spec;
    const std::int64_t rank = 1 + below(4), cut = below(rank + 1);
    for (std::int64_t dim = 0; dim < rank; ++dim) {
      shape.push_back(1 + below(6));
      spec += dim == 0 ? "" : ",";
      spec += dim == cut ? "a" : "-";
    }
    Tensor x = counting(tracer, shape, "x", MemoryKind::parameter);
    mark_sharding(x, PartitionSpec::parse(spec));
    Tensor y = x;
    std::vector<float> after(as_size(num_elements(shape)));
    for (std::size_t i = 0; i < after.size(); ++i) after[i] = static_cast<float>(i % 97);
    std::vector<float> right = after;
    for (int depth = 0; depth < 3; ++depth) {
      Dims begin, end, stride, made;
      for (const std::int64_t extent : y.shape()) {
        const std::int64_t from = below(extent), to = from + 1 + below(extent - from);
        const std::int64_t by = 1 + below(4) / 3;
        begin.push_back(from);
        end.push_back(to);
        stride.push_back(by);
        made.push_back((to - from + by - 1) / by);
      }
      const Dims strides = row_major_strides(y.shape());
      std::vector<float> part;
      for_each_index(Box::whole(made), [&](const Index& at) {
        std::int64_t from = 0;
        for (std::size_t dim = 0; dim < at.size(); ++dim) {
          from += (begin[dim] + at[dim] * stride[dim]) * strides[dim];
        }
        part.push_back(right[as_size(from)]);
      });
      right = std::move(part);
      y = slice(y, begin, end, Dims(stride));
      if (below(2) == 0) y = reshape(y, {num_elements(made)});
    }
    const Tensor negated = -y;
    x = x + 1.0;
    tracer.mark_step();
    EXPECT_EQ(floats(y), right) << trial;
    for (float& value : right) value = -value;
    EXPECT_EQ(floats(negated), right) << trial;
    for (float& value : after) value += 1;
    EXPECT_EQ(floats(x), after) << trial;
  }
}

TEST(MemoryPlan, AnUpdateIsWrittenIntoTheStateThatItReplaces) {
  const Mesh mesh = Mesh::parse("data=2");
  Devices devices(2);
  Tracer tracer(devices, {.mesh = mesh});
  Tensor cache = counting(tracer, {4, 8, 16}, "cache", MemoryKind::optimizer);
  mark_sharding(cache, {"data", {}, {}});
  const Tensor zero = tracer.tensor<std::int32_t>({}, {0}, "zero");
  Tensor row = counting(tracer, {4, 1, 16}, "row");
  mark_sharding(row, {"data", {}, {}});
  tracer.mark_step();
  std::vector<float> right = floats(cache);
  for (const std::int32_t slot : {0, 5, 7}) {
    const void* const before = cache.array().buffer(0)->data();
    Tensor total;
    {
      const Tensor at = tracer.tensor<std::int32_t>({}, {slot}, "slot");
      cache = dynamic_update_slice(cache, row, {zero, at, zero});
      total = sum(cache * cache);
    }
    tracer.mark_step();
    for (std::size_t i = 0; i < 4 * 16; ++i) {
      right[(i / 16 * 8 + as_size(slot)) * 16 + i % 16] = static_cast<float>(i % 97);
    }
    EXPECT_EQ(floats(cache), right);
    EXPECT_EQ(cache.array().buffer(0)->data(), before);
    const std::size_t cache_bytes = 4 * 8 * 16 * sizeof(float) / 2;
    EXPECT_LT(tracer.last()->memory(0).peak_bytes, 2 * cache_bytes + cache_bytes / 2)
        << "the cache and its squares";
  }
}

/// The update is a part of the operand, or the operand is needed again: it has to be copied first.
TEST(MemoryPlan, AnUpdateKeepsAnOperandThatIsReadElsewhere) {
  Devices devices(1);
  for (const bool is_part : {true, false}) {
    Tracer tracer(devices);
    Tensor x = counting(tracer, {8, 16}, "x", MemoryKind::optimizer);
    const Tensor one = tracer.tensor<std::int32_t>({}, {1}, "one");
    const std::vector<float> old = x.to_vector<float>();
    Tensor y = is_part ? slice(x, {0, 0}, {7, 16}) : full_like(slice(x, {0, 0}, {7, 16}), 3);
    const Tensor changed = dynamic_update_slice(x, y, {one, one * 0});
    const Tensor again = is_part ? Tensor() : changed + x;
    x = changed;
    y = Tensor();
    tracer.mark_step();
    std::vector<float> right = old;
    for (std::size_t i = 16; i < right.size(); ++i) right[i] = is_part ? old[i - 16] : 3;
    EXPECT_EQ(floats(changed), right);
    if (is_part) continue;
    for (std::size_t i = 0; i < right.size(); ++i) right[i] += old[i];
    EXPECT_EQ(floats(again), right);
  }
}

// Only the first of them has memory; the other one is the same array.
TEST(MemoryPlan, AnOutputThatIsThereTwiceReplacesOneInput) {
  for (const std::int64_t devices_used : {1, 2}) {
    auto graph = std::make_shared<GraphBuilder>();
    const TensorType type{DType::f32, {4}};
    const NodeRef a{graph.get(), append_input(*graph, type, "a", MemoryKind::parameter)};
    const NodeRef b{graph.get(), append_input(*graph, type, "b", MemoryKind::parameter)};
    const NodeRef difference = a - b;
    graph->outputs = {difference.id, difference.id};
    const Executable executable(graph, Mesh::line(devices_used), {.may_donate = {true, true}});
    Devices devices(devices_used);
    const std::vector<float> left{5, 6, 7, 8}, right{1, 1, 2, 2};
    std::vector<ShardedArray> inputs{
        ShardedArray::from_host(devices, executable.input_spec(0), std::as_bytes(std::span(left))),
        ShardedArray::from_host(devices, executable.input_spec(1),
                                std::as_bytes(std::span(right)))};
    const auto outputs = executable.run(devices, std::move(inputs));
    ASSERT_EQ(outputs.size(), 2u);
    for (const ShardedArray& output : outputs) {
      std::vector<float> found(4);
      const std::vector<std::byte> bytes = output.to_host();
      std::memcpy(found.data(), bytes.data(), bytes.size());
      EXPECT_EQ(found, (std::vector<float>{4, 5, 5, 6}));
    }
  }
}

}  // namespace
}  // namespace shardwise
