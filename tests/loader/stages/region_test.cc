#include "shardwise/loader/stages/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/order/sample_random.h"
#include "shardwise/loader/stages/convert.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Source> grid() {
  return numbers<std::uint8_t>(
      {"g", DType::u8, {3, 4}},
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31});
}

TEST(CropStage, CutsAtAPlaceOrTheCentre) {
  const auto at = crop(grid(), "g", {2, 2}, CropPosition::at({1, 2}));
  EXPECT_EQ(at->fields()[0], (Field{"g", DType::u8, {2, 2}}));
  EXPECT_THAT(values_of<std::uint8_t>(*at, {0, 0, 0}, 0), ElementsAre(6, 7, 10, 11));
  EXPECT_THAT(values_of<std::uint8_t>(*at, {1, 5, 9}, 0), ElementsAre(26, 27, 30, 31));
  const auto centre = crop(grid(), "g", {2, 1}, CropPosition::centre());
  EXPECT_THAT(values_of<std::uint8_t>(*centre, {0, 0, 0}, 0), ElementsAre(1, 5));
}

TEST(CropStage, AnyPlaceIsDrawnAndAFunctionOfTheSample) {
  const auto random_crop = crop(grid(), "g", {2, 2}, CropPosition::random());
  std::set<int> places;
  for (std::int64_t epoch = 0; epoch < 60; ++epoch) {
    const auto values = values_of<std::uint8_t>(*random_crop, {0, epoch, 1}, 0);
    EXPECT_THAT(values, ElementsAre(values[0], values[0] + 1, values[0] + 4, values[0] + 5));
    places.insert(values[0]);
    EXPECT_EQ(values, values_of<std::uint8_t>(*random_crop, {0, epoch, 1}, 0));
  }
  EXPECT_EQ(places, (std::set<int>{0, 1, 2, 4, 5, 6}));
}

TEST(CropStage, FieldsOfOneStreamAreCutAlike) {
  const auto both =
      zip({grid(), cast(numbers<std::int32_t>({"m", DType::i32, {3, 4}},
                                              {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                               20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}),
                        "m", DType::u8)});
  const auto cut = [&](const char* first, const char* second) {
    const auto one = crop(both, "g", {1, 2}, CropPosition::random(first));
    return flip(flip(crop(one, "m", {1, 2}, CropPosition::random(second)), "g", 1, 0.5, first), "m",
                1, 0.5, second);
  };
  const auto alike = cut("view", "view"), apart = cut("", "");
  int different = 0;
  for (std::int64_t epoch = 0; epoch < 50; ++epoch) {
    const Sample sample{1, epoch, 3};
    EXPECT_EQ(whole_of(*alike, sample, 0), whole_of(*alike, sample, 1));
    different += whole_of(*apart, sample, 0) != whole_of(*apart, sample, 1) ? 1 : 0;
  }
  EXPECT_GT(different, 30);
}

TEST(CropStage, CutsWithinARaggedRecordsLength) {
  const auto inner =
      std::make_shared<RaggedSource>(40, std::vector<Field>{{"t", DType::u16, {9, 2}, true}});
  const CropPosition positions[] = {CropPosition::at({2, 0}), CropPosition::centre(),
                                    CropPosition::random()};
  for (const CropPosition& position : positions) {
    const auto part = crop(inner, "t", {4, 2}, position);
    for (std::int64_t record = 0; record < 40; ++record) {
      const std::int64_t length = inner->length({record, 0, 0}, 0);
      const std::int64_t own = part->length({record, 0, 0}, 0);
      if (position.kind() == CropPosition::Kind::at) {
        EXPECT_EQ(own, std::clamp<std::int64_t>(length - 2, 0, 4));
      } else {
        EXPECT_EQ(own, std::min<std::int64_t>(length, 4)) << "none of it is wasted";
      }
      if (position.kind() == CropPosition::Kind::centre && length > 0) {
        EXPECT_EQ(box_of(*part, {record, 0, 0}, 0, Box({0, 0}, {1, 2})),
                  box_of(*inner, {record, 0, 0}, 0,
                         Box({std::max<std::int64_t>(length - 4, 0) / 2, 0},
                             {std::max<std::int64_t>(length - 4, 0) / 2 + 1, 2})));
      }
    }
  }
}

TEST(FlipStage, MirrorsWithTheProbability) {
  const auto always = flip(grid(), "g", 1, 1);
  EXPECT_THAT(values_of<std::uint8_t>(*always, {0, 0, 0}, 0),
              ElementsAre(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8));
  EXPECT_THAT(values_of<std::uint8_t>(*flip(grid(), "g", 0, 1), {0, 0, 0}, 0),
              ElementsAre(8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
  const auto never = flip(grid(), "g", 1, 0), seldom = flip(grid(), "g", 1, 0.25);
  int flipped = 0;
  for (std::int64_t epoch = 0; epoch < 1000; ++epoch) {
    EXPECT_EQ(whole_of(*never, {0, epoch, 2}, 0), whole_of(*grid(), {0, epoch, 2}, 0));
    const auto values = values_of<std::uint8_t>(*seldom, {0, epoch, 2}, 0);
    EXPECT_TRUE(values[0] == 0 || values[0] == 3);
    flipped += values[0] == 3 ? 1 : 0;
  }
  EXPECT_NEAR(flipped, 250, 45);
}

TEST(PadStage, PutsValuesAround) {
  const auto padded = pad(grid(), "g", {1, 0}, {0, 2}, 9);
  EXPECT_EQ(padded->fields()[0].shape, (Shape{4, 6}));
  EXPECT_THAT(
      values_of<std::uint8_t>(*padded, {0, 0, 0}, 0),
      ElementsAre(9, 9, 9, 9, 9, 9, 0, 1, 2, 3, 9, 9, 4, 5, 6, 7, 9, 9, 8, 9, 10, 11, 9, 9));
  const auto halves = pad(cast(grid(), "g", DType::f16), "g", {0, 1}, {0, 0}, -1.5);
  EXPECT_EQ(f16_to_f32(values_of<std::uint16_t>(*halves, {0, 0, 0}, 0)[0]), -1.5F);
  EXPECT_EQ(values_of<std::uint8_t>(*pad(grid(), "g", {1, 0}, {0, 0}, 300), {}, 0)[0], 255);
}

TEST(PadStage, OfARaggedRecordBeginsAndEndsAtItsOwn) {
  const auto inner =
      std::make_shared<RaggedSource>(30, std::vector<Field>{{"t", DType::u8, {5}, true}});
  const auto padded = pad(inner, "t", {1}, {2}, 7);
  for (std::int64_t record = 0; record < 30; ++record) {
    const std::int64_t length = inner->length({record, 0, 0}, 0);
    std::vector<std::uint8_t> own = values_of<std::uint8_t>(*inner, {record, 0, 0}, 0);
    own.resize(as_size(length));
    own.insert(own.begin(), 7);
    own.insert(own.end(), 2, 7);
    own.resize(8, 0);
    EXPECT_EQ(values_of<std::uint8_t>(*padded, {record, 0, 0}, 0), own);
    EXPECT_EQ(padded->length({record, 0, 0}, 0), length + 3);
  }
}

// Stages ask the source for exactly the elements that a box of the result needs.
TEST(RegionStages, AskForNoByteOutside) {
  RandomShardings random(5);
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    const auto inner = std::make_shared<RaggedSource>(
        3, std::vector<Field>{{"a", DType::u8, {7, 6, 2}}, {"b", DType::f32, {4}}});
    const Sample sample{random.draw(0, 2), random.draw(0, 3), 1};
    const std::shared_ptr<const Source> stages[] = {
        crop(inner, "a", {3, 4, 2}, CropPosition::random()), flip(inner, "a", 1, 0.5),
        pad(inner, "a", {1, 2, 0}, {3, 0, 1}, 5), cast(inner, "a", DType::i32),
        normalise(inner, "a", {1, 2}, {3, 4})};
    for (const auto& stage : stages) {
      const Box box = random_box(Box::whole(stage->fields()[0].shape), random);
      const bool is_pad = stage == stages[2];
      Box data = box;
      if (is_pad) data = intersect(box, Box({1, 2, 0}, {8, 8, 2}));
      inner->take_asked();
      box_of(*stage, sample, 0, box);
      std::int64_t asked = 0;
      for (const RaggedSource::Asked& each : inner->take_asked()) {
        EXPECT_EQ(each.field, 0u);
        asked += each.box.num_elements();
      }
      EXPECT_EQ(asked, data.num_elements());
      inner->take_asked();
      box_of(*stage, sample, 1, Box({1}, {3}));  // the other field passes
      const auto other = inner->take_asked();
      ASSERT_EQ(other.size(), 1u);
      EXPECT_EQ(other[0].box, Box({1}, {3}));
    }
  }
}

TEST(RegionStages, AreReadByOneCall) {
  const auto inner = std::make_shared<RaggedSource>(
      3, std::vector<Field>{{"a", DType::u8, {7, 6}}, {"b", DType::f32, {4}}});
  const auto stage = normalise(
      pad(flip(crop(inner, "a", {5, 5}, CropPosition::random()), "a", 0, 0.5), "a", {1, 1}, {1, 1}),
      "a", {0.5}, {0.25});
  std::vector<std::byte> a(9 * 4), b(4 * 4), c(4), d(4);
  const FieldBox boxes[] = {{0, {a.data(), Box({0, 0}, {3, 3})}},
                            {1, {b.data(), Box({0}, {4})}},
                            {0, {c.data(), Box({2, 2}, {3, 3})}},
                            {0, {d.data(), Box({0, 0}, {1, 1})}}};
  stage->read({1, 2, 3}, boxes);
  EXPECT_EQ(inner->reads(), 1);
  stage->read({1, 2, 3}, std::span(boxes).last(1));
  EXPECT_EQ(inner->reads(), 1) << "padding alone needs no read";
}

TEST(RegionStages, RefuseWhatIsNotThere) {
  const auto g = grid();
  const auto ragged = std::make_shared<RaggedSource>(
      3, std::vector<Field>{{"t", DType::u8, {9}, true}, {"c", DType::c64, {2}}});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto huge = std::numeric_limits<std::int64_t>::max();
  const struct {
    std::function<void()> body;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {[&] {
         crop(g, "y", {1, 1}, CropPosition::centre());
       },
       ErrorCode::no_such_name, "\"y\""},
      {[&] { crop(nullptr, "g", {1}, CropPosition::centre()); }, ErrorCode::invalid_argument,
       "crop: the source is null"},
      {[&] { crop(g, "g", {1}, CropPosition::centre()); }, ErrorCode::invalid_argument,
       "of shape [3, 4] to [1], needed is a part of it"},
      {[&] {
         crop(g, "g", {4, 1}, CropPosition::centre());
       },
       ErrorCode::invalid_argument, "to [4, 1]"},
      {[&] {
         crop(g, "g", {-1, 1}, CropPosition::centre());
       },
       ErrorCode::invalid_argument, "to [-1, 1]"},
      {[&] {
         crop(g, "g", {2, 2}, CropPosition::at({2, 0}));
       },
       ErrorCode::invalid_argument, "to [2, 2] at [2, 0]"},
      {[&] {
         crop(g, "g", {2, 2}, CropPosition::at({0, -1}));
       },
       ErrorCode::invalid_argument, "at [0, -1]"},
      {[&] {
         crop(g, "g", {2, 2}, CropPosition::at({0}));
       },
       ErrorCode::invalid_argument, "at [0]"},
      {[&] {
         crop(g, "g", {2, 2}, CropPosition::at({huge, 0}));
       },
       ErrorCode::invalid_argument, "at [9223372036854775807, 0]"},
      {[&] { flip(g, "g", 2, 0.5); }, ErrorCode::invalid_argument, "dim 2 of field \"g\""},
      {[&] { flip(ragged, "t", 0, 0.5); }, ErrorCode::invalid_argument, "is ragged"},
      {[&] { flip(g, "g", 1, 1.5); }, ErrorCode::invalid_argument, "probability is 1.5"},
      {[&] { flip(g, "g", 1, nan); }, ErrorCode::invalid_argument, "probability is nan"},
      {[&] {
         pad(g, "g", {1}, {1, 1});
       },
       ErrorCode::invalid_argument, "by [1] before"},
      {[&] {
         pad(g, "g", {1, -1}, {1, 1});
       },
       ErrorCode::invalid_argument, "by [1, -1] before"},
      {[&] {
         pad(g, "g", {huge, 1}, {1, 1});
       },
       ErrorCode::invalid_argument, "before and [1, 1]"},
      {[&] { pad(ragged, "c", {1}, {1}, 2); }, ErrorCode::unsupported, "is c64"},
      {[&] { cast(ragged, "c", DType::f32); }, ErrorCode::unsupported, "from c64 to f32"},
      {[&] { normalise(ragged, "c", {0}, {1}); }, ErrorCode::unsupported, "from c64 to f32"},
      {[&] {
         normalise(g, "g", {0, 0}, {1, 1});
       },
       ErrorCode::invalid_argument, "needed is 1 or 4"},
      {[&] {
         normalise(g, "g", {0}, {1, 1, 1, 1});
       },
       ErrorCode::invalid_argument, "by 1 means"},
      {[&] { normalise(g, "g", {}, {}); }, ErrorCode::invalid_argument, "by 0 means"},
      {[&] { normalise(g, "g", {0}, {0}); }, ErrorCode::invalid_argument, "deviation 0"},
      {[&] { normalise(g, "g", {static_cast<float>(nan)}, {1}); }, ErrorCode::invalid_argument,
       "mean nan"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(c.code, c.body), HasSubstr(c.message));
  }
  EXPECT_EQ(whole_of(*pad(ragged, "c", {1}, {0}), {}, 1).size(), 24u);
}

// Conversions.

TEST(CastStage, ConvertsEveryPairAsConvertDoes) {
  for (const DType from : compute_dtypes()) {
    const auto inner = std::make_shared<RaggedSource>(4, std::vector<Field>{{"x", from, {5, 3}}});
    const std::vector<std::byte> source = whole_of(*inner, {2, 0, 0}, 0);
    for (const DType to : compute_dtypes()) {
      SCOPED_TRACE(std::string(name(from)) + " to " + std::string(name(to)));
      const auto stage = cast(inner, "x", to);
      EXPECT_EQ(stage->fields()[0].dtype, to);
      std::vector<std::byte> expected(15 * size_bytes(to));
      convert(from, source.data(), to, expected.data(), 15);
      EXPECT_EQ(whole_of(*stage, {2, 0, 0}, 0), expected);
    }
  }
  const auto same = std::make_shared<RaggedSource>(4, std::vector<Field>{{"x", DType::c64, {2}}});
  EXPECT_EQ(whole_of(*cast(same, "x", DType::c64), {1, 0, 0}, 0), whole_of(*same, {1, 0, 0}, 0));
}

TEST(NormaliseStage, IsByOnePairOrOnePerChannel) {
  const auto one = normalise(grid(), "g", {2}, {4});
  EXPECT_EQ(one->fields()[0].dtype, DType::f32);
  EXPECT_THAT(values_of<float>(*one, {}, 0),
              ElementsAre(-0.5F, -0.25F, 0, 0.25F, 0.5F, 0.75F, 1, 1.25F, 1.5F, 1.75F, 2, 2.25F));
  const auto four = normalise(grid(), "g", {0, 1, 2, 3}, {1, 2, 4, -8});
  EXPECT_THAT(values_of<float>(*four, {}, 0), ElementsAre(0, 0, 0, 0, 4, 2, 1, -0.5F, 8, 4, 2, -1));
  const auto twice = normalise(four, "g", {1}, {2});  // of f32, in place
  EXPECT_EQ(values_of<float>(*twice, {}, 0)[4], 1.5F);
  const auto scalar = normalise(counted(5), "x", {1}, {2});
  EXPECT_THAT(values_of<float>(*scalar, {4, 0, 0}, 0), ElementsAre(1.5F));
}

TEST(NormaliseStage, PastARaggedRecordsEndIsZero) {
  const auto inner =
      std::make_shared<RaggedSource>(20, std::vector<Field>{{"t", DType::u8, {6, 2}, true}});
  const auto stage = normalise(inner, "t", {3, 4}, {2, 2});
  RandomShardings random(6);
  for (std::int64_t record = 0; record < 20; ++record) {
    EXPECT_EQ(stage->length({record, 0, 0}, 0), inner->length({record, 0, 0}, 0));
    expect_boxes_of_whole(*stage, {record, 0, 0}, 5, random);
  }
}

TEST(RegionStages, FingerprintsTellParameters) {
  const auto g = grid();
  const std::vector<std::shared_ptr<const Source>> stages{
      g,
      crop(g, "g", {2, 2}, CropPosition::centre()),
      crop(g, "g", {2, 3}, CropPosition::centre()),
      crop(g, "g", {2, 2}, CropPosition::random()),
      crop(g, "g", {2, 2}, CropPosition::random("s")),
      crop(g, "g", {2, 2}, CropPosition::at({0, 0})),
      crop(g, "g", {2, 2}, CropPosition::at({0, 1})),
      flip(g, "g", 0, 0.5),
      flip(g, "g", 1, 0.5),
      flip(g, "g", 1, 0.25),
      flip(g, "g", 1, 0.5, "s"),
      pad(g, "g", {1, 0}, {0, 0}),
      pad(g, "g", {0, 0}, {1, 0}),
      pad(g, "g", {0, 0}, {1, 0}, 2),
      cast(g, "g", DType::f32),
      cast(g, "g", DType::i8),
      normalise(g, "g", {0}, {1}),
      normalise(g, "g", {1}, {1}),
      normalise(g, "g", {0}, {2})};
  std::set<std::uint64_t> prints;
  for (const auto& stage : stages) prints.insert(stage->fingerprint());
  EXPECT_EQ(prints.size(), stages.size());
  EXPECT_EQ(flip(grid(), "g", 1, 0.5)->fingerprint(), stages[8]->fingerprint());
}

}  // namespace
}  // namespace shardwise
