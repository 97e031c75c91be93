#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "shardwise/reshape/edits.h"
#include "testing/host_model.h"
#include "testing/random_boxes.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TensorEdits, ShapesThatDoNotFitAreInTheSameError) {
  EXPECT_EQ(
      edit_fault({.casts = {{"opt.w", DType::f32}},
                  .transposes = {{"opt.w", {0, 2, 1}},
                                 {"*.ln", {2, 0, 1}},
                                 {"modle.ln", {1, 0}},
                                 {"*", {1, 1}}},
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
      edit_fault({.renames = {{"opt.w", "x"}},
                  .joins = {{{"model.*.0.w", "model.*.1.w", "modle.ln"}, "*", 0},
                            {{"opt.step", "opt.w"}, "opt", 0}}}),
      "reshard x: 3 edits do not fit: "
      "join \"model.*.0.w,model.*.1.w,modle.ln=*@0\": found 1 \"*\" in the new name, needed 0 "
      "as in the pattern; "
      "rename \"opt.w=x\" is not used: earlier rules take all that it matches; "
      "\"opt\" would be joined of \"opt.step\", i64, and \"opt.w\", f64: needed is one dtype, "
      "which a cast can give");
  const auto source =
      std::make_shared<HostModel>(std::vector{host_tensor("0.k", DType::f32, {4, 6}, "1", "-,-"),
                                              host_tensor("0.q", DType::f32, {4, 7}, "1", "-,-"),
                                              host_tensor("1.q", DType::f32, {4, 6}, "1", "-,-"),
                                              host_tensor("2.k", DType::f32, {6}, "1", "-"),
                                              host_tensor("2.q", DType::f32, {4, 6}, "1", "-,-"),
                                              host_tensor("s", DType::f32, {}, "1", "")});
  EXPECT_EQ(edit_fault({.joins = {{{"?.q", "?.k"}, "?.qk", 0}, {{"s", "t"}, "st", 0}}}, source),
            "reshard x: 4 edits do not fit: "
            "join \"?.q,?.k=?.qk@0\": tensor \"0.k\" is [4, 6], which does not fit \"0.q\", "
            "[4, 7], along dim 0; "
            "join \"?.q,?.k=?.qk@0\": found \"1.q\", and no \"1.k\" to be joined to it, nearest: "
            "\"0.k\"; "
            "join \"?.q,?.k=?.qk@0\": tensor \"2.k\" is [6], which does not fit \"2.q\", "
            "[4, 6], along dim 0; "
            "join \"s,t=st@0\" matches none of 6 tensors with \"t\", nearest: \"s\"");
  EXPECT_EQ(edit_fault({.splits = {{"s", {"a", "b"}, 0}},
                        .joins = {{{"*.q", "*.q"}, "*.q", 0}, {{"s"}, "s", 0}}},
                       source),
            "reshard x: 3 edits do not fit: "
            "split \"s=a,b@0\": tensor \"s\" is [], which has no dim 0; "
            "join \"*.q,*.q=*.q@0\" is not used: earlier rules take all that it matches; "
            "join \"s=s@0\" is not used: earlier rules take all that it matches");
}

// Says element by element where dims and ranges of a tensor go.
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
    const auto source = std::make_shared<HostModel>(oracle.tensors);
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
            << "only elements of the box are read";
        EXPECT_LE(source->largest_scratch(found), std::max<std::size_t>(scratch, 16));
        if (const auto same = edited.same_in_source(t, box)) {
          EXPECT_EQ(oracle.tensors[same->tensor].part(same->box), expected);
        }
      }
    }
  }
}

TEST(EditedTensors, NumberedTensorsAreIndicesOfANewDimAndBack) {
  RandomShardings random(9);
  for (int round = 0; round < 300; ++round) {
    const auto rank = as_size(random.draw(0, 3));
    Shape shape;
    for (std::size_t d = 0; d < rank; ++d) shape.push_back(random.draw(1, 4));
    const std::vector<std::size_t> order = random_order(rank, random);
    const auto dim = as_size(random.draw(0, std::int64_t(rank)));
    const DType to = random.draw(0, 1) == 0 ? DType::f32 : DType::f16;
    const std::int64_t count = random.draw(1, 12);
    std::vector<HostTensor> layers;
    for (std::int64_t n = 0; n < count; ++n) {
      layers.push_back(host_tensor("h." + std::to_string(n) + ".w", DType::f32, shape, "1",
                                   PartitionSpec::replicated(rank).to_string(), Values::noise,
                                   as_size(round + n)));
    }
    const auto source = std::make_shared<HostModel>(layers);
    TensorEdits stack{.casts = {{"*", to}}, .joins = {{{"h.#.*"}, "*", std::int64_t(dim)}}};
    if (rank > 0) stack.transposes = {{"*", order}};
    const auto stacked =
        std::make_shared<EditedTensors>(source, stack, "edit", as_size(random.draw(1, 100)));
    ASSERT_THAT(tensor_names(*stacked), ElementsAre("w"));
    const Shape made = stacked->tensors()[0].shape;
    ASSERT_EQ(made[dim], count);
    const Box box = random_box(Box::whole(made), random);
    std::vector<std::byte> found(num_bytes(box.shape(), size_bytes(to))), expected;
    stacked->read(0, box, found);
    for_each_index(box, [&](const Index& at) {
      Index stored = Index::filled(rank, 0);
      for (std::size_t d = 0, from = 0; d <= rank; ++d) {
        if (d != dim) stored[order[from++]] = at[d];
      }
      Index end = stored;
      for (std::int64_t& i : end) ++i;
      const std::vector<std::byte> element = layers[as_size(at[dim])].part(Box(stored, end));
      std::vector<std::byte> cast(size_bytes(to));
      convert(DType::f32, element.data(), to, cast.data(), 1);
      expected.insert(expected.end(), cast.begin(), cast.end());
    });
    ASSERT_EQ(found, expected) << to_string(box) << " of " << to_string(made);

    // Each layer is again the result of the transpose alone.
    const EditedTensors parts(
        stacked, {.splits = {{"*", {"h.#.*"}, std::int64_t(dim) - std::int64_t(rank) - 1}}});
    stack.joins.clear();
    const EditedTensors alone(source, stack);
    ASSERT_EQ(tensor_names(parts), tensor_names(alone));
    for (std::size_t t = 0; t < layers.size(); ++t) {
      const Box whole = Box::whole(alone.tensors()[t].shape);
      ASSERT_EQ(parts.tensors()[t].shape, alone.tensors()[t].shape);
      std::vector<std::byte> part(num_bytes(whole.shape(), size_bytes(to))), layer(part.size());
      parts.read(t, whole, part);
      alone.read(t, whole, layer);
      ASSERT_EQ(part, layer);
    }
  }
}

TEST(TensorEdits, TensorsOfAnyNamesAreTheIndicesOfANewDim) {
  const auto source = std::make_shared<HostModel>(
      std::vector{host_tensor("0.q", DType::f32, {2, 3}, "a=2", "-,a", Values::noise, 1),
                  host_tensor("0.k", DType::f32, {2, 3}, "a=2", "-,a", Values::noise, 2),
                  host_tensor("0.v", DType::f32, {2, 3}, "a=2", "-,a", Values::noise, 3),
                  host_tensor("w", DType::f32, {3}, "1", "-")});
  const TensorEdits::Join join = TensorEdits::Join::parse("*.q,*.k,*.v=*.qkv@+-2");
  const auto stacked = std::make_shared<EditedTensors>(source, TensorEdits{.joins = {join}});
  ASSERT_THAT(tensor_names(*stacked), ElementsAre("0.qkv", "w"));
  ASSERT_EQ(stacked->tensors()[0].shape, Shape({2, 3, 3}));
  EXPECT_EQ(stacked->tensors()[0].sharding->spec().to_string(), "-,-,a");
  const auto bytes_of = [](const BoxReader& reader, std::size_t tensor, const Box& box) {
    std::vector<std::byte> bytes(num_bytes(box.shape(), sizeof(float)));
    reader.read(tensor, box, bytes);
    return bytes;
  };
  const std::size_t sorted[] = {1, 0, 2};
  const TensorEdits::Split split = TensorEdits::Split::parse("*.qkv=*.query,*.key,*.value@+1");
  const EditedTensors parts(stacked, TensorEdits{.splits = {split}});
  ASSERT_THAT(tensor_names(parts), ElementsAre("0.key", "0.query", "0.value", "w"));
  const Box whole = Box::whole({2, 3});
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::vector<std::byte> expected = bytes_of(*source, as_size(i), whole);
    EXPECT_EQ(bytes_of(*stacked, 0, Box({0, i, 0}, {2, i + 1, 3})), expected);
    EXPECT_EQ(bytes_of(parts, sorted[i], whole), expected);
  }

  EXPECT_EQ(edit_fault({.splits = {TensorEdits::Split::parse("w=a,b@+0"),
                                   {"0.q", {"a", "b"}, 0, {1, 1}, true}},
                        .joins = {TensorEdits::Join::parse("0.k,0.v=x@+4")}},
                       source),
            "reshard x: 3 edits do not fit: "
            "split \"0.q=a,b@+0:1,1\": found extents, needed none, as each name is of one index; "
            "split \"w=a,b@+0\": tensor \"w\" is [3], whose dim 0 has 3 indices, needed are 2, one "
            "for each name; "
            "join \"0.k,0.v=x@+4\": tensor \"0.k\" is [2, 3], which has no room for a dim 4");
}

TEST(TensorEdits, NumbersThatDoNotFitAreInTheSameError) {
  const auto source = std::make_shared<HostModel>(std::vector{
      host_tensor("h.0.w", DType::f32, {4}, "1", "-"),
      host_tensor("h.01.w", DType::f32, {4}, "1", "-"),
      host_tensor("h.2.w", DType::f32, {4}, "1", "-"),
      host_tensor("v.0", DType::f32, {4}, "1", "-"), host_tensor("v.1", DType::f32, {5}, "1", "-"),
      host_tensor("v.x", DType::f32, {5}, "1", "-")});
  EXPECT_EQ(
      edit_fault({.splits = {{"v.x", {"#", "#"}, 0}, {"v.x", {"a.#.#"}, 0}, {"v.x", {"v#"}, 1}},
                  .joins = {{{"h.#.w"}, "h.w", 1}, {{"v.#"}, "v", -1}, {{"a", "#"}, "b", 0}}},
                 source),
      "reshard x: 6 edits do not fit: "
      "split \"v.x=#,#@0\": found a \"#\", which needs one name with one of them, and no extents; "
      "split \"v.x=a.#.#@0\": found a \"#\", which needs one name with one of them, and no "
      "extents; "
      "split \"v.x=v#@1\": tensor \"v.x\" is [5], which has no dim 1; "
      "join \"h.#.w=h.w@1\": found \"h.0.w\", and no \"h.1.w\" to be joined to it, nearest: "
      "\"h.0.w\"; "
      "join \"v.#=v@-1\": tensor \"v.1\" is [5], which does not fit \"v.0\", [4], along a "
      "new dim 1; "
      "join \"a,#=b@0\": found a \"#\", which needs one pattern with one of them");
  EXPECT_THAT(edit_fault({.joins = {{{"v.x*#"}, "*", 2}}}, source), HasSubstr("matches none of 6"));
  EXPECT_THAT(edit_fault({.exclude = {"?.?1*", "h.2*"}, .joins = {{{"h.#.w"}, "h", 2}}}, source),
              HasSubstr("tensor \"h.0.w\" is [4], which has no room for a dim 2"));
}

TEST(EditedTensors, PartsThatAreStoredSideBySideAreNotCopied) {
  const auto source = usual_model();
  const EditedTensors edited(source, {.splits = {{"model.h.*.w", {"h.*.a", "h.*.b"}, 0}},
                                      .joins = {{{"model.ln"}, "ln", 0}}});
  ASSERT_THAT(tensor_names(edited),
              ElementsAre("h.0.a", "h.0.b", "h.1.a", "h.1.b", "ln", "opt.step", "opt.w"));
  EXPECT_EQ(edited.contiguous(1, Box::whole({2, 6})), source->contiguous(0, Box({2, 0}, {4, 6})));
  EXPECT_EQ(edited.tensors()[1].sharding->spec().to_string(), "a,-");
  const EditedTensors turned(source, {.transposes = {{"opt.w", {1, 0}}}});
  EXPECT_EQ(turned.contiguous(4, Box::whole({6, 4})), nullptr);
  EXPECT_EQ(turned.tensors()[4].sharding->spec().to_string(), "-,a");
}

TEST(EditedTensors, AreCutAsTheSourceIfThatFits) {
  HostTensor strict = host_tensor("w", DType::f32, {4, 6}, "a=2", "a,-");
  strict.spec.sharding =
      Sharding(Mesh::parse("a=2"), PartitionSpec::parse("a,-"), UnevenPolicy::parse("strict"));
  const auto source = std::make_shared<HostModel>(
      std::vector{strict, host_tensor("v", DType::f32, {4, 6}, "a=2", "-,a")});
  const EditedTensors parts(source, {.splits = {{"w", {"a", "b"}, 0, {3, 1}}, {"v", {"c#"}, 0}}});
  ASSERT_THAT(tensor_names(parts), ElementsAre("a", "b", "c0", "c1", "c2", "c3"));
  EXPECT_FALSE(parts.tensors()[0].sharding) << "3 rows are not cut into 2 equal parts";
  EXPECT_EQ(parts.tensors()[2].sharding->spec().to_string(), "a");
  const EditedTensors joined(source, {.joins = {{{"w", "v"}, "wv", 1}}});
  EXPECT_FALSE(joined.tensors()[0].sharding) << "its parts are cut in two ways";
}

}  // namespace
}  // namespace shardwise
