#include "shardwise/shard/view/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "testing/errors.h"
#include "testing/make_sharding.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = SpecProblem::Kind;

SpecAdvice advise_on(const char* mesh, const char* spec, std::optional<Shape> shape,
                     const char* policy = "strict") {
  return advise(Mesh::parse(mesh), PartitionSpec::parse(spec), shape, UnevenPolicy::parse(policy));
}

std::vector<std::string> texts(const std::vector<PartitionSpec>& specs) {
  std::vector<std::string> result;
  for (const PartitionSpec& spec : specs) result.push_back(spec.to_string());
  return result;
}

TEST(Advise, NamesTheNearestFreeAxis) {
  const SpecAdvice advice = advise_on("data=4,model=2,pipe=3", "data,modle", Shape{8, 6});
  ASSERT_EQ(advice.problems.size(), 1u);
  const SpecProblem& problem = advice.problems[0];
  EXPECT_EQ(problem.kind, Kind::unknown_axis);
  EXPECT_EQ(problem.dim, 1u);
  EXPECT_THAT(problem.axes, ElementsAre("modle"));
  EXPECT_THAT(problem.other_axes, ElementsAre("model", "pipe"));
  EXPECT_THAT(problem.what, AllOf(HasSubstr("dim 1"), HasSubstr("modle")));
  EXPECT_THAT(texts(advice.specs), ElementsAre("data,model", "data,pipe", "data,-"));
  EXPECT_THAT(advice.shapes, IsEmpty());
}

TEST(Advise, OffersOtherAxesForOneThatIsUsedTwice) {
  const SpecAdvice advice = advise_on("x=8,y=2", "x:(1)2,x", std::nullopt);
  ASSERT_EQ(advice.problems.size(), 1u);
  EXPECT_EQ(advice.problems[0].kind, Kind::used_twice);
  EXPECT_THAT(advice.problems[0].other_axes, ElementsAre("y", "x:(2)4"));
  EXPECT_THAT(texts(advice.specs), ElementsAre("x:(1)2,y", "x:(1)2,x:(2)4", "x:(1)2,-"));
  const SpecAdvice part = advise_on("x=8", "x:(1)3", std::nullopt);
  ASSERT_EQ(part.problems.size(), 1u);
  EXPECT_EQ(part.problems[0].kind, Kind::bad_part);
  EXPECT_THAT(texts(part.specs), ElementsAre("x", "-"));
}

TEST(Advise, FindsAxesAndExtentsThatDivide) {
  const SpecAdvice advice = advise_on("x=8,y=3", "x,-", Shape{12, 5});
  ASSERT_EQ(advice.problems.size(), 1u);
  const SpecProblem& problem = advice.problems[0];
  EXPECT_EQ(problem.kind, Kind::uneven);
  EXPECT_EQ(problem.extent, 12);
  EXPECT_EQ(problem.ways, 8);
  EXPECT_THAT(problem.what, HasSubstr("8 or 16"));
  EXPECT_THAT(texts(advice.specs), ElementsAre("x:(1)4,-", "y,-", "-,-"));
  EXPECT_THAT(advice.shapes, ElementsAre(Shape({8, 5}), Shape({16, 5})));
  EXPECT_THAT(advice.to_string(), AllOf(HasSubstr("dim 0 has extent 12 over axes \"x\", 8 ways"),
                                        HasSubstr("valid is the shape [16, 5]\n")));
  // A subset of the axes, where there is nothing else.
  EXPECT_THAT(texts(advise_on("a=3,b=2", "a+b", Shape{4}).specs), ElementsAre("b", "-"));
  // No smaller extent if that is 0; no larger one if it would overflow.
  EXPECT_THAT(advise_on("4", "0", Shape{3}).shapes, ElementsAre(Shape{4}));
  EXPECT_THAT(advise_on("4", "0", Shape{INT64_MAX}).shapes, ElementsAre(Shape{INT64_MAX - 3}));
}

TEST(Advise, FillsUpOrCutsOffSpecsOfAnotherRank) {
  const SpecAdvice shorter = advise_on("x=2", "x", Shape{4, 5});
  ASSERT_EQ(shorter.problems.size(), 1u);
  EXPECT_EQ(shorter.problems[0].kind, Kind::rank);
  EXPECT_THAT(texts(shorter.specs), ElementsAre("x,-"));
  EXPECT_THAT(texts(advise_on("x=2", "x,-,-", Shape{4}).specs), ElementsAre("x"));
  EXPECT_THAT(texts(advise_on("x=2", "x", Shape{}).specs), ElementsAre(""));
}

TEST(Advise, ReportsAllThatIsWrong) {
  const SpecAdvice advice = advise_on("data=4,model=2", "data+model,dat,data", Shape{12, 5});
  std::vector<Kind> kinds;
  for (const SpecProblem& problem : advice.problems) kinds.push_back(problem.kind);
  EXPECT_THAT(kinds, ElementsAre(Kind::rank, Kind::uneven, Kind::unknown_axis, Kind::used_twice));
  EXPECT_FALSE(advice.specs.empty());
  const SpecAdvice sizes = advise_on("2", "0", Shape{4}, "sizes:1+2");
  ASSERT_EQ(sizes.problems.size(), 1u);
  EXPECT_EQ(sizes.problems[0].kind, Kind::tile_sizes);
  EXPECT_THAT(sizes.specs, IsEmpty());
  EXPECT_EQ(advise_on("2", "0", Shape{4}).to_string(), "the spec is valid\n");
  EXPECT_THAT(advise_on("2", "0", Shape{5}, "ceil").problems, IsEmpty());
  message_of(ErrorCode::invalid_argument, [] { advise_on("2", "0", Shape{-4}); });
}

TEST(Advise, NamesWhatIsValidAndFindsWhatIsNot) {
  RandomShardings random(71);
  const char* const odd[] = {"nowhere", "9", "0", "1", "0:(1)2", "1:(2)3", "a"};
  int wrong = 0, named = 0;
  for (int round = 0; round < 2000; ++round) {
    const Mesh mesh = random.mesh();
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const PartitionSpec valid = random.spec_with_parts(mesh, rank);
    std::vector<PartitionSpec::Entry> entries;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      entries.push_back(valid[dim]);
      if (random.draw(0, 2) > 0) continue;
      const auto place = random.draw(0, static_cast<std::int64_t>(entries[dim].size()));
      entries[dim].insert(entries[dim].begin() + place, odd[random.draw(0, 6)]);
    }
    if (random.draw(0, 9) == 0) entries.emplace_back();
    const PartitionSpec spec(entries);
    std::optional<Shape> shape;
    if (random.draw(0, 3) > 0) shape = random.shape(rank);
    const UnevenPolicy policy =
        random.draw(0, 2) == 0 ? UnevenPolicy::ceil() : UnevenPolicy::strict();
    const auto check = [&](const PartitionSpec& s, const std::optional<Shape>& tensor) {
      const Sharding sharding(mesh, s, policy);
      if (tensor) sharding.shard_shape(*tensor);
    };
    SCOPED_TRACE(spec.to_string() + " on " + mesh.to_string() + " for " +
                 (shape ? to_string(*shape) : "any"));
    const SpecAdvice advice = advise(mesh, spec, shape, policy);
    if (advice.problems.empty()) {
      ASSERT_NO_THROW(check(spec, shape));
      ASSERT_THAT(advice.specs, IsEmpty());
      continue;
    }
    ++wrong;
    ASSERT_THROW(check(spec, shape), Error);
    ASSERT_FALSE(advice.specs.empty());
    ASSERT_LE(advice.specs.size(), 5u);
    for (const PartitionSpec& other : advice.specs) ASSERT_NO_THROW(check(other, shape));
    for (const Shape& other : advice.shapes) {
      ASSERT_NO_THROW(check(spec, other));
      ++named;
    }
  }
  EXPECT_GT(wrong, 500);
  EXPECT_GT(named, 100);
}

TEST(ExplainReshard, SaysWhoKeepsFetchesAndDropsWhat) {
  const ReshardExplanation change =
      explain_reshard(make_sharding("0,-", "2"), make_sharding("-,0", "2"), {4, 6});
  EXPECT_EQ(change.transfer, TransferClass::all_to_all);
  EXPECT_TRUE(change.needs_communication());
  EXPECT_EQ(change.kept, 12);
  EXPECT_EQ(change.fetched, 12);
  EXPECT_EQ(change.dropped, 12);
  ASSERT_EQ(change.devices.size(), 2u);
  EXPECT_THAT(change.devices[1].fetches, ElementsAre(DeviceChange::Fetch{0, 6}));
  EXPECT_EQ(change.to_string(4, 1), R"(all_to_all: communication is needed
in all: kept 12 elements (48 B), fetched 12 elements (48 B), dropped 12 elements (48 B)
device 0: keeps 6 elements (24 B), fetches 6 elements (24 B): 6 from 1; drops 6 elements (24 B)
and 1 more devices
)");
  EXPECT_THAT(
      explain_reshard(make_sharding("-", "2"), make_sharding("0", "2"), {4}).to_string(1),
      HasSubstr("slice: no communication: each device already has the elements that it needs"));
  EXPECT_THAT(
      explain_reshard(make_sharding("a", "a=2,b=2"), make_sharding("0", "2,2"), {4}).to_string(1),
      HasSubstr("nothing: no communication: both place every element alike"));
}

TEST(ExplainReshard, AgreesWithTheBoxes) {
  RandomShardings random(72);
  int silent = 0;
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random.shape(static_cast<std::size_t>(random.draw(0, 3)));
    const Mesh mesh = random.mesh(), other = random.draw(0, 2) == 0 ? random.mesh() : mesh;
    const Sharding from = random.sharding(mesh, random.spec_with_parts(mesh, shape.size()), shape);
    const Sharding to = random.sharding(other, random.spec_with_parts(other, shape.size()), shape);
    SCOPED_TRACE(from.to_string() + " to " + to.to_string() + " of " + to_string(shape));
    const ReshardExplanation change = explain_reshard(from, to, shape);
    std::int64_t kept = 0, fetched = 0, dropped = 0;
    DeviceId last = -1;
    for (const DeviceChange& device : change.devices) {
      ASSERT_GT(device.device, last);
      last = device.device;
      const auto in_from = from.mesh().position_of(last), in_to = to.mesh().position_of(last);
      ASSERT_TRUE(in_from || in_to);
      const std::int64_t had = in_from ? from.box_at(*in_from, shape).num_elements() : 0;
      const std::int64_t needs = in_to ? to.box_at(*in_to, shape).num_elements() : 0;
      const std::int64_t both =
          in_from && in_to
              ? intersect(from.box_at(*in_from, shape), to.box_at(*in_to, shape)).num_elements()
              : 0;
      ASSERT_EQ(device.kept, both);
      ASSERT_EQ(device.fetched, needs - both);
      ASSERT_EQ(device.dropped, had - both);
      std::int64_t from_others = 0;
      for (const DeviceChange::Fetch& fetch : device.fetches) {
        ASSERT_NE(fetch.from, last);
        ASSERT_TRUE(from.mesh().position_of(fetch.from));
        from_others += fetch.elements;
      }
      ASSERT_EQ(from_others, device.fetched);
      kept += both;
      fetched += needs - both;
      dropped += had - both;
    }
    ASSERT_EQ(change.kept, kept);
    ASSERT_EQ(change.fetched, fetched);
    ASSERT_EQ(change.dropped, dropped);
    ASSERT_EQ(change.fetched, TransferPlan::reshard(from, to, shape).moved_elements());
    silent += !change.needs_communication() && !change.same_placement ? 1 : 0;
  }
  EXPECT_GT(silent, 100);
}

}  // namespace
}  // namespace shardwise
