#include "shardwise/shard/notation/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "testing/errors.h"
#include "testing/random_placements.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Placements placements_of(const char* mesh, const char* text) {
  return Placements::parse(Mesh::parse(mesh), text);
}

Sharding sharding_of(const char* mesh, const char* spec, const char* policy = "ceil") {
  return Sharding(Mesh::parse(mesh), PartitionSpec::parse(spec), UnevenPolicy::parse(policy));
}

// Every device holds the same indices of each dim, found out one by one. A policy that refuses the
// shape holds something else.

std::vector<IndexRun> runs_along(const Sharding& sharding, std::size_t dim, const Shape& shape,
                                 std::int64_t position) {
  const Box box = sharding.box_at(position, shape);
  if (box.extent(dim) == 0) return {};
  return {{box.begin(dim), box.end(dim)}};
}

std::vector<IndexRun> runs_along(const Placements& placements, std::size_t dim, const Shape& shape,
                                 std::int64_t position) {
  return runs_of(chunked_elements(placements, dim, shape[dim], position));
}

template <class A, class B>
bool same_everywhere(const A& a, const B& b, const Shape& shape) {
  try {
    for (std::int64_t p = 0; p < a.mesh().size(); ++p) {
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        if (runs_along(a, dim, shape, p) != runs_along(b, dim, shape, p)) return false;
      }
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The verdict is what looking at every element says.
template <class From, class To>
void expect_true(const From& from, const Conversion<To>& conversion, const Shape& shape) {
  const bool same = conversion.verdict == Verdict::same;
  EXPECT_EQ(conversion.reason.empty(), same) << conversion.reason;
  EXPECT_EQ(conversion.result.has_value(), conversion.verdict != Verdict::not_expressible);
  if (!conversion.result) return;
  EXPECT_EQ(same_everywhere(from, *conversion.result, shape), same) << conversion.reason;
  EXPECT_TRUE(same_everywhere(from, *conversion.result, conversion.shape)) << conversion.reason;
  EXPECT_EQ(conversion.shape == shape, same);
}

TEST(Convert, AnswersAsInTheHeader) {
  const Placements placements = placements_of("a=2,b=2", "S(0),S(0)");
  EXPECT_EQ(to_sharding(placements, {4}).result->spec(), PartitionSpec::parse("a+b"));
  EXPECT_EQ(to_sharding(placements, {5}).verdict, Verdict::same_after_padding);
  EXPECT_EQ(to_sharding(placements, {5}, UnevenPolicy::nested_chunk()).verdict, Verdict::same);
  EXPECT_EQ(name(Verdict::same), "same placement");
  EXPECT_EQ(name(Verdict::same_after_padding), "same after padding");
  EXPECT_EQ(name(Verdict::not_expressible), "not expressible");
}

TEST(Convert, PlacementsBecomeTheSpecOfEvenShapes) {
  const struct {
    const char* mesh;
    const char* placements;
    const char* spec;
  } cases[] = {
      {"2,4", "R,S(0)", "1,-,-"},
      {"2,4", "S(0),R", "0,-,-"},
      {"2,4", "R,S(1)", "-,1,-"},
      {"8", "R", "-,-,-"},
      {"2,4", "S(0),S(0)", "0+1,-,-"},
      {"2,4", "S(2),S(0)", "1,-,0"},
      {"a=4,b=2", "StridedShard(0, split=2),S(0)", "b+a,-,-"},
      {"a=2,b=2,c=2", "StridedShard(0, split=4),S(0),S(0)", "b+c+a,-,-"},
      {"a=2,b=2,c=2", "StridedShard(0, split=2),S(0),S(0)", "b+a+c,-,-"},
      {"a=2,b=2,c=2", "StridedShard(0, split=4),StridedShard(0, split=2),S(0)", "c+b+a,-,-"},
      {"a=2,b=2,c=2", "StridedShard(0, split=2),S(1),S(0)", "c+a,b,-"},
      {"a=2,b=1,c=2", "S(0),StridedShard(0, split=7),S(0)", "a+b+c,-,-"},
      {"a=2,b=8", "StridedShard(0, split=2),S(0)", "b:(1)2+a+b:(2)4,-,-"},
      {"a=2,b=2", "StridedShard(0, split=1),S(0)", "a+b,-,-"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.placements);
    const Placements placements = placements_of(c.mesh, c.placements);
    const Shape shape{32, 32, 32};
    const Conversion<Sharding> conversion = to_sharding(placements, shape);
    EXPECT_EQ(conversion.verdict, Verdict::same) << conversion.reason;
    ASSERT_TRUE(conversion.result);
    EXPECT_EQ(conversion.result->spec().to_string(), c.spec);
    expect_true(placements, conversion, shape);
    const Conversion<Placements> back = to_placements(*conversion.result, shape);
    EXPECT_EQ(back.verdict, Verdict::same);
    EXPECT_TRUE(same_everywhere(placements, *back.result, shape));
  }
}

TEST(Convert, ShardingsBecomePlacements) {
  const struct {
    const char* mesh;
    const char* spec;
    const char* placements;
  } cases[] = {
      {"a=2,b=4", "a+b", "S(0),S(0)"},
      {"a=2,b=4", "b+a", "StridedShard(0, split=4),S(0)"},
      {"a=2,b=4", "b,a", "S(1),S(0)"},
      {"a=2,b=4", "-,-", "R,R"},
      {"a=1,b=4", "b+a", "S(0),S(0)"},
      {"a=2,b=2,c=3", "c+a,b", "StridedShard(0, split=3),S(1),S(0)"},
      {"a=2,b=2,c=3", "c+b+a", "StridedShard(0, split=6),StridedShard(0, split=3),S(0)"},
      {"a=2,b=4", "b:(1)2+a+b:(2)2", "StridedShard(0, split=2),S(0)"},
      {"a=4,b=2", "a:(1)2+a:(2)2", "S(0),R"},
      {"", "-", ""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spec);
    const Sharding sharding = sharding_of(c.mesh, c.spec);
    const Shape shape = Shape::filled(sharding.rank(), 24);
    const Conversion<Placements> conversion = to_placements(sharding, shape);
    EXPECT_EQ(conversion.verdict, Verdict::same) << conversion.reason;
    ASSERT_TRUE(conversion.result);
    EXPECT_EQ(conversion.result->to_string(), c.placements);
    expect_true(sharding, conversion, shape);
  }
}

TEST(Convert, SaysWhatCannotBeSaid) {
  const auto reason = [](const auto& conversion) {
    EXPECT_EQ(conversion.verdict, Verdict::not_expressible);
    EXPECT_FALSE(conversion.result);
    return conversion.reason;
  };
  EXPECT_THAT(reason(to_sharding(placements_of("x=2,y=4", "P(max),S(0)"), {8})),
              HasSubstr("axis \"x\" has P(max): a spec says where values lie"));
  EXPECT_THAT(
      reason(to_sharding(placements_of("x=2,y=4", "StridedShard(1, split=3),S(1)"), {5, 24})),
      AllOf(HasSubstr("axis \"x\" has StridedShard(1, split=3), but no parts of the later "
                      "axes of dim 1, \"y\", multiply to 3"),
            HasSubstr("dim 1 of extent 24 is cut 8 ways by axes \"x+y\": position 1 holds "
                      "[3:6] by policy ceil, several runs by StridedShard")));
  EXPECT_THAT(
      reason(to_placements(sharding_of("x=8", "x:(2)4"), {8})),
      HasSubstr("axis \"x\" of size 8 is used as \"x:(2)4\", of dim 0; a placement gives all"));
  EXPECT_THAT(reason(to_placements(sharding_of("x=4,y=2", "x:(1)2,x:(2)2"), {8, 8})),
              HasSubstr("axis \"x\" of size 4 is used as \"x:(1)2+x:(2)2\""));
  EXPECT_THAT(reason(to_placements(sharding_of("x=4,y=2", "x:(1)2+y+x:(2)2"), {8})),
              HasSubstr("with no later axis between its parts"));
  EXPECT_THAT(reason(to_placements(sharding_of("x=4", "x:(2)2+x:(1)2"), {8})),
              HasSubstr("\"x:(2)2+x:(1)2\""));
  EXPECT_THAT(reason(to_placements(sharding_of("x=2", "x", "sizes:5+3"), {8})),
              HasSubstr("position 0 holds [0:5] by policy sizes:5+3, [0:4] by S(0)"));
}

TEST(Convert, SaysWhatPaddingHelps) {
  const Placements placements = placements_of("a=2,b=2", "S(1),S(1)");
  const Conversion<Sharding> conversion = to_sharding(placements, {3, 5});
  EXPECT_EQ(conversion.verdict, Verdict::same_after_padding);
  EXPECT_EQ(conversion.shape, (Shape{3, 8}));
  EXPECT_EQ(
      conversion.reason,
      "dim 1 of extent 5 is cut 4 ways by axes \"a+b\": position 1 holds [2:4] by policy ceil, "
      "[2:3] by S(1),S(1); padded to [3, 8], both are the same");
  EXPECT_EQ(
      to_sharding(placements, {3, 5}, UnevenPolicy::strict()).reason,
      "dim 1 of extent 5 is cut 4 ways by axes \"a+b\": policy strict does not allow it; padded "
      "to [3, 8], both are the same");
  EXPECT_EQ(to_sharding(placements, {3, 5}, UnevenPolicy::parse("sizes:-,2+1+1+1")).verdict,
            Verdict::same);
}

TEST(Convert, ChecksWhatItIsGiven) {
  const auto code = ErrorCode::invalid_argument;
  const Placements placements = placements_of("2", "S(1)");
  EXPECT_THAT(message_of(code, [&] { to_sharding(placements, {4}); }), HasSubstr("S(1)"));
  const Sharding strict = sharding_of("2", "0", "strict");
  EXPECT_THAT(message_of(code, [&] { to_placements(strict, {5}); }), HasSubstr("strict"));
  EXPECT_THAT(
      message_of(code, [] { to_sharding(placements_of("4,3", "S(0),S(0)"), {(1ULL << 63) - 1}); }),
      HasSubstr("padded to a multiple of 12, is over 2^63 - 1"));
}

TEST(Convert, HugeMeshesAreProvedOrRefused) {
  const Placements huge = placements_of("1073741824,1073741824", "S(0),S(0)");
  EXPECT_EQ(to_sharding(huge, {std::int64_t{1} << 62}).verdict, Verdict::same);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { to_sharding(huge, {5}); }),
              HasSubstr("dim 0 of extent 5 is cut 1152921504606846976 ways; compared are at most"));
}

UnevenPolicy random_policy(RandomPlacements& random) {
  const UnevenPolicy policies[] = {UnevenPolicy::ceil(), UnevenPolicy::strict(),
                                   UnevenPolicy::nested_chunk(), UnevenPolicy::balanced()};
  return policies[random.draw(0, 3)];
}

/// Whether some order of the axes gives the placements, if everything divides evenly.
bool some_order_fits(const Placements& placements, std::size_t rank) {
  const Mesh& mesh = placements.mesh();
  const Shape shape = Shape::filled(rank, mesh.size() * 24);
  for (std::size_t dim = 0; dim < rank; ++dim) {
    std::vector<std::size_t> axes;
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      const Placement& placement = placements.list()[axis];
      if (placement.cuts() && placement.dim == dim) axes.push_back(axis);
    }
    bool fits = false;
    do {
      std::vector<PartitionSpec::Entry> entries(rank);
      for (const std::size_t axis : axes) entries[dim].push_back(std::to_string(axis));
      const Sharding sharding(mesh, PartitionSpec(entries));
      bool same = true;
      for (std::int64_t p = 0; same && p < mesh.size(); ++p) {
        same = runs_along(sharding, dim, shape, p) == runs_along(placements, dim, shape, p);
      }
      fits |= same;
    } while (!fits && std::next_permutation(axes.begin(), axes.end()));
    if (!fits) return false;
  }
  return true;
}

TEST(Convert, VerdictsOnPlacementsAreWhatEveryElementSays) {
  RandomPlacements random(77);
  int count[3] = {};
  for (int n = 0; n < 3000 && !testing::Test::HasFailure(); ++n) {
    const auto rank = static_cast<std::size_t>(random.draw(1, 3));
    const Placements placements = random.placements(random.mesh(), rank);
    if (placements.mesh().size() > 64) continue;
    const Shape shape = random.shape(placements, rank);
    SCOPED_TRACE(placements.mesh().to_string() + ": " + placements.to_string() + " of " +
                 to_string(shape));
    const auto conversion = to_sharding(placements, shape, random_policy(random));
    expect_true(placements, conversion, shape);
    ++count[static_cast<int>(conversion.verdict)];
    if (conversion.verdict == Verdict::not_expressible && placements.mesh().size() <= 24) {
      EXPECT_FALSE(some_order_fits(placements, rank)) << conversion.reason;
    }
    if (!conversion.result) continue;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      const std::int64_t ways = conversion.result->tiles(dim);
      EXPECT_EQ(conversion.shape[dim], conversion.verdict == Verdict::same
                                           ? shape[dim]
                                           : (shape[dim] + ways - 1) / ways * ways);
    }
  }
  for (const int c : count) EXPECT_GT(c, 200);
}

TEST(Convert, VerdictsOnShardingsAreWhatEveryElementSays) {
  RandomShardings random(78);
  RandomPlacements draws(79);
  int count[3] = {};
  for (int n = 0; n < 6000 && !testing::Test::HasFailure(); ++n) {
    const auto rank = static_cast<std::size_t>(random.draw(0, 3));
    const Sharding drawn = random.sharding(rank);
    const Sharding sharding(drawn.mesh(), drawn.spec(), random_policy(draws));
    const Shape shape = random.shape(rank);
    SCOPED_TRACE(sharding.to_string() + " of " + to_string(shape));
    try {
      sharding.shard_shape(shape);
    } catch (const Error&) {
      continue;  // uneven, and strict
    }
    const auto placements = to_placements(sharding, shape);
    expect_true(sharding, placements, shape);
    EXPECT_NE(placements.verdict, Verdict::not_expressible) << placements.reason;
    ++count[static_cast<int>(placements.verdict)];
  }
  EXPECT_GT(count[0], 2000);
  EXPECT_GT(count[1], 200);
}

TEST(Convert, PartsOfAxesBecomePlacementsWhereverTheyCan) {
  // Against all placements with all split factors, for a shape that divides by everything.
  const char* const specs[] = {"x:(1)2",        "x:(2)2",          "x:(1)2+y+x:(2)2",
                               "x:(1)2+x:(2)2", "y+x:(1)2+x:(2)2", "x:(1)2+x:(2)2+y",
                               "x:(2)2+x:(1)2", "y:(1)2+x+y:(2)2", "y:(1)2+y:(2)2+x",
                               "x:(1)2+y",      "y:(2)2+x+y:(1)2", "x+y:(1)2"};
  const Shape shape{64};
  int expressible = 0;
  for (const char* const mesh : {"x=4,y=2", "y=2,x=4", "x=2,y=4", "y=4,x=2", "x=4,y=4"}) {
    for (const char* const text : specs) {
      SCOPED_TRACE(std::string(mesh) + " " + text);
      const Mesh on = Mesh::parse(mesh);
      const PartitionSpec spec = PartitionSpec::parse(text);
      if (spec.to_string().find("x:") != std::string::npos && on.axis_size("x") == 2) continue;
      if (spec.to_string().find("y:") != std::string::npos && on.axis_size("y") == 2) continue;
      const Sharding sharding(on, spec);
      std::vector<Placement> choices = {Placement::replicate()};
      for (std::int64_t k = 1; k <= 16; ++k) choices.push_back(Placement::strided_shard(0, k));
      bool found = false;
      for (const Placement& a : choices) {
        for (const Placement& b : choices) {
          found |= same_everywhere(sharding, Placements(on, {a, b}), shape);
        }
      }
      const auto conversion = to_placements(sharding, shape);
      EXPECT_EQ(conversion.verdict == Verdict::same, found) << conversion.reason;
      expect_true(sharding, conversion, shape);
      expressible += found ? 1 : 0;
    }
  }
  EXPECT_GT(expressible, 5);
}

}  // namespace
}  // namespace shardwise
