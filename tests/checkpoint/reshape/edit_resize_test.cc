// Tensors that grow and shrink on the way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"
#include "testing/host_model.h"
#include "testing/random_boxes.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using Resize = TensorEdits::Resize;
using enum Resize::How;

TEST(TensorEdits, ResizesAreReadFromText) {
  const Resize grown = Resize::parse("*embed*=pad:50304,-");
  EXPECT_EQ(grown.pattern, "*embed*");
  EXPECT_EQ(grown.how, pad);
  EXPECT_THAT(grown.extents, ElementsAre(50304, Resize::kSame));
  const Resize shrunk = Resize::parse("w=slice:0");
  EXPECT_EQ(shrunk.how, slice);
  EXPECT_THAT(shrunk.extents, ElementsAre(0));
  for (const char* text : {"", "w", "w=", "w=pad", "w=pad:", "w=pad:1,", "w=pad:-1", "w=pad:a",
                           "w=1,2", "w=grow:1", "=pad:1", "w=pad:1=2", "w=:1", "w=PAD:1"}) {
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument, [&] { Resize::parse(text); }),
        StartsWith("resize " + quoted(text) +
                   ": needed is PATTERN=pad:EXTENT,... or PATTERN=slice:EXTENT,..., \"-\" for "
                   "an extent that stays, as \"*embed*=pad:50304,-\""));
  }
}

TEST(TensorEdits, TensorsThatDoNotGrowOrShrinkAsAskedAreInTheSameError) {
  const auto source = std::make_shared<HostModel>(std::vector{
      host_tensor("b", DType::f32, {5}, "1", "-"), host_tensor("c", DType::f32, {5}, "1", "-"),
      host_tensor("e", DType::f8_e8m0fnu, {2, 3}, "1", "-,-"),
      host_tensor("t", DType::f32, {2, 3}, "1", "-,-"),
      host_tensor("v", DType::f32, {4, 3}, "1", "-,-")});
  EXPECT_EQ(edit_fault({.transposes = {{"t", {1, 0}}},
                        .resizes = {Resize::parse("t=pad:2,2"), Resize::parse("e=pad:9,-"),
                                    Resize::parse("v=slice:5,-"), Resize::parse("c=slice:1,1"),
                                    Resize::parse("?=pad:1,-,-"), Resize::parse("vv=pad:1"),
                                    Resize::parse("t=slice:1,1"),
                                    Resize::parse("b=pad:9223372036854775807")},
                        .splits = {{"t", {"t1", "t2"}, 1}}},
                       source),
            "reshard x: 8 edits do not fit: "
            "resize \"b=pad:9223372036854775807\": tensor \"b\" is [5]: shape "
            "[9223372036854775807]: at 16 bytes per element it has more than 2^64 - 1 bytes; "
            "resize \"c=slice:1,1\": tensor \"c\" is [5], needed are 2 dims; "
            "resize \"e=pad:9,-\": tensor \"e\" is [2, 3] of f8_e8m0fnu, which has no zero to pad "
            "it with; "
            "resize \"t=pad:2,2\": tensor \"t\" is [3, 2], needed to pad it is an extent of at "
            "least 3 along dim 0; \"slice\" takes the beginning; "
            "resize \"v=slice:5,-\": tensor \"v\" is [4, 3], needed to slice it is an extent of at "
            "most 4 along dim 0; \"pad\" adds zeros; "
            "resize \"?=pad:1,-,-\" matches no tensor of 3 dims; "
            "resize \"vv=pad:1\" matches none of 5 tensors, nearest: \"v\"; "
            "resize \"t=slice:1,1\" is not used: earlier rules take all that it matches");
}

TEST(TensorEdits, ATensorThatHasTheExtentsStays) {
  const auto source = usual_model();
  const EditedTensors edited(
      source, {.resizes = {{"model.*", pad, {4, Resize::kSame}}, {"*", slice, {4, 6}}}});
  for (std::size_t t = 0; t < 5; ++t) {
    EXPECT_EQ(edited.contiguous(t, Box::whole({4, 6})), source->contiguous(t, Box::whole({4, 6})));
    EXPECT_EQ(edited.tensors()[t].sharding, source->tensors()[t].sharding);
  }
}

TEST(EditedTensors, OfAResizedTensorWhatIsStoredIsNotCopied) {
  const auto source = usual_model();
  const EditedTensors edited(source, {.resizes = {{"opt.w", pad, {5, Resize::kSame}},
                                                  {"*.0.w", slice, {3, Resize::kSame}}}});
  EXPECT_EQ(edited.tensors()[0].shape, Shape({3, 6}));
  EXPECT_EQ(edited.contiguous(0, Box::whole({3, 6})), source->contiguous(0, Box::whole({3, 6})));
  ASSERT_EQ(edited.tensors()[4].shape, Shape({5, 6}));
  EXPECT_EQ(edited.tensors()[4].logical_bytes, 240u);
  EXPECT_EQ(edited.tensors()[4].sharding->spec().to_string(), "a,-");
  EXPECT_EQ(edited.contiguous(4, Box({1, 0}, {4, 6})), source->contiguous(4, Box({1, 0}, {4, 6})));
  EXPECT_EQ(edited.contiguous(4, Box({1, 0}, {5, 6})), nullptr);
  EXPECT_EQ(edited.source_boxes(4, Box({1, 2}, {5, 6}))[0].box, Box({1, 2}, {4, 6}));
  EXPECT_TRUE(edited.source_boxes(4, Box({4, 0}, {5, 6}))[0].box.empty());
}

std::vector<std::size_t> drawn_order(std::size_t rank, RandomShardings& random) {
  std::vector<std::size_t> order(rank);
  for (std::size_t d = 0; d < rank; ++d) order[d] = d;
  if (random.draw(0, 1) == 0) std::shuffle(order.begin(), order.end(), random.engine());
  return order;
}

/// A tensor, and the result of a transpose, a resize and a cast, element by element.
struct Resized {
  static Resized draw(std::string name, DType from, DType to, std::size_t rank,
                      RandomShardings& random, std::int64_t seed) {
    Resized made{.order = drawn_order(rank, random), .to = to};
    Shape stored;
    for (std::size_t d = 0; d < rank; ++d) stored.push_back(random.draw(0, 5));
    made.tensor =
        host_tensor(std::move(name), from, stored, "1", PartitionSpec::replicated(rank).to_string(),
                    Values::noise, as_size(seed));
    made.rule = {.pattern = made.tensor.name, .how = random.draw(0, 2) == 0 ? slice : pad};
    for (const std::size_t dim : made.order) {
      const std::int64_t there = stored[dim];
      const std::int64_t wanted = random.draw(0, 2) == 0 ? Resize::kSame
                                  : made.rule.how == pad ? random.draw(there, there + 4)
                                                         : random.draw(0, there);
      made.rule.extents.push_back(wanted);
      made.shape.push_back(wanted == Resize::kSame ? there : wanted);
    }
    return made;
  }

  void add_to(TensorEdits& edits) const {
    edits.transposes.push_back({tensor.name, order});
    edits.resizes.push_back(rule);
    if (to != tensor.spec.dtype) edits.casts.push_back({tensor.name, to});
  }

  bool is_stored(const Index& at) const {
    for (std::size_t d = 0; d < at.size(); ++d) {
      if (at[d] >= tensor.spec.shape[order[d]]) return false;
    }
    return true;
  }

  std::vector<std::byte> element(const Index& at) const {
    std::vector<std::byte> made(size_bytes(to));
    if (!is_stored(at)) return made;
    Index begin = at;
    for (std::size_t d = 0; d < at.size(); ++d) begin[order[d]] = at[d];
    Index end = begin;
    for (std::int64_t& i : end) ++i;
    const std::vector<std::byte> there = tensor.part(Box(begin, end));
    convert(tensor.spec.dtype, there.data(), to, made.data(), 1);
    return made;
  }

  HostTensor tensor = {};
  std::vector<std::size_t> order;
  DType to;
  Resize rule = {};
  Shape shape = {};
};

/// The elements of a box, and how many of them are stored. `place` gives the tensor and the element
/// for an index.
template <class Place>
std::pair<std::vector<std::byte>, std::size_t> elements_of(const Box& box, Place&& place) {
  std::pair<std::vector<std::byte>, std::size_t> made;
  for_each_index(box, [&](const Index& at) {
    const auto [tensor, there] = place(at);
    const std::vector<std::byte> element = tensor->element(there);
    made.first.insert(made.first.end(), element.begin(), element.end());
    made.second += tensor->is_stored(there) ? 1 : 0;
  });
  return made;
}

TEST(EditedTensors, ReadsAnyBoxOfWhatIsResized) {
  RandomShardings random(5);
  const DType dtypes[] = {DType::f64, DType::f16, DType::i32, DType::u8, DType::c128};
  for (int round = 0; round < 1000; ++round) {
    const DType from = dtypes[random.draw(0, 4)];
    const DType to = from == DType::f64 ? DType::bf16 : from == DType::u8 ? DType::f32 : from;
    const auto rank = as_size(random.draw(1, 4));
    const auto dim = as_size(random.draw(0, std::int64_t(rank) - 1));
    const int kind = int(random.draw(0, 3));  // alone, joined, split, split into indices
    std::vector<Resized> parts;
    TensorEdits edits;
    for (std::int64_t p = kind == 1 ? random.draw(2, 3) : 1; p > 0; --p) {
      parts.push_back(
          Resized::draw("w" + std::to_string(parts.size()), from, to, rank, random, round + p));
      Resized& part = parts.back();
      for (std::size_t d = 0; d < rank; ++d) {  // so that they fit next to each other
        if (kind != 1 || d == dim) continue;
        part.rule.how = pad;
        part.shape[d] = part.rule.extents[d] = 9;
      }
      if (part.rule.how == pad && part.rule.extents[dim] != Resize::kSame) {
        const std::int64_t there = part.tensor.spec.shape[part.order[dim]];
        part.shape[dim] = part.rule.extents[dim] = std::max(part.rule.extents[dim], there);
      }
      part.add_to(edits);
    }
    const std::int64_t extent = parts[0].shape[dim], cut = random.draw(0, extent);
    if (kind == 1) {
      edits.joins.push_back({{"w0", "w1"}, "w", std::int64_t(dim)});
      if (parts.size() == 3) edits.joins.back().patterns.push_back("w2");
    }
    if (kind == 2)
      edits.splits.push_back({"w0", {"a", "b"}, std::int64_t(dim), {cut, extent - cut}});
    if (kind == 3) edits.splits.push_back({"w0", {"a.#"}, std::int64_t(dim)});
    if (kind == 3 && extent == 0) continue;  // no tensor is left
    std::vector<HostTensor> stored;
    for (const Resized& part : parts) stored.push_back(part.tensor);
    const auto source = std::make_shared<HostModel>(stored);
    const std::size_t scratch = as_size(random.draw(1, 200));
    const EditedTensors edited(source, edits, "edit", scratch);
    for (std::size_t t = 0; t < edited.tensors().size(); ++t) {
      const TensorInfo& info = edited.tensors()[t];
      EXPECT_EQ(info.logical_bytes, num_bytes(info.shape, size_bytes(to)));
      const auto place = [&](const Index& at) {
        Index there = at;
        std::size_t part = 0;
        if (kind == 1) {
          while (there[dim] >= parts[part].shape[dim]) there[dim] -= parts[part++].shape[dim];
        } else if (kind == 2 && t == 1) {
          there[dim] += cut;
        } else if (kind == 3) {
          const std::int64_t index = std::stoll(info.name.substr(2));
          there = Index::filled(rank, index);
          for (std::size_t d = 0; d < at.size(); ++d) there[d < dim ? d : d + 1] = at[d];
        }
        return std::pair(&parts[part], there);
      };
      for (const Box& box : {Box::whole(info.shape), random_box(Box::whole(info.shape), random)}) {
        const auto [expected, num_stored] = elements_of(box, place);
        std::vector<std::byte> found(expected.size(), std::byte{0xAA});
        source->read_bytes = 0;
        source->reads.clear();
        edited.read(t, box, found);
        ASSERT_EQ(found, expected) << to_string(box) << " of " << to_string(info.shape);
        EXPECT_EQ(source->read_bytes, num_stored * size_bytes(from)) << "no more than is there";
        EXPECT_LE(source->largest_scratch(found), std::max<std::size_t>(scratch, 16));
        std::int64_t in_source = 0;
        for (const auto& read : edited.source_boxes(t, box)) in_source += read.box.num_elements();
        EXPECT_EQ(as_size(in_source), num_stored);
        if (const auto same = edited.same_in_source(t, box)) {
          EXPECT_EQ(stored[same->tensor].part(same->box), expected);
        }
      }
    }
  }
}

TEST(EditedTensors, GrowOnTheirWayToTheDevicesOfAnyMesh) {
  RandomShardings random(7);
  Devices devices(48);
  for (int round = 0; round < 200; ++round) {
    const auto rank = as_size(random.draw(0, 3));
    const Resized w = Resized::draw("w", DType::f32, DType::f32, rank, random, round);
    TensorEdits edits;
    if (rank > 0) w.add_to(edits);
    const auto source = std::make_shared<HostModel>(std::vector{w.tensor});
    const EditedTensors edited(source, edits);
    const ArraySpec spec{DType::f32, w.shape, random.sharding(rank, w.shape)};
    const auto array = ShardedArray::from_callback(devices, spec, [&](const BoxView& view) {
      edited.read(0, view.box, {view.data, num_bytes(view.box.shape(), sizeof(float))});
    });
    const auto place = [&](const Index& at) { return std::pair(&w, at); };
    EXPECT_EQ(array.to_host(), elements_of(Box::whole(w.shape), place).first);
  }
}

TEST(ReshardCheckpoint, GrowsAndShrinksOnTheWayFromAnyMeshToAnyOther) {
  RandomShardings random(6);
  const std::set<std::string> anywhere{"ceil", "balanced", "nested_chunk"};
  int uneven = 0;
  for (int round = 0; round < 30; ++round) {
    const TempDir dir;
    const auto rank = as_size(random.draw(1, 3));
    Resized w = Resized::draw("w", DType::f32, random.draw(0, 1) == 0 ? DType::f32 : DType::bf16,
                              rank, random, round);
    HostTensor saved = w.tensor;
    do {
      saved.spec.sharding = random.sharding(rank, saved.spec.shape);  // these policies fit any mesh
    } while (!anywhere.contains(saved.spec.sharding.policy().to_string()));
    const HostTensor other = host_tensor("other", DType::i64, {7}, "1", "-");
    const auto step =
        CheckpointManager(dir / "from").save(3, sources_of(std::vector{saved, other})).directory;
    const Mesh mesh = random.mesh();
    const PartitionSpec spec = random.spec(mesh, rank);
    for (std::size_t d = 0; d < rank; ++d) {
      const std::int64_t tiles = Sharding(mesh, spec).tiles(d);
      uneven += tiles > 0 && w.shape[d] % tiles != 0 ? 1 : 0;
    }
    const SpecRules rules = SpecRules::parse("w=" + spec.to_string() + ";other=-");
    ReshardOptions options;
    options.threads = 1;
    options.save.writers = random.draw(1, 3);
    w.add_to(options.edits);
    const auto place = [&](const Index& at) { return std::pair(&w, at); };
    const auto [expected, num_stored] = elements_of(Box::whole(w.shape), place);
    const ReshardPlan plan = plan_reshard(step, dir / "to", mesh, rules, options);
    EXPECT_EQ(plan.logical_bytes, expected.size() + 56);
    EXPECT_EQ(plan.needed_bytes, num_stored * 4 + 56) << "no chunk is read for added elements";
    const auto made = reshard_checkpoint(step, dir / "to", mesh, rules, options).directory;
    EXPECT_TRUE(verify_checkpoint(made).ok());
    const CheckpointReader reader(made);
    ASSERT_EQ(reader.tensor("w").shape, w.shape);
    std::vector<std::byte> found(expected.size());
    reader.read("w", Box::whole(w.shape), found);
    ASSERT_EQ(found, expected) << "round " << round;
    EXPECT_TRUE(holds(reader, std::vector{other}));
  }
  EXPECT_GT(uneven, 5);
}

}  // namespace
}  // namespace shardwise
