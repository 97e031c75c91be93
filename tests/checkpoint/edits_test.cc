#include "shardwise/checkpoint/edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
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

/// Tensors in memory.
class Model final : public BoxReader {
 public:
  explicit Model(std::vector<HostTensor> tensors) : model_(std::move(tensors)) {
    for (const HostTensor& tensor : model_) {
      infos_.push_back({.name = tensor.name,
                        .dtype = tensor.spec.dtype,
                        .shape = tensor.spec.shape,
                        .sharding = tensor.spec.sharding,
                        .logical_bytes = tensor.data->size()});
    }
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const std::vector<std::byte> part = model_[tensor].part(box);
    ASSERT_EQ(part.size(), out.size());
    largest_read = std::max(largest_read, out.size());
    read_bytes += out.size();
    reads.emplace_back(out);
    std::copy(part.begin(), part.end(), out.begin());
  }
  const std::byte* contiguous(std::size_t tensor, const Box& box) const override {
    return find_contiguous(box, size_bytes(infos_[tensor].dtype),
                           {model_[tensor].data->data(), Box::whole(infos_[tensor].shape)});
  }

  /// The most bytes that were read at once into memory outside of `out`.
  std::size_t largest_scratch(std::span<const std::byte> out) const {
    std::size_t most = 0;
    for (const std::span<const std::byte> read : reads) {
      const bool is_inside =
          out.data() <= read.data() && read.data() + read.size() <= out.data() + out.size();
      if (!is_inside) most = std::max(most, read.size());
    }
    return most;
  }

  mutable std::size_t largest_read = 0, read_bytes = 0;
  mutable std::vector<std::span<const std::byte>> reads;

 private:
  std::vector<HostTensor> model_;
  std::vector<TensorInfo> infos_;
};

std::shared_ptr<Model> model(const std::vector<std::pair<const char*, DType>>& tensors) {
  std::vector<HostTensor> made;
  for (const auto& [name, dtype] : tensors) {
    made.push_back(host_tensor(name, dtype, {4, 6}, "a=2", "a,-"));
  }
  return std::make_shared<Model>(std::move(made));
}

std::shared_ptr<Model> usual() {
  return model({{"model.h.0.w", DType::f32},
                {"model.h.1.w", DType::f32},
                {"model.ln", DType::bf16},
                {"opt.step", DType::i64},
                {"opt.w", DType::f64}});
}

std::vector<std::string> names_of(const BoxReader& reader) {
  std::vector<std::string> names;
  for (const TensorInfo& info : reader.tensors()) names.push_back(info.name);
  return names;
}

std::vector<std::string> edited_names(const TensorEdits& edits) {
  return names_of(EditedTensors(usual(), edits));
}

std::string fault(const TensorEdits& edits, std::shared_ptr<const BoxReader> source = usual()) {
  return message_of(ErrorCode::invalid_argument,
                    [&] { EditedTensors(source, edits, "reshard x"); });
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
  const auto source = usual();
  const EditedTensors edited(
      source, {.select = {"model.h.*"}, .renames = {{"*.0.w", "*.1.w"}, {"*.1.w", "*.0.w"}}});
  ASSERT_THAT(names_of(edited), ElementsAre("model.h.0.w", "model.h.1.w"));
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
  EXPECT_EQ(fault({.select = {"modle.ln"},
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
  EXPECT_EQ(fault({.renames = {{"model.h.*.w", "w"}, {"model.ln", "w"}, {"opt.step", "opt.w"}}}),
            "reshard x: 2 edits do not fit: "
            "\"opt.w\" would be the name of 2 tensors, needed is one: \"opt.step\", \"opt.w\"; "
            "\"w\" would be the name of 3 tensors, needed is one: \"model.h.0.w\", "
            "\"model.h.1.w\" and 1 more");
  EXPECT_EQ(
      fault({.renames = {{"opt.*", "o.*"}, {"opt.w", "x"}}}),
      "reshard x: 1 edit does not fit: rename \"opt.w=x\" is not used: earlier rules take all "
      "that it matches");
  EXPECT_EQ(fault({.exclude = {"*"}}),
            "reshard x: 1 edit does not fit: nothing is selected of 5 tensors, needed is one");
}

TEST(TensorEdits, ShapesThatDoNotFitAreInTheSameError) {
  EXPECT_EQ(
      fault({.casts = {{"opt.w", DType::f32}},
             .transposes =
                 {{"opt.w", {0, 2, 1}}, {"*.ln", {2, 0, 1}}, {"modle.ln", {1, 0}}, {"*", {1, 1}}},
             .splits = {{"model.h.*", {"h.*.a", "h.*.b", "h.*.c"}, 0},
                        {"opt.step", {"a", "b"}, 1, {4, 3}},
                        {"model.ln", {"a", "b"}, -3},
                        {"opt.wo", {"a", "*"}, 0},
                        {"opt", {"a", "b"}, 0, {1}}}}),
      "reshard x: 10 edits do not fit: "
      "transpose \"*=1,1\": needed are the dims from 0 to 1, each once; "
      "transpose \"opt.w=0,2,1\": tensor \"opt.w\" is [4, 6], needed are 3 dims; "
      "transpose \"*.ln=2,0,1\" matches no tensor of 3 dims; "
      "transpose \"modle.ln=1,0\" matches none of 5 tensors, nearest: \"model.ln\"; "
      "split \"opt.wo=a,*@0\": found 1 \"*\" in the new name, needed 0 as in the pattern, or "
      "none; "
      "split \"opt=a,b@0:1\": found 2 names and 1 extents, needed is an extent for each name; "
      "split \"model.h.*=h.*.a,h.*.b,h.*.c@0\": tensor \"model.h.0.w\" is [4, 6], and 4 is not "
      "divisible by 3: extents say how long the parts are, as in \"@0:2,...\"; "
      "split \"model.h.*=h.*.a,h.*.b,h.*.c@0\": tensor \"model.h.1.w\" is [4, 6], and 4 is not "
      "divisible by 3: extents say how long the parts are, as in \"@0:2,...\"; "
      "split \"model.ln=a,b@-3\": tensor \"model.ln\" is [4, 6], which has no dim -3; "
      "split \"opt.step=a,b@1:4,3\": tensor \"opt.step\" is [4, 6], whose dim 1 has 6, not the "
      "sum of 4 + 3");
  EXPECT_EQ(
      fault({.renames = {{"opt.w", "x"}},
             .joins = {{{"model.*.0.w", "model.*.1.w", "modle.ln"}, "*", 0},
                       {{"opt.step", "opt.w"}, "opt", 0}}}),
      "reshard x: 3 edits do not fit: "
      "join \"model.*.0.w,model.*.1.w,modle.ln=*@0\": found 1 \"*\" in the new name, needed 0 "
      "as in the pattern; "
      "rename \"opt.w=x\" is not used: earlier rules take all that it matches; "
      "\"opt\" would be joined of \"opt.step\", i64, and \"opt.w\", f64: needed is one dtype, "
      "which a cast can give");
  const auto source =
      std::make_shared<Model>(std::vector{host_tensor("0.k", DType::f32, {4, 6}, "1", "-,-"),
                                          host_tensor("0.q", DType::f32, {4, 7}, "1", "-,-"),
                                          host_tensor("1.q", DType::f32, {4, 6}, "1", "-,-"),
                                          host_tensor("2.k", DType::f32, {6}, "1", "-"),
                                          host_tensor("2.q", DType::f32, {4, 6}, "1", "-,-"),
                                          host_tensor("s", DType::f32, {}, "1", "")});
  EXPECT_EQ(fault({.joins = {{{"?.q", "?.k"}, "?.qk", 0}, {{"s", "t"}, "st", 0}}}, source),
            "reshard x: 4 edits do not fit: "
            "join \"?.q,?.k=?.qk@0\": tensor \"0.k\" is [4, 6], which does not fit beside \"0.q\", "
            "[4, 7], along dim 0; "
            "join \"?.q,?.k=?.qk@0\": found \"1.q\", and no \"1.k\" to be joined to it, nearest: "
            "\"0.k\"; "
            "join \"?.q,?.k=?.qk@0\": tensor \"2.k\" is [6], which does not fit beside \"2.q\", "
            "[4, 6], along dim 0; "
            "join \"s,t=st@0\" matches none of 6 tensors with \"t\", nearest: \"s\"");
  EXPECT_EQ(fault({.splits = {{"s", {"a", "b"}, 0}},
                   .joins = {{{"*.q", "*.q"}, "*.q", 0}, {{"s"}, "s", 0}}},
                  source),
            "reshard x: 3 edits do not fit: "
            "split \"s=a,b@0\": tensor \"s\" is [], which has no dim 0; "
            "join \"*.q,*.q=*.q@0\" is not used: earlier rules take all that it matches; "
            "join \"s=s@0\" is not used: earlier rules take all that it matches");
}

TEST(TensorEdits, AMessageOfManyFaultsIsShort) {
  std::vector<std::string> patterns;
  for (int i = 0; i < 1000; ++i) patterns.push_back(std::string(1000, 'x') + std::to_string(i));
  const std::string message = fault({.select = patterns});
  EXPECT_LT(message.size(), 3000u);
  EXPECT_THAT(message, HasSubstr("; and 980 more"));
}

TEST(TensorEdits, CastsThatLoseSomethingAreRefused) {
  const auto source = model({{"b", DType::boolean},
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
           {"f", DType::f8_e5m2, "tensor \"f\" is f32; f8_e5m2 is stored and read, not cast"},
           {"e", DType::f32, "tensor \"e\" is f8_e5m2; f8_e5m2 is stored and read, not cast"},
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
      EXPECT_THAT(fault(edits, source), HasSubstr(c.fault));
    } else {
      EXPECT_EQ(EditedTensors(source, edits).tensors()[0].dtype, c.to);
    }
  }
}

TEST(TensorEdits, APatternOfManyCastsFloatsAlone) {
  const EditedTensors edited(usual(), {.casts = {{"opt.w", DType::f32}, {"*", DType::bf16}}});
  std::vector<DType> dtypes;
  for (const TensorInfo& info : edited.tensors()) dtypes.push_back(info.dtype);
  EXPECT_THAT(dtypes, ElementsAre(DType::bf16, DType::bf16, DType::bf16, DType::i64, DType::f32));
  EXPECT_EQ(edited.tensors()[0].logical_bytes, 48u);
  EXPECT_EQ(fault({.casts = {{"*step", DType::bf16}}}),
            "reshard x: 1 edit does not fit: cast \"*step=bf16\" matches no tensor of floats: a "
            "pattern with \"*\" or \"?\" casts floats alone");
}

// Of any box, the elements are those of the source, each converted alone.
TEST(EditedTensors, ReadsAnyBoxAsConvertedElements) {
  RandomShardings random(3);
  const DType floats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (int round = 0; round < 400; ++round) {
    const DType from = floats[random.draw(0, 3)], to = floats[random.draw(0, 3)];
    Shape shape;
    for (std::int64_t d = random.draw(0, 3); d > 0; --d) shape.push_back(random.draw(1, 7));
    const HostTensor tensor =
        host_tensor("w", from, shape, "1", PartitionSpec::replicated(shape.size()).to_string());
    const auto source = std::make_shared<Model>(std::vector{tensor});
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

// What dims and ranges of a tensor become, told element by element.
struct Oracle {
  /// One element of the source for each of a new tensor, row-major.
  std::vector<std::byte> elements(const Box& box, DType to) const {
    std::vector<std::byte> made;
    for_each_index(box, [&](const Index& at) {
      Index moved = at;
      std::size_t part = 0;
      if (dim < at.size()) {
        moved[dim] += from;
        while (moved[dim] >= along(part)) moved[dim] -= along(part++);
      }
      Index stored = moved;
      for (std::size_t d = 0; d < at.size(); ++d) stored[orders[part][d]] = moved[d];
      const HostTensor& source = tensors[part];
      const std::size_t size = size_bytes(source.spec.dtype);
      const Dims strides = row_major_strides(source.spec.shape);
      std::size_t offset = 0;
      for (std::size_t d = 0; d < at.size(); ++d) offset += as_size(stored[d] * strides[d]);
      std::vector<std::byte> element(size_bytes(to));
      convert(source.spec.dtype, source.data->data() + offset * size, to, element.data(), 1);
      made.insert(made.end(), element.begin(), element.end());
    });
    return made;
  }

  std::int64_t along(std::size_t part) const { return tensors[part].spec.shape[orders[part][dim]]; }

  std::vector<HostTensor> tensors;               ///< side by side along dim
  std::vector<std::vector<std::size_t>> orders;  ///< of their dims
  std::size_t dim = 0;
  std::int64_t from = 0;  ///< where it begins along dim
};

std::vector<std::size_t> random_order(std::size_t rank, RandomShardings& random) {
  std::vector<std::size_t> order(rank);
  for (std::size_t d = 0; d < rank; ++d) order[d] = d;
  std::shuffle(order.begin(), order.end(), random.engine());
  return order;
}

TEST(EditedTensors, ReadsAnyBoxOfWhatIsTransposedSplitAndJoined) {
  RandomShardings random(8);
  const DType dtypes[] = {DType::f64, DType::f16, DType::i32, DType::u8, DType::c128};
  for (int round = 0; round < 600; ++round) {
    const DType from = dtypes[random.draw(0, 4)];
    const DType to = from == DType::f64 ? DType::bf16 : from == DType::u8 ? DType::f32 : from;
    const auto rank = as_size(random.draw(1, 4));
    Shape shape;  // as transposed
    for (std::size_t d = 0; d < rank; ++d) shape.push_back(random.draw(1, 6));
    const auto dim = as_size(random.draw(0, std::int64_t(rank) - 1));
    Oracle oracle{.tensors = {}, .orders = {}, .dim = dim};
    TensorEdits edits;
    const std::int64_t parts = random.draw(1, 3);
    for (std::int64_t p = 0; p < parts; ++p) {
      shape[dim] = random.draw(0, 5);
      oracle.orders.push_back(random.draw(0, 1) == 0 ? random_order(rank, random)
                                                     : random_order(0, random));
      if (oracle.orders.back().empty()) {
        for (std::size_t d = 0; d < rank; ++d) oracle.orders.back().push_back(d);
      }
      Shape stored = shape;
      for (std::size_t d = 0; d < rank; ++d) stored[oracle.orders.back()[d]] = shape[d];
      const std::string name = "w" + std::to_string(p);
      oracle.tensors.push_back(host_tensor(name, from, stored, "1",
                                           PartitionSpec::replicated(rank).to_string(),
                                           Values::noise, as_size(round + p)));
      edits.transposes.push_back({name, oracle.orders.back()});
      if (from != to) edits.casts.push_back({name, to});
    }
    const auto source = std::make_shared<Model>(oracle.tensors);
    const bool is_joined = parts > 1;
    std::vector<std::int64_t> extents;
    if (is_joined) {
      std::vector<std::string> names;
      for (const HostTensor& tensor : oracle.tensors) names.push_back(tensor.name);
      edits.joins.push_back(
          {names, "w",
           random.draw(0, 1) == 0 ? std::int64_t(dim) : std::int64_t(dim) - std::int64_t(rank)});
    } else {
      const std::int64_t cut = random.draw(0, shape[dim]);
      extents = {cut, shape[dim] - cut};
      edits.splits.push_back({"w*", {"a*", "b*"}, std::int64_t(dim), extents});
    }
    const std::size_t scratch = as_size(random.draw(1, 200));
    const EditedTensors edited(source, edits, "edit", scratch);
    ASSERT_EQ(edited.tensors().size(), is_joined ? 1u : 2u);
    for (std::size_t t = 0; t < edited.tensors().size(); ++t) {
      const TensorInfo& info = edited.tensors()[t];
      EXPECT_EQ(info.dtype, to);
      if (t == 1) oracle.from = extents[0];
      for (const Box& box : {Box::whole(info.shape), random_box(Box::whole(info.shape), random)}) {
        const std::vector<std::byte> expected = oracle.elements(box, to);
        std::vector<std::byte> found(num_bytes(box.shape(), size_bytes(to)));
        source->read_bytes = 0;
        source->reads.clear();
        edited.read(t, box, found);
        ASSERT_EQ(found, expected) << to_string(box) << " of " << to_string(info.shape);
        EXPECT_EQ(source->read_bytes, as_size(box.num_elements()) * size_bytes(from))
            << "only what the box needs is read";
        EXPECT_LE(source->largest_scratch(found), std::max<std::size_t>(scratch, 16));
        if (const auto same = edited.same_in_source(t, box)) {
          EXPECT_EQ(oracle.tensors[same->tensor].part(same->box), expected);
        }
      }
    }
  }
}

TEST(EditedTensors, PartsThatAreStoredSideBySideAreNotCopied) {
  const auto source = usual();
  const EditedTensors edited(source, {.splits = {{"model.h.*.w", {"h.*.a", "h.*.b"}, 0}},
                                      .joins = {{{"model.ln"}, "ln", 0}}});
  ASSERT_THAT(names_of(edited),
              ElementsAre("h.0.a", "h.0.b", "h.1.a", "h.1.b", "ln", "opt.step", "opt.w"));
  EXPECT_EQ(edited.contiguous(1, Box::whole({2, 6})), source->contiguous(0, Box({2, 0}, {4, 6})));
  EXPECT_EQ(edited.tensors()[1].sharding->spec().to_string(), "a,-");
  const EditedTensors turned(source, {.transposes = {{"opt.w", {1, 0}}}});
  EXPECT_EQ(turned.contiguous(4, Box::whole({6, 4})), nullptr);
  EXPECT_EQ(turned.tensors()[4].sharding->spec().to_string(), "-,a");
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
  const EditedTensors edited(std::make_shared<Model>(std::vector{tensor}),
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
      usual(),
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
