#include "shardwise/runtime/program/detail/move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"

// Moves without memory: a shard lists the (position, element) pairs that were added up to make each
// of its elements.
namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Origins = std::multiset<std::int64_t>;    // positions that an element was taken from
using Shard = std::map<std::int64_t, Origins>;  // by element number: of the tensor, row-major
using Shards = std::vector<Shard>;              // by position

std::vector<std::int64_t> elements_of(const Box& box, const Shape& shape) {
  std::vector<std::int64_t> all;
  const std::int64_t count = Box::whole(shape).num_elements();
  for (std::int64_t element = 0; element < count; ++element) {
    std::int64_t rest = element;
    bool inside = true;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      const std::int64_t index = rest % shape[dim];
      rest /= shape[dim];
      inside = inside && index >= box.begin(dim) && index < box.end(dim);
    }
    if (inside) all.push_back(element);
  }
  return all;
}

/// The elements that a box of a plan stands for, in its order.
std::vector<std::int64_t> elements_of(const MovePhase& phase, const Box& box, const Box& shard,
                                      const Shape& shape) {
  if (phase.frame == MovePhase::Frame::tensor) return elements_of(box, shape);
  const std::vector<std::int64_t> all = elements_of(shard, shape);
  return {all.begin() + box.begin(0), all.begin() + box.end(0)};
}

Shards carry_out(const MovePlan& plan, const Sharding& from, const Sharding& to,
                 const Shape& shape) {
  Shards old(static_cast<std::size_t>(from.mesh().size()));
  for (std::size_t i = 0; i < old.size(); ++i) {
    const auto position = static_cast<std::int64_t>(i);
    for (const auto element : elements_of(from.box_at(position, shape), shape)) {
      old[i][element] = {position};
    }
  }
  Shards made(static_cast<std::size_t>(to.mesh().size()));
  for (const MovePhase& phase : plan.phases) {
    const bool again = phase.source == MovePhase::Source::new_value;
    const Shards& sources = again ? made : old;
    const Sharding& source_sharding = again ? to : from;
    Shards next = made;
    for (const MoveGroup& group : phase.groups) {
      for (std::size_t target = 0; target < group.targets.size(); ++target) {
        const std::int64_t at = group.targets[target];
        Shard filled;
        for (const Copy& copy : group.plan.copies_to(static_cast<std::int64_t>(target))) {
          const std::int64_t source = group.sources[static_cast<std::size_t>(copy.source)];
          const auto read =
              elements_of(phase, copy.box, source_sharding.box_at(source, shape), shape);
          const auto written = elements_of(phase, copy.box, to.box_at(at, shape), shape);
          for (std::size_t i = 0; i < read.size(); ++i) {
            const Origins& origins = sources[static_cast<std::size_t>(source)].at(read[i]);
            Origins& sum = filled[written[i]];
            EXPECT_TRUE(group.plan.reduction() != Reduction::none || sum.empty());
            sum.insert(origins.begin(), origins.end());
          }
        }
        for (auto& [element, origins] : filled) {
          next[static_cast<std::size_t>(at)][element] = origins;
        }
      }
    }
    made = next;
  }
  return made;
}

struct RandomMove {
  Mesh mesh;
  std::vector<PartitionSpec::Entry> entries;
  Shape shape;
  std::vector<std::size_t> unused;  // axes
};

/// A mesh of up to 12 positions; some of its axes cut the dims of a small tensor.
RandomMove random_move(std::mt19937& random) {
  RandomMove made{Mesh::line(1), {}, {}, {}};
  std::string text;
  std::vector<std::string> names{"a", "b", "c"};
  names.resize(1 + random() % 3);
  for (const std::string& axis : names) {
    text += (text.empty() ? "" : ",") + axis + "=" + std::to_string(1 + random() % 3);
  }
  made.mesh = Mesh::parse(text);
  made.entries.resize(1 + random() % 2);
  for (std::size_t dim = 0; dim < made.entries.size(); ++dim) {
    made.shape.push_back(static_cast<std::int64_t>(random() % 6));
  }
  for (std::size_t axis = 0; axis < names.size(); ++axis) {
    if (random() % 2 == 0) {
      made.entries[random() % made.entries.size()].push_back(names[axis]);
    } else {
      made.unused.push_back(axis);
    }
  }
  return made;
}

std::size_t sent_bytes(const MovePlan& plan) {
  std::size_t sum = 0;
  for (const DeviceBytes& device : plan.traffic) sum += device.sent;
  return sum;
}

TEST(PlanMove, AllReduceAddsUpEachGroupOnceOnRandomMeshes) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const RandomMove c = random_move(random);
    const Sharding sharding(c.mesh, PartitionSpec(c.entries));
    const MovePlan plan =
        plan_move(sharding, sharding, c.shape, DType::f32, c.unused, Reduction::sum);
    const Shards made = carry_out(plan, sharding, sharding, c.shape);
    for (const auto& group : position_groups(c.mesh, c.unused)) {
      for (const std::int64_t position : group) {
        const auto wanted = elements_of(sharding.box_at(position, c.shape), c.shape);
        const Shard& shard = made[static_cast<std::size_t>(position)];
        ASSERT_EQ(shard.size(), wanted.size());
        for (const auto& [element, origins] : shard) {
          EXPECT_EQ(origins, Origins(group.begin(), group.end()));
        }
      }
    }
  }
}

TEST(PlanMove, ReduceScatterAndAllGatherFillEveryBoxOnRandomMeshes) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const RandomMove c = random_move(random);
    if (c.unused.empty()) continue;
    const std::size_t axis = c.unused[random() % c.unused.size()];
    const std::size_t dim = random() % c.entries.size();
    auto cut = c.entries;
    cut[dim].push_back(c.mesh.axes()[axis].name);
    const Sharding whole(c.mesh, PartitionSpec(c.entries)), parts(c.mesh, PartitionSpec(cut));
    std::vector<std::size_t> axes{axis};
    for (const std::string& name : c.entries[dim]) axes.push_back(c.mesh.axis_index(name));

    const MovePlan scatter = plan_move(whole, parts, c.shape, DType::f32, axes, Reduction::sum);
    const Shards scattered = carry_out(scatter, whole, parts, c.shape);
    for (std::int64_t position = 0; position < c.mesh.size(); ++position) {
      const auto wanted = elements_of(parts.box_at(position, c.shape), c.shape);
      const Shard& shard = scattered[static_cast<std::size_t>(position)];
      ASSERT_EQ(shard.size(), wanted.size());
      for (const auto& [element, origins] : shard) {
        EXPECT_EQ(origins.size(), static_cast<std::size_t>(c.mesh.axes()[axis].size));
      }
    }
    const MovePlan gather = plan_move(parts, whole, c.shape, DType::f32, axes, Reduction::none);
    const Shards gathered = carry_out(gather, parts, whole, c.shape);
    for (std::int64_t position = 0; position < c.mesh.size(); ++position) {
      const auto wanted = elements_of(whole.box_at(position, c.shape), c.shape);
      const Shard& shard = gathered[static_cast<std::size_t>(position)];
      ASSERT_EQ(shard.size(), wanted.size());
      for (const auto& [element, origins] : shard) {
        ASSERT_EQ(origins.size(), 1u);
        const Box held = parts.box_at(*origins.begin(), c.shape);
        const auto elements = elements_of(held, c.shape);
        EXPECT_TRUE(std::binary_search(elements.begin(), elements.end(), element));
      }
    }
  }
}

TEST(PlanMove, TrafficIsTheTextbooksWhereAllDividesEvenly) {
  const Mesh mesh = Mesh::parse("x=4");
  const Shape shape{4096};
  const std::size_t bytes = 4096 * 4;
  const std::size_t axes[] = {0};
  const Sharding whole = Sharding::replicated(mesh, 1), parts(mesh, PartitionSpec{{"x"}});
  const MovePlan reduced = plan_move(whole, whole, shape, DType::f32, axes, Reduction::sum);
  EXPECT_EQ(reduced.phases.size(), 2u);
  EXPECT_EQ(sent_bytes(reduced), 2 * 3 * bytes);
  EXPECT_EQ(reduced.traffic.size(), 4u);
  EXPECT_EQ(reduced.traffic[2], (DeviceBytes{2, 2 * 3 * bytes / 4, 2 * 3 * bytes / 4}));
  EXPECT_EQ(sent_bytes(plan_move(whole, parts, shape, DType::f32, axes, Reduction::sum)),
            3 * bytes);
  EXPECT_EQ(sent_bytes(plan_move(parts, whole, shape, DType::f32, axes, Reduction::none)),
            3 * bytes);
  EXPECT_EQ(sent_bytes(plan_move(whole, parts, shape, DType::f32, axes, Reduction::none)), 0u);
  EXPECT_TRUE(plan_move(whole, parts, shape, DType::f32, axes, Reduction::none).traffic.empty());
}

/// Copies of all phases, and targets that get some.
std::pair<std::size_t, std::size_t> copies_and_tasks(const MovePlan& plan) {
  std::size_t copies = 0, tasks = 0;
  for (const MovePhase& phase : plan.phases) {
    for (const MoveGroup& group : phase.groups) {
      copies += group.plan.copies().size();
      for (std::int64_t target = 0; target < std::ssize(group.targets); ++target) {
        tasks += group.plan.copies_to(target).empty() ? 0 : 1;
      }
    }
  }
  return {copies, tasks};
}

TEST(PlanMove, AnAllReduceIsOfFewCopiesAndMovesTheTextbooksBytes) {
  for (const std::size_t doublings : {3u, 6u, 9u}) {
    const std::size_t devices = std::size_t{1} << doublings;
    const auto count = static_cast<std::int64_t>(devices);
    const Sharding whole = Sharding::replicated(Mesh::line(count, "x"), 1);
    const std::size_t axes[] = {0};
    const MovePlan plan = plan_move(whole, whole, {count * 1024}, DType::f32, axes, Reduction::sum);
    const auto [copies, tasks] = copies_and_tasks(plan);
    EXPECT_LE(copies, 8 * devices * doublings) << devices;
    EXPECT_LE(tasks, 2 * devices * doublings) << devices;
    ASSERT_EQ(plan.traffic.size(), devices);
    const std::size_t bytes = 2 * (devices - 1) * 1024 * sizeof(float);
    for (const DeviceBytes& device : plan.traffic) {
      ASSERT_EQ(device, (DeviceBytes{device.device, bytes, bytes}));
    }
  }
}

TEST(PlanMove, AnAllReduceOfManyDevicesAddsUpEachOfThemOnce) {
  for (const std::int64_t devices : {17, 18}) {
    const Sharding whole = Sharding::replicated(Mesh::line(devices, "x"), 1);
    const std::size_t axes[] = {0};
    for (const std::int64_t elements : {0, 1, 1100}) {
      const Shape shape{elements};
      const MovePlan plan = plan_move(whole, whole, shape, DType::f32, axes, Reduction::sum);
      const Shards made = carry_out(plan, whole, whole, shape);
      const std::vector<std::int64_t> all = position_groups(whole.mesh(), axes).front();
      for (const Shard& shard : made) {
        ASSERT_EQ(shard.size(), as_size(elements));
        for (const auto& [element, origins] : shard) {
          ASSERT_EQ(origins, Origins(all.begin(), all.end())) << element;
        }
      }
    }
  }
}

TEST(PlanMove, ClassesAreTheFieldsNames) {
  const Mesh mesh = Mesh::parse("x=2,y=3");
  const Shape shape{12, 12};
  const auto classify = [&](const char* from, const char* to, std::vector<std::size_t> axes,
                            Reduction reduction) {
    const MovePlan plan =
        plan_move(Sharding(mesh, PartitionSpec::parse(from)),
                  Sharding(mesh, PartitionSpec::parse(to)), shape, DType::f32, axes, reduction);
    return plan.phases.front().groups.front().plan.classify();
  };
  EXPECT_EQ(classify("x,y", "x,-", {1}, Reduction::none), TransferClass::all_gather);
  EXPECT_EQ(classify("x,-", "x,y", {1}, Reduction::sum), TransferClass::reduce_scatter);
  EXPECT_EQ(classify("x,y", "x+y,-", {1, 0}, Reduction::none), TransferClass::all_to_all);
  EXPECT_EQ(classify("x,-", "x,y", {1}, Reduction::none), TransferClass::slice);
}

TEST(PlanRedistribution, GoesBetweenMeshes) {
  const Shape shape{7, 5};
  const Sharding from(Mesh::parse("a=2,b=2"), PartitionSpec::parse("a,b"));
  const Sharding to(Mesh::parse("c=3@5,0,2"), PartitionSpec::parse("-,c"));
  const MovePlan plan = plan_redistribution(from, to, shape, DType::f64);
  const Shards made = carry_out(plan, from, to, shape);
  for (std::int64_t position = 0; position < 3; ++position) {
    EXPECT_EQ(made[static_cast<std::size_t>(position)].size(),
              elements_of(to.box_at(position, shape), shape).size());
  }
  std::size_t received = 0;
  for (const DeviceBytes& device : plan.traffic) received += device.received;
  EXPECT_EQ(received, sent_bytes(plan));
  EXPECT_GT(received, 0u);
}

TEST(PlanPermute, ShiftsShardsAndRefusesWhatIsNoPermutation) {
  const Mesh mesh = Mesh::parse("x=3");
  const Sharding sharding(mesh, PartitionSpec{{"x"}});
  const std::int64_t shift[] = {1, 2, -1};
  const MovePlan plan = plan_permute(sharding, {6}, DType::u8, 0, shift);
  ASSERT_EQ(plan.phases.front().groups.size(), 2u);
  EXPECT_THAT(plan.phases.front().groups[0].sources, ElementsAre(0));
  EXPECT_THAT(plan.phases.front().groups[0].targets, ElementsAre(1));
  EXPECT_EQ(sent_bytes(plan), 4u);
  const auto refused = [&](std::vector<std::int64_t> targets, Shape shape) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { plan_permute(sharding, shape, DType::u8, 0, targets); });
  };
  EXPECT_THAT(refused({1, 1, 0}, {6}), HasSubstr("device 1 along the axis receives twice"));
  EXPECT_THAT(refused({1, 0}, {6}), HasSubstr("2 targets for 3 devices"));
  EXPECT_THAT(refused({1, 3, 0}, {6}), HasSubstr("device 1 sends to 3"));
  EXPECT_THAT(refused({2, 0, 1}, {5}), AllOf(HasSubstr("[2]"), HasSubstr("[1]")));
}

}  // namespace
}  // namespace shardwise
