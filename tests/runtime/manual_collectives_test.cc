// The collectives of runtime/manual_collectives.cc against an oracle that looks every element of
// every device up one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/values.h"
#include "shardwise/runtime/manual.h"
#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Value = ManualRegion::Value;

/// An element's value on the device at `position`: small, exact in every dtype, and different
/// along the axes that the spec leaves unused.
std::int64_t content(DType dtype, std::int64_t position, const Shape& shape, const Index& at) {
  const std::size_t element = offset_in(Box::whole(shape), at);
  return (position * 7 + static_cast<std::int64_t>(element) * 3 + position * position) %
         (dtype == DType::boolean ? 2 : 5);
}

std::int64_t combine(Reduction reduction, DType dtype, std::int64_t a, std::int64_t b) {
  if (reduction == Reduction::min) return std::min(a, b);
  return reduction == Reduction::sum && dtype != DType::boolean ? a + b : std::max(a, b);
}

/// A random region with one value of known content.
struct Setting {
  /// Takes the dtypes in turn; combining needs those that are computed with.
  Setting(RandomShardings& random, int round, std::span<const DType> dtypes = all_dtypes())
      : devices(48, {.threads = round % 2 == 0 ? 1 : 4}),
        mesh(random.mesh()),
        dtype(dtypes[static_cast<std::size_t>(round) % dtypes.size()]),
        shape(random.shape(static_cast<std::size_t>(random.draw(0, 3)))),
        spec(random.spec(mesh, shape.size())),
        region(devices, mesh) {
    value = region.map("content", {}, {{dtype, shape, spec}}, [this](const LocalContext& local) {
      const BoxView& out = local.outputs[0];
      for (const Index& at : indices_of(out.box)) {
        put(dtype, out.data, offset_in(out.box, at), content(dtype, local.position, shape, at));
      }
    })[0];
  }

  std::string describe() const {
    return mesh.to_string() + " " + spec.to_string() + " " + to_string(shape) + " " +
           std::string(name(dtype));
  }

  std::vector<std::size_t> axes_of(std::size_t dim) const {
    std::vector<std::size_t> axes;
    for (const std::string& axis : spec[dim]) axes.push_back(mesh.axis_index(axis));
    return axes;
  }

  std::vector<std::size_t> unused_axes() const {
    std::vector<bool> used(mesh.rank(), false);
    for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
      for (const std::size_t axis : axes_of(dim)) used[axis] = true;
    }
    std::vector<std::size_t> unused;
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      if (!used[axis]) unused.push_back(axis);
    }
    return unused;
  }

  bool agree(std::int64_t a, std::int64_t b, const std::vector<std::size_t>& except) const {
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      if (std::find(except.begin(), except.end(), axis) != except.end()) continue;
      if (mesh.coordinate(a, axis) != mesh.coordinate(b, axis)) return false;
    }
    return true;
  }

  /// An element's value expected at `position`, combined over all devices that differ from it
  /// only along `axes` and hold the element.
  std::int64_t expected(std::int64_t position, const Index& at,
                        const std::vector<std::size_t>& axes, Reduction reduction) const {
    const Sharding sharding(mesh, spec);
    std::int64_t result = 0, holders = 0;
    for (std::int64_t other = 0; other < mesh.size(); ++other) {
      if (!agree(position, other, axes) || !holds(sharding.box_at(other, shape), at)) continue;
      const std::int64_t one = content(dtype, other, shape, at);
      result = holders++ == 0 ? one : combine(reduction, dtype, result, one);
    }
    EXPECT_GT(holders, 0);
    EXPECT_TRUE(reduction != Reduction::none || holders == 1) << holders;
    return result;
  }

  void check(Value result, const PartitionSpec& wanted, const std::vector<std::size_t>& axes,
             Reduction reduction) {
    region.run();
    const ShardedArray array = region.output(result);
    ASSERT_EQ(array.sharding(), Sharding(mesh, wanted));
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      const ConstBoxView shard = array.shard(position);
      for (const Index& at : indices_of(shard.box)) {
        ASSERT_EQ(get(dtype, shard.data, offset_in(shard.box, at)),
                  expected(position, at, axes, reduction))
            << describe() << ": position " << position << " element " << to_string(at);
      }
    }
  }

  Devices devices;
  Mesh mesh;
  DType dtype;
  Shape shape;
  PartitionSpec spec;
  ManualRegion region;
  Value value;
};

std::vector<PartitionSpec::Entry> entries(const PartitionSpec& spec) {
  std::vector<PartitionSpec::Entry> all;
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) all.push_back(spec[dim]);
  return all;
}

/// A dim that some axis cuts; rank() if no axis cuts one.
std::size_t cut_dim(const PartitionSpec& spec, RandomShardings& random) {
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    if (!spec[dim].empty()) dims.push_back(dim);
  }
  if (dims.empty()) return spec.rank();
  return dims[static_cast<std::size_t>(random.draw(0, static_cast<std::int64_t>(dims.size()) - 1))];
}

TEST(ManualCollectives, AllReduceOverAnyUnusedAxes) {
  RandomShardings random(21);
  for (int round = 0; round < 500; ++round) {
    Setting s(random, round, compute_dtypes());
    std::vector<std::size_t> axes;
    std::vector<std::string> names;
    for (const std::size_t axis : s.unused_axes()) {
      if (random.draw(0, 3) == 0) continue;
      axes.push_back(axis);
      names.push_back(round % 2 == 0 ? s.mesh.axes()[axis].name : std::to_string(axis));
    }
    const Reduction reduction = kReductions[round % 3];
    s.check(s.region.all_reduce(s.value, names, reduction), s.spec, axes, reduction);
  }
}

TEST(ManualCollectives, DTypesThatAreNotComputedWithAreNotReduced) {
  Devices devices(4);
  ManualRegion region(devices, Mesh::line(4, "x"));
  for (const DType dtype : all_dtypes()) {
    if (is_computed(dtype)) continue;
    const Value value =
        region.map("make", {}, {{dtype, {8}, PartitionSpec::parse("-")}}, [](const auto&) {})[0];
    const std::string needed =
        ": found " + std::string(name(dtype)) + ", needed a type that is computed with";
    for (const Reduction reduction : kReductions) {
      EXPECT_EQ(
          message_of(ErrorCode::unsupported, [&] { region.all_reduce(value, {"x"}, reduction); }),
          "all_reduce" + needed);
      EXPECT_EQ(message_of(ErrorCode::unsupported,
                           [&] { region.reduce_scatter(value, "x", 0, reduction); }),
                "reduce_scatter" + needed);
    }
  }
}

TEST(ManualCollectives, AllGatherOfTheLastAxisOfADim) {
  RandomShardings random(22);
  int checked = 0;
  while (checked < 400) {
    Setting s(random, checked);
    const std::size_t dim = cut_dim(s.spec, random);
    if (dim == s.spec.rank()) continue;
    ++checked;
    auto wanted = entries(s.spec);
    wanted[dim].pop_back();
    s.check(s.region.all_gather(s.value, s.spec[dim].back(), dim), PartitionSpec(wanted),
            s.axes_of(dim), Reduction::none);
  }
}

TEST(ManualCollectives, ReduceScatterOfAnyUnusedAxis) {
  RandomShardings random(23);
  int checked = 0;
  while (checked < 400) {
    Setting s(random, checked, compute_dtypes());
    if (s.unused_axes().empty() || s.shape.empty()) continue;
    const std::size_t axis = s.unused_axes().front();
    const std::size_t dim =
        static_cast<std::size_t>(random.draw(0, static_cast<std::int64_t>(s.shape.size()) - 1));
    const Reduction reduction = kReductions[checked % 3];
    ++checked;
    auto wanted = entries(s.spec);
    wanted[dim].push_back(s.mesh.axes()[axis].name);
    // Along the dim's own axes the boxes differ, so at most one block of each holds an element.
    std::vector<std::size_t> axes = s.axes_of(dim);
    axes.push_back(axis);
    s.check(s.region.reduce_scatter(s.value, s.mesh.axes()[axis].name, dim, reduction),
            PartitionSpec(wanted), axes, reduction);
  }
}

TEST(ManualCollectives, AllToAllMovesAnAxisAndBackIsTheIdentity) {
  RandomShardings random(24);
  int checked = 0;
  while (checked < 400) {
    Setting s(random, checked);
    const std::size_t concat_dim = cut_dim(s.spec, random);
    if (s.shape.size() < 2 || concat_dim == s.spec.rank()) continue;
    ++checked;
    const std::size_t split_dim = (concat_dim + 1) % s.shape.size();
    const std::string axis = s.spec[concat_dim].back();
    auto wanted = entries(s.spec);
    wanted[concat_dim].pop_back();
    wanted[split_dim].push_back(axis);
    std::vector<std::size_t> axes = s.axes_of(concat_dim);
    for (const std::size_t other : s.axes_of(split_dim)) axes.push_back(other);
    const Value there = s.region.all_to_all(s.value, axis, split_dim, concat_dim);
    const Value back = s.region.all_to_all(there, axis, concat_dim, split_dim);
    s.check(there, PartitionSpec(wanted), axes, Reduction::none);
    EXPECT_EQ(all_shard_bytes(s.region.output(back)), all_shard_bytes(s.region.output(s.value)))
        << s.describe();
  }
}

TEST(ManualCollectives, PermuteSendsShardsAndZeros) {
  RandomShardings random(25);
  int checked = 0;
  while (checked < 300) {
    Setting s(random, checked);
    if (s.unused_axes().empty()) continue;
    ++checked;
    const std::size_t axis = s.unused_axes().back();
    const std::int64_t size = s.mesh.axes()[axis].size;
    std::vector<std::int64_t> targets(static_cast<std::size_t>(size));
    std::iota(targets.begin(), targets.end(), 0);
    std::shuffle(targets.begin(), targets.end(), random.engine());
    for (std::int64_t& target : targets) {
      if (random.draw(0, 4) == 0) target = -1;
    }
    const Value result = s.region.permute(s.value, s.mesh.axes()[axis].name, targets);
    s.region.run();
    const auto sent = all_shard_bytes(s.region.output(s.value));
    const auto received = all_shard_bytes(s.region.output(result));
    for (std::int64_t p = 0; p < s.mesh.size(); ++p) {
      const std::int64_t here = s.mesh.coordinate(p, axis);
      std::vector<std::byte> expected(sent[static_cast<std::size_t>(p)].size(), std::byte{0});
      for (std::int64_t from = 0; from < size; ++from) {
        if (targets[static_cast<std::size_t>(from)] != here) continue;
        expected = sent[static_cast<std::size_t>(p + (from - here) * s.mesh.stride(axis))];
      }
      ASSERT_EQ(received[static_cast<std::size_t>(p)], expected) << s.describe();
    }
  }
}

TEST(ManualCollectives, PermuteAlongACutAxisMovesWholeShards) {
  Devices devices(4);
  const Mesh mesh = Mesh::line(4, "x");
  std::vector<std::byte> data(8);
  for (std::size_t i = 0; i < 8; ++i) data[i] = static_cast<std::byte>(i);
  ManualRegion region(devices, mesh);
  const Value x = region.input(ShardedArray::from_host(
      devices, {DType::u8, {8}, Sharding(mesh, PartitionSpec::parse("x"))}, data));
  const std::int64_t right[] = {1, 2, 3, 0};
  const Value shifted = region.permute(x, "x", right);
  region.run();
  const std::vector<std::byte> found = region.output(shifted).to_host();
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(found[i], data[(i + 6) % 8]);
}

/// A value of floats whose sums depend on the order.
Value random_value(ManualRegion& region, DType dtype, const Shape& shape,
                   const PartitionSpec& spec) {
  return region.map("random", {}, {{dtype, shape, spec}}, [dtype](const LocalContext& local) {
    std::mt19937 random(static_cast<unsigned>(local.position) + 100);
    const auto bytes =
        random_floats(dtype, static_cast<std::size_t>(local.outputs[0].box.num_elements()), random);
    std::memcpy(local.outputs[0].data, bytes.data(), bytes.size());
  })[0];
}

struct Results {
  std::vector<std::vector<std::byte>> start, all, scattered, gathered;
};

Results reduce_floats(DType dtype, int threads) {
  Devices devices(8, {.threads = threads});
  ManualRegion region(devices, Mesh::parse("a=2,b=4@7,2,5,0,1,6,3,4"));
  const Value x = random_value(region, dtype, {53, 97}, PartitionSpec::parse("a,-"));
  const Value all = region.all_reduce(x, {"b"}, Reduction::sum);
  const Value scattered = region.reduce_scatter(x, "b", 1, Reduction::sum);
  const Value gathered = region.all_gather(scattered, "b", 1);
  region.run();
  return {all_shard_bytes(region.output(x)), all_shard_bytes(region.output(all)),
          all_shard_bytes(region.output(scattered)), all_shard_bytes(region.output(gathered))};
}

TEST(ManualCollectives, FloatsHaveTheSameBitsForAnyThreadsAndOnEveryRun) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(name(dtype));
    const Results one = reduce_floats(dtype, 1);
    for (int round = 0; round < 5; ++round) {
      const Results four = reduce_floats(dtype, 4);
      EXPECT_EQ(four.start, one.start);
      EXPECT_EQ(four.all, one.all);
      EXPECT_EQ(four.scattered, one.scattered);
    }
    EXPECT_EQ(one.gathered, one.all) << "reduce_scatter + all_gather is all_reduce";
  }
}

TEST(ManualCollectives, FloatsAreSummedInMeshOrder) {
  const Results found = reduce_floats(DType::f32, 4);
  for (std::size_t position = 0; position < 8; ++position) {
    const std::size_t first = position / 4 * 4;
    std::vector<float> sum(found.start[position].size() / 4), term(sum.size());
    std::memcpy(sum.data(), found.start[first].data(), sum.size() * 4);
    for (std::size_t other = first + 1; other < first + 4; ++other) {
      std::memcpy(term.data(), found.start[other].data(), term.size() * 4);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
    }
    EXPECT_EQ(std::memcmp(sum.data(), found.all[position].data(), sum.size() * 4), 0) << position;
  }
}

TEST(ManualCollectives, TrafficIsThatOfARing) {
  Devices devices(4);
  ManualRegion region(devices, Mesh::line(4, "x"));
  constexpr std::size_t kBytes = 4 * 4096;
  const Value x = random_value(region, DType::f32, {64, 64}, PartitionSpec::parse("-,-"));
  const auto traffic_of = [&](const std::function<void()>& record) {
    std::vector<std::size_t> before, sent;
    for (DeviceId id = 0; id < 4; ++id) before.push_back(devices.at(id).traffic().sent_bytes);
    record();
    region.run();
    for (DeviceId id = 0; id < 4; ++id) {
      sent.push_back(devices.at(id).traffic().sent_bytes - before[static_cast<std::size_t>(id)]);
    }
    return sent;
  };
  const auto each = [](std::size_t bytes) { return std::vector<std::size_t>(4, bytes); };
  Value scattered;
  EXPECT_EQ(traffic_of([&] { region.all_reduce(x, {"x"}, Reduction::sum); }),
            each(2 * kBytes * 3 / 4));
  EXPECT_EQ(traffic_of([&] { scattered = region.reduce_scatter(x, "x", 0, Reduction::sum); }),
            each(kBytes * 3 / 4));
  EXPECT_EQ(traffic_of([&] { region.all_to_all(scattered, "x", 1, 0); }), each(kBytes / 4 * 3 / 4));
  EXPECT_EQ(traffic_of([&] { region.all_gather(scattered, "x", 0); }), each(kBytes / 4 * 3));
}

TEST(ManualCollectives, RefuseWhatTheSpecDoesNotAllow) {
  Devices devices(8);
  ManualRegion region(devices, Mesh::parse("a=2,b=2,c=2"));
  const Value v = region.map("v", {}, {{DType::f32, {5, 4}, PartitionSpec::parse("a+b,-")}},
                             [](const LocalContext&) {})[0];
  struct Case {
    const char* name;
    std::function<void()> body;
    ErrorCode code;
    const char* first;
    const char* second;
  };
  const std::int64_t none[] = {-1, -1}, one[] = {0}, twice[] = {1, 1}, far[] = {0, 2},
                     low[] = {-2, 0}, uneven[] = {1, 0};
  const auto sum = Reduction::sum;
  const Case cases[] = {
      {"used", [&] { region.all_reduce(v, {"a"}, sum); }, ErrorCode::invalid_argument, "\"a\"",
       "a+b,-"},
      {"unknown", [&] { region.all_reduce(v, {"d"}, sum); }, ErrorCode::no_such_name, "d", "a"},
      {"twice",
       [&] {
         region.all_reduce(v, {"c", "2"}, sum);
       },
       ErrorCode::invalid_argument, "all_reduce", "twice"},
      {"nothing to do", [&] { region.all_reduce(v, {"c"}, Reduction::none); },
       ErrorCode::invalid_argument, "all_reduce", "no reduction"},
      {"not last", [&] { region.all_gather(v, "a", 0); }, ErrorCode::invalid_argument, "\"a\"",
       "dim 0"},
      {"not cut", [&] { region.all_gather(v, "b", 1); }, ErrorCode::invalid_argument, "\"b\"",
       "dim 1"},
      {"no such dim", [&] { region.all_gather(v, "b", 2); }, ErrorCode::invalid_argument,
       "all_gather", "dim 2 of a value of rank 2"},
      {"unknown axis", [&] { region.all_gather(v, "z", 0); }, ErrorCode::no_such_name, "z", "a"},
      {"scatter over a used axis", [&] { region.reduce_scatter(v, "b", 1, sum); },
       ErrorCode::invalid_argument, "reduce_scatter", "already cuts dim 0"},
      {"scatter of no dim", [&] { region.reduce_scatter(v, "c", 7, sum); },
       ErrorCode::invalid_argument, "reduce_scatter", "dim 7"},
      {"scatter without reduction", [&] { region.reduce_scatter(v, "c", 1, Reduction::none); },
       ErrorCode::invalid_argument, "reduce_scatter", "no reduction"},
      {"to itself", [&] { region.all_to_all(v, "b", 0, 0); }, ErrorCode::invalid_argument,
       "all_to_all", "dim 0"},
      {"not at the end", [&] { region.all_to_all(v, "a", 1, 0); }, ErrorCode::invalid_argument,
       "all_to_all", "\"a\""},
      {"split of no dim", [&] { region.all_to_all(v, "b", 2, 0); }, ErrorCode::invalid_argument,
       "all_to_all", "dim 2"},
      {"too few targets", [&] { region.permute(v, "c", one); }, ErrorCode::invalid_argument,
       "permute", "1 targets for 2"},
      {"two senders", [&] { region.permute(v, "c", twice); }, ErrorCode::invalid_argument,
       "permute", "receives twice"},
      {"beyond the axis", [&] { region.permute(v, "c", far); }, ErrorCode::invalid_argument,
       "sends to 2", "-1 to 1"},
      {"below -1", [&] { region.permute(v, "c", low); }, ErrorCode::invalid_argument, "sends to -2",
       "-1 to 1"},
      {"shards that differ", [&] { region.permute(v, "b", uneven); }, ErrorCode::invalid_argument,
       "[1, 4]", "[0, 4]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(c.code, c.body), AllOf(HasSubstr(c.first), HasSubstr(c.second)));
  }
  region.permute(v, "c", none);  // legal: everyone gets zeros
  region.run();
}

}  // namespace
}  // namespace shardwise
