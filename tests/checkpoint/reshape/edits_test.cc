#include "shardwise/reshape/edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "testing/errors.h"
#include "testing/host_model.h"
#include "testing/random_boxes.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Rename = TensorEdits::Rename;
using Cast = TensorEdits::Cast;
using Transpose = TensorEdits::Transpose;
using Split = TensorEdits::Split;
using Join = TensorEdits::Join;

std::vector<std::string> edited_names(const TensorEdits& edits) {
  return tensor_names(EditedTensors(usual_model(), edits));
}

TEST(TensorEdits, SelectsExcludesAndRenames) {
  EXPECT_THAT(edited_names({}),
              ElementsAre("model.h.0.w", "model.h.1.w", "model.ln", "opt.step", "opt.w"));
  EXPECT_THAT(edited_names({.select = {"*.w", "opt.*"}}),
              ElementsAre("model.h.0.w", "model.h.1.w", "opt.step", "opt.w"));
  EXPECT_THAT(edited_names({.exclude = {"opt.*", "model.ln"}}),
              ElementsAre("model.h.0.w", "model.h.1.w"));
  EXPECT_THAT(
      edited_names({.select = {"model.*"}, .exclude = {"*ln"}, .renames = {{"model.*", "*"}}}),
      ElementsAre("h.0.w", "h.1.w"));
  EXPECT_THAT(edited_names({.renames = {{"model.h.*.*", "z/*/*"}, {"opt.?*", "?-*"}}}),
              ElementsAre("model.ln", "s-tep", "w-", "z/0/w", "z/1/w"));
  // The first rule that matches counts; names may change places.
  EXPECT_THAT(edited_names({.renames = {{"opt.w", "opt.step"}, {"opt.*", "opt.w"}}}),
              ElementsAre("model.h.0.w", "model.h.1.w", "model.ln", "opt.step", "opt.w"));
}

TEST(TensorEdits, NamesThatChangePlacesHaveEachOthersElements) {
  const auto source = usual_model();
  const EditedTensors edited(
      source, {.select = {"model.h.*"}, .renames = {{"*.0.w", "*.1.w"}, {"*.1.w", "*.0.w"}}});
  ASSERT_THAT(tensor_names(edited), ElementsAre("model.h.0.w", "model.h.1.w"));
  EXPECT_EQ(edited.source_boxes(0, Box::whole({4, 6}))[0].tensor, 1u);
  const Box whole = Box::whole({4, 6});
  EXPECT_EQ(edited.contiguous(0, whole), source->contiguous(1, whole));
  EXPECT_EQ(edited.contiguous(1, whole), source->contiguous(0, whole));
  EXPECT_EQ(edited.tensors()[0].sharding->spec().to_string(), "a,-");
}

TEST(TensorEdits, AreReadFromText) {
  const Rename rename = Rename::parse("a.*=b.*");
  EXPECT_EQ(rename.pattern, "a.*");
  EXPECT_EQ(rename.name, "b.*");
  EXPECT_EQ(Cast::parse("*=bfloat16").dtype, DType::bf16);
  for (const char* text : {"", "a", "=b", "a=", "a=b=c"}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Rename::parse(text); }),
                HasSubstr("rename " + quoted(text) + ": needed is PATTERN=NAME, with one \"=\""));
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Cast::parse(text); }),
                HasSubstr("needed is PATTERN=DTYPE"));
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { Cast::parse("*=f33"); }),
              HasSubstr("f33"));

  EXPECT_THAT(Transpose::parse("*.w=2,0,1").order, ElementsAre(2, 0, 1));
  const Split split = Split::parse("*.qkv=*.q,*.k,v@-1");
  EXPECT_THAT(split.names, ElementsAre("*.q", "*.k", "v"));
  EXPECT_EQ(split.dim, -1);
  EXPECT_THAT(split.extents, ElementsAre());
  const Split uneven = Split::parse("a@1=b@2,c@3@10:8,4");
  EXPECT_EQ(uneven.pattern, "a@1");
  EXPECT_THAT(uneven.names, ElementsAre("b@2", "c@3"));
  EXPECT_EQ(uneven.dim, 10);
  EXPECT_THAT(uneven.extents, ElementsAre(8, 4));
  const Join join = Join::parse("*.q,*.k=*.qk@1");
  EXPECT_THAT(join.patterns, ElementsAre("*.q", "*.k"));
  EXPECT_EQ(join.name, "*.qk");
  EXPECT_EQ(join.dim, 1);
  for (const char* text : {"", "w", "w=", "w=1,", "w=1,-1", "w=a", "=1,0", "w=1=0"}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Transpose::parse(text); }),
                HasSubstr("transpose " + quoted(text) + ": needed is PATTERN=DIM,DIM"));
  }
  for (const char* text : {"", "a=b,c", "a=b,c@", "a=b,,c@0", "a=@0", "a=b,c@x", "a=b,c@-0",
                           "a=b,c@0:", "a=b,c@0:1", "a=b,c@0:1,2,3", "a=b,c@0:1,-1"}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Split::parse(text); }),
                HasSubstr("split " + quoted(text) + ": needed is PATTERN=NAME,NAME,...@DIM"));
  }
  for (const char* text : {"", "a,b=c", "a,=c@0", "a,b=@0", "a,b=c@0:1", "a,b=c@"}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Join::parse(text); }),
                HasSubstr("join " + quoted(text) + ": needed is PATTERN,PATTERN,...=NAME@DIM"));
  }
}

TEST(TensorEdits, AllThatDoesNotFitIsOneError) {
  EXPECT_EQ(edit_fault({.select = {"modle.ln"},
                        .exclude = {"none*"},
                        .renames = {{"opt.*.*", "*"}, {"x", "y"}},
                        .casts = {{"opt.stpe", DType::bf16}}}),
            "reshard x: 5 edits do not fit: "
            "select \"modle.ln\" matches none of 5 tensors, nearest: \"model.ln\"; "
            "exclude \"none*\" matches none of 5 tensors; "
            "rename \"opt.*.*=*\": found 1 \"*\" in the new name, needed 2 as in the pattern, or "
            "none; "
            "rename \"x=y\" matches none of 0 selected tensors; "
            "cast \"opt.stpe=bf16\" matches none of 0 selected tensors, nearest: \"opt.step\"");
  EXPECT_EQ(
      edit_fault({.renames = {{"model.h.*.w", "w"}, {"model.ln", "w"}, {"opt.step", "opt.w"}}}),
      "reshard x: 2 edits do not fit: "
      "\"opt.w\" would be the name of 2 tensors, needed is one: \"opt.step\", \"opt.w\"; "
      "\"w\" would be the name of 3 tensors, needed is one: \"model.h.0.w\", "
      "\"model.h.1.w\" and 1 more");
  EXPECT_EQ(
      edit_fault({.renames = {{"opt.*", "o.*"}, {"opt.w", "x"}}}),
      "reshard x: 1 edit does not fit: rename \"opt.w=x\" is not used: earlier rules take all "
      "that it matches");
  EXPECT_EQ(edit_fault({.exclude = {"*"}}),
            "reshard x: 1 edit does not fit: nothing is selected of 5 tensors, needed is one");
}

TEST(TensorEdits, AMessageOfManyFaultsIsShort) {
  std::vector<std::string> patterns;
  for (int i = 0; i < 1000; ++i) patterns.push_back(std::string(1000, 'x') + std::to_string(i));
  const std::string message = edit_fault({.select = patterns});
  EXPECT_LT(message.size(), 3000u);
  EXPECT_THAT(message, HasSubstr("; and 980 more"));
}

TEST(TensorEdits, CastsThatLoseSomethingAreRefused) {
  const auto source = host_model({{"b", DType::boolean},
                                  {"e", DType::f8_e5m2},
                                  {"f", DType::f32},
                                  {"i8", DType::i8},
                                  {"i64", DType::i64},
                                  {"u8", DType::u8},
                                  {"u32", DType::u32}});
  struct Case {
    const char* name;
    DType to;
    const char* fault;  // null: it is cast
  };
  for (const Case& c : std::vector<Case>{
           {"f", DType::f16, nullptr},
           {"f", DType::f64, nullptr},
           {"f", DType::i64, "tensor \"f\" is f32, not all of whose values are exact as i64"},
           {"f", DType::boolean, "not all"},
           {"f", DType::f8_e5m2, nullptr},
           {"e", DType::f32, nullptr},
           {"b", DType::bf16, nullptr},
           {"b", DType::u8, nullptr},
           {"i8", DType::bf16, nullptr},
           {"i8", DType::i16, nullptr},
           {"i8", DType::u64, "not all"},
           {"i8", DType::boolean, "not all"},
           {"u8", DType::bf16, nullptr},
           {"u8", DType::i16, nullptr},
           {"u8", DType::i8, "not all"},
           {"u32", DType::i64, nullptr},
           {"u32", DType::i32, "not all"},
           {"u32", DType::f64, nullptr},
           {"u32", DType::f32, "not all"},
           {"i64", DType::f64, "not all"},
           {"i64", DType::i32, "not all"},
       }) {
    SCOPED_TRACE(std::string(c.name) + " to " + std::string(name(c.to)));
    const TensorEdits edits{.select = {c.name}, .casts = {{c.name, c.to}}};
    if (c.fault != nullptr) {
      EXPECT_THAT(edit_fault(edits, source), HasSubstr(c.fault));
    } else {
      EXPECT_EQ(EditedTensors(source, edits).tensors()[0].dtype, c.to);
    }
  }
}

TEST(TensorEdits, APatternOfManyCastsFloatsAlone) {
  const EditedTensors edited(usual_model(), {.casts = {{"opt.w", DType::f32}, {"*", DType::bf16}}});
  std::vector<DType> dtypes;
  for (const TensorInfo& info : edited.tensors()) dtypes.push_back(info.dtype);
  EXPECT_THAT(dtypes, ElementsAre(DType::bf16, DType::bf16, DType::bf16, DType::i64, DType::f32));
  EXPECT_EQ(edited.tensors()[0].logical_bytes, 48u);
  EXPECT_EQ(edit_fault({.casts = {{"*step", DType::bf16}}}),
            "reshard x: 1 edit does not fit: cast \"*step=bf16\" matches no tensor of floats: a "
            "pattern with \"*\" or \"?\" casts floats alone");
}

// The elements of any box are those of the source, each converted alone.
TEST(EditedTensors, ReadsAnyBoxAsConvertedElements) {
  RandomShardings random(3);
  const DType floats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (int round = 0; round < 400; ++round) {
    const DType from = floats[random.draw(0, 3)], to = floats[random.draw(0, 3)];
    Shape shape;
    for (std::int64_t d = random.draw(0, 3); d > 0; --d) shape.push_back(random.draw(1, 7));
    const HostTensor tensor =
        host_tensor("w", from, shape, "1", PartitionSpec::replicated(shape.size()).to_string());
    const auto source = std::make_shared<HostModel>(std::vector{tensor});
    const std::size_t scratch = as_size(random.draw(1, 200));
    const EditedTensors edited(source, {.casts = {{"*", to}}}, "edit", scratch);
    const Box box = random_box(Box::whole(shape), random);
    const std::vector<std::byte> part = tensor.part(box);
    std::vector<std::byte> expected(as_size(box.num_elements()) * size_bytes(to)),
        found(expected.size());
    for (std::size_t i = 0; i < as_size(box.num_elements()); ++i) {
      convert(from, part.data() + i * size_bytes(from), to, expected.data() + i * size_bytes(to),
              1);
    }
    edited.read(0, box, found);
    ASSERT_EQ(found, expected) << to_string(box) << " of " << to_string(shape);
    if (from != to) {
      EXPECT_LE(source->largest_read, std::max<std::size_t>(scratch, 16));
      if (!box.empty()) {
        EXPECT_EQ(edited.contiguous(0, box), nullptr);
      }
    }
  }
}

TEST(EditedTensors, RoundsToNearestEvenAndKeepsNaN) {
  const std::vector<float> values = {
      1.00390625f,  // halfway between two of bf16: the even one, below
      1.01171875f,  // the even one, above
      std::numeric_limits<float>::max(), -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN()};
  HostTensor tensor = host_tensor("w", DType::f32, {5}, "1", "-");
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  tensor.data = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  const EditedTensors edited(std::make_shared<HostModel>(std::vector{tensor}),
                             {.casts = {{"w", DType::bf16}}});
  std::vector<std::uint16_t> found(5);
  edited.read(0, Box::whole({5}), std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(bf16_to_f32(found[0]), 1.0f);
  EXPECT_EQ(bf16_to_f32(found[1]), 1.015625f);
  EXPECT_EQ(bf16_to_f32(found[2]), std::numeric_limits<float>::infinity());
  EXPECT_EQ(bf16_to_f32(found[3]), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(bf16_to_f32(found[4])));
}

TEST(EditedTensors, AreSavedByAManager) {
  const TempDir dir;
  const auto edited = std::make_shared<EditedTensors>(
      usual_model(),
      TensorEdits{.select = {"opt.w"}, .renames = {{"opt.*", "*"}}, .casts = {{"*", DType::f32}}});
  const SaveStats stats = CheckpointManager(dir.path()).save(1, {{"w", edited, 0}});
  const CheckpointReader reader(stats.directory);
  std::vector<std::byte> stored(96), expected(96);
  reader.read("w", Box::whole({4, 6}), stored);
  edited->read(0, Box::whole({4, 6}), expected);
  EXPECT_EQ(stored, expected);
}

}  // namespace
}  // namespace shardwise
