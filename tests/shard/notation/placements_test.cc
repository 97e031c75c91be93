#include "shardwise/shard/notation/placements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kLongExtent = std::int64_t{1} << 60;

Placements parse(const char* mesh, const std::string& text) {
  return Placements::parse(Mesh::parse(mesh), text);
}

TEST(Placements, AnswersAsInTheHeader) {
  const Placements placements = parse("2,2", "S(0),S(0)");
  EXPECT_EQ(placements.local_shape(1, {5, 8}), (Shape{1, 8}));
  EXPECT_EQ(placements.box_at(1, {5, 8}), Box({2, 0}, {3, 8}));
}

TEST(Placements, CutUnevenDimsAxisByAxis) {
  const Placements placements = parse("4,2", "S(0),S(0)");
  const struct {
    Shape shape;
    std::vector<std::int64_t> sizes, offsets;
  } cases[] = {
      {{18}, {3, 2, 3, 2, 3, 2, 2, 1}, {0, 3, 5, 8, 10, 13, 15, 17}},
      {{13}, {2, 2, 2, 2, 2, 2, 1, 0}, {0, 2, 4, 6, 8, 10, 12, 13}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(to_string(c.shape));
    for (std::int64_t position = 0; position < 8; ++position) {
      const auto i = static_cast<std::size_t>(position);
      EXPECT_EQ(placements.local_shape(position, c.shape)[0], c.sizes[i]);
      EXPECT_EQ(placements.box_at(position, c.shape)->begin(0), c.offsets[i]);
    }
  }
}

TEST(Placements, StridedShardsLetALaterAxisBeTheMajorOne) {
  const Placements placements = parse("4,2", "StridedShard(0, split=2),S(0)");
  const std::int64_t sizes[] = {2, 2, 2, 2, 2, 2, 2, 1};
  const std::int64_t offsets[] = {0, 8, 2, 10, 4, 12, 6, 14};
  for (std::int64_t position = 0; position < 8; ++position) {
    EXPECT_EQ(placements.local_shape(position, {15, 5}), (Shape{sizes[position], 5}));
    EXPECT_EQ(placements.runs_at(position, {15, 5})[0].front().begin, offsets[position]);
  }
}

TEST(Placements, StridedShardsHoldSeveralRuns) {
  const Placements placements = parse("5", "StridedShard(1, split=3)");
  EXPECT_THAT(
      placements.runs_at(0, {7, 4}),
      ElementsAre(ElementsAre(IndexRun{0, 7}), ElementsAre(IndexRun{0, 1}, IndexRun{2, 3})));
  EXPECT_EQ(placements.box_at(0, {7, 4}), std::nullopt);
  EXPECT_EQ(placements.local_shape(0, {7, 4}), (Shape{7, 2}));
  EXPECT_EQ(placements.box_at(2, {7, 4}), Box({0, 4}, {7, 4}));
  EXPECT_TRUE(placements.runs_at(2, {7, 4})[1].empty());
}

TEST(Placements, TextGoesBothWays) {
  const struct {
    const char* mesh;
    const char* text;
    const char* printed;
  } cases[] = {
      {"", "", ""},
      {"", "()", ""},
      {"2,2", "S(0),R", "S(0),R"},
      {"2,2", " S( 0 ) , R ", "S(0),R"},
      {"2,2", "(Shard(dim=0), Replicate())", "S(0),R"},
      {"2", "(Shard(1),)", "S(1)"},
      {"2,2", "[Replicate(), Partial(sum)]", "R,P(sum)"},
      {"2,2", "P,Partial()", "P(sum),P(sum)"},
      {"2,2", "P('max'),Partial(reduce_op=max)", "P(max),P(max)"},
      {"2,2,2", "P(avg),R,P(sum)", "P(avg),R,P(sum)"},
      {"2,2", "P(product),P(product)", "P(product),P(product)"},
      {"2", "P(min)", "P(min)"},
      {"2", "_S(0, 2)", "StridedShard(0, split=2)"},
      {"2", "_StridedShard(dim=3, split_factor=2)", "StridedShard(3, split=2)"},
      {"2", "_StridedShard(dim=0, sf=2)", "StridedShard(0, split=2)"},
      {"2", "StridedShard(0,split=1)", "StridedShard(0, split=1)"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const Placements placements = parse(c.mesh, c.text);
    EXPECT_EQ(placements.to_string(), c.printed);
    EXPECT_EQ(parse(c.mesh, c.printed), placements);
  }
}

TEST(Placements, RandomOnesGoBothWaysAsText) {
  std::mt19937 random(1);
  const auto draw = [&random](std::uint32_t below) {
    return static_cast<std::uint32_t>(random() % below);
  };
  for (int n = 0; n < 1000; ++n) {
    std::vector<Axis> axes(draw(5), Axis{"", 2});
    std::vector<Placement> list;
    const auto op = static_cast<PartialOp>(draw(5));
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      const Placement choices[] = {Placement::replicate(), Placement::shard(draw(17)),
                                   Placement::strided_shard(draw(3), 1 + std::int64_t{draw(~0u)}),
                                   Placement::partial(op)};
      list.push_back(choices[draw(4)]);
    }
    const Placements placements(Mesh(axes), list);
    EXPECT_EQ(Placements::parse(placements.mesh(), placements.to_string()), placements);
  }
}

TEST(Placements, ParseSaysWhatIsWrong) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"S(-1),R", "found \"-1),R\" at character 2; needed is a dim counted from the front"},
      {"Shard(dim=-1),R", "at character 10; needed is a dim counted from the front"},
      {"S(0)", "there are 1 for the 2 axes of mesh \"2,2\"; needed is one per axis"},
      {"S(0),R,R", "there are 3 for the 2 axes"},
      {"S(0) R", "at character 5; needed is ','"},
      {"S(0),", "found the end at character 5; needed is a placement"},
      {",R", "at character 0; needed is a placement"},
      {"(S(0),R", "found the end at character 7; needed is ','"},
      {"(S(0),R]", "found \"]\""},
      {"S(0),R)", "found \")\""},
      {"S,R", "needed is '('"},
      {"S(x),R", "needed is a number"},
      {"S(9223372036854775808),R", "needed is a number from 0 to 2^63 - 1"},
      {"SS(0),R", "at character 0; needed is a placement"},
      {"s(0),R", "at character 0; needed is a placement"},
      {"P(mean),R", "at character 2; needed is sum, avg, product, max or min"},
      {"P(\"mean\"),R", "needed is sum, avg, product, max or min"},
      {"P(sum),P(max)", "axis \"1\" has P(max) after P(sum); needed is one kind"},
      {"StridedShard(0),R", "needed is ','"},
      {"_S(0, 0),R", "axis \"0\" has split factor 0; needed is at least 1"},
      {"_S(0, -2),R", "needed is a number"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { parse("2,2", c.text); }),
                HasSubstr(c.message));
  }
}

TEST(Placements, ShapesMustHaveTheDimsThatAreCut) {
  const Placements placements = parse("x=2,y=2", "R,S(2)");
  const auto needed = AllOf(HasSubstr("shape [4, 4]"), HasSubstr("axis \"y\" has S(2)"),
                            HasSubstr("needed is a dim below 2"));
  const auto code = ErrorCode::invalid_argument;
  EXPECT_THAT(message_of(code, [&] { placements.local_shape(0, {4, 4}); }), needed);
  EXPECT_THAT(message_of(code, [&] { placements.box_at(0, {4, 4}); }), needed);
  EXPECT_THAT(message_of(code, [&] { placements.runs_at(0, {4, 4}); }), needed);
  EXPECT_THAT(message_of(code,
                         [&] {
                           placements.box_at(0, {4, 4, -1});
                         }),
              HasSubstr("dim 2 has extent -1; needed is at least 0"));
}

TEST(Placements, PartialAndScalarTensorsAreWhole) {
  const Placements partial = parse("2,2", "P(sum),R");
  EXPECT_TRUE(partial.is_partial());
  EXPECT_EQ(partial.box_at(3, {4}), Box({0}, {4}));
  EXPECT_FALSE(parse("2,2", "S(0),R").is_partial());
  EXPECT_EQ(parse("2", "R").box_at(1, {}), Box());
}

TEST(Placements, HugeExtentsAndSplitFactorsTakeNoTime) {
  // One element of each chunk goes to device 0: all of them, and side by side.
  const Placements singles = parse("4", "_S(0, 1152921504606846976)");
  EXPECT_EQ(singles.box_at(0, {kLongExtent}), Box({0}, {kLongExtent}));
  EXPECT_EQ(singles.box_at(1, {kLongExtent}), Box({kLongExtent}, {kLongExtent}));
  EXPECT_THAT(singles.runs_at(0, {kLongExtent})[0], ElementsAre(IndexRun{0, kLongExtent}));

  const Placements halves = parse("2,2", "_S(0, 2),_S(0, 1152921504606846976)");
  EXPECT_EQ(halves.local_shape(3, {kLongExtent}), (Shape{0}));
  EXPECT_THAT(halves.runs_at(2, {kLongExtent})[0],
              ElementsAre(IndexRun{kLongExtent / 4, kLongExtent / 2},
                          IndexRun{kLongExtent / 4 * 3, kLongExtent}));

  const Placements last = parse("2305843009213693952,2", "S(0),_S(0, 9223372036854775807)");
  EXPECT_EQ(last.box_at(last.mesh().size() - 1, {kLongExtent}), Box({kLongExtent}, {kLongExtent}));
  EXPECT_EQ(last.box_at(0, {kLongExtent}), Box({0}, {1}));
}

TEST(Placements, MeshesMayHaveManyAxes) {
  const Placements ones(Mesh(std::vector<Axis>(200, Axis{"", 1})),
                        std::vector<Placement>(200, Placement::strided_shard(0, 2)));
  EXPECT_EQ(ones.box_at(0, {kLongExtent}), Box({0}, {kLongExtent}));
  const Placements twos(Mesh(std::vector<Axis>(62, Axis{"", 2})),
                        std::vector<Placement>(62, Placement::shard(0)));
  EXPECT_EQ(twos.box_at(4 * 5 + 1, {kLongExtent}), Box({kLongExtent}, {kLongExtent}));
  EXPECT_EQ(twos.box_at(4 * 5, {kLongExtent}), Box({5}, {6}));
}

TEST(Placements, TooManyRunsAreAnError) {
  const Placements pairs = parse("2", "_S(0, 576460752303423488)");
  EXPECT_EQ(pairs.local_shape(1, {kLongExtent}), (Shape{kLongExtent / 2}));
  EXPECT_EQ(pairs.box_at(1, {kLongExtent}), std::nullopt);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { pairs.runs_at(1, {kLongExtent}); }),
              HasSubstr("more than 1048576 runs of a dim of extent 1152921504606846976"));
  EXPECT_EQ(pairs.runs_at(1, {std::int64_t{2} * kMostRuns})[0].size(), 0u);
  const Placements most = parse("2", "_S(0, 1048576)");
  EXPECT_EQ(most.runs_at(1, {std::int64_t{2} * kMostRuns})[0].size(), kMostRuns);
}

}  // namespace
}  // namespace shardwise
