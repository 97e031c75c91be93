#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// scan() gives the results of the program written out, on one device and on any mesh.

namespace shardwise {
namespace {

using testing::HasSubstr;

/// The body of scan() called once a step, as the loop would: what jax.lax.scan says it means.
template <class Body, class Carry>
std::pair<Carry, Tensor> written_out(const Body& body, Carry carry, const Tensor& xs,
                                     bool reverse) {
  const std::int64_t length = xs.shape()[0];
  std::vector<Tensor> ys(as_size(length));
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t at = reverse ? length - 1 - i : i;
    auto [next, y] = body(carry, xs[at]);
    carry = next;
    Shape stacked{1};
    for (const std::int64_t extent : y.shape()) stacked.push_back(extent);
    ys[as_size(at)] = reshape(y, stacked);
  }
  return {carry, concatenate(ys, 0)};
}

/// A recurrent net whose numbers stay small integers.
struct Net {
  Tensor first, xs, w;

  auto body() const {
    return [w = w](const Tensor& h, const Tensor& x) {
      const Tensor next = clamp(-3.0, linear(h, w) + x, 3.0);
      return std::pair(next, next * 2.0 - h);
    };
  }
};

struct Marks {
  std::string mesh = "";
  PartitionSpec first = {}, xs = {}, w = {};
};

std::vector<Marks> all_marks() {
  return {{},
          {"data=2", {{"data"}, {}}},
          {"data=3", {}, {{}, {"data"}, {}}},  // uneven
          {"data=8", {{"data"}, {}}},          // some have nothing
          {"data=2,model=2", {{"data"}, {}}, {}, {{}, {"model"}}},
          {"data=2,model=2", {{}, {"model"}}, {{}, {"data"}, {}}, {{"model"}, {}}},
          {"model=3", {}, {{"model"}, {}, {}}},  // the stacked dim is gathered
          {"data=2", {}, {}, {{"data"}, {}}}};
}

Net make_net(Tracer& tracer, const Marks& marks, std::int64_t length) {
  const Shape state{5, 4}, steps{length, 5, 4}, weight{4, 4};
  Net net{tracer.tensor(state, small(state, 1), "first"),
          tracer.tensor(steps, small(steps, 2), "xs"),
          tracer.tensor(weight, small(weight, 3), "w", MemoryKind::parameter)};
  if (marks.mesh.empty()) return net;
  if (!(marks.first == PartitionSpec())) mark_sharding(net.first, marks.first);
  if (!(marks.xs == PartitionSpec())) mark_sharding(net.xs, marks.xs);
  if (!(marks.w == PartitionSpec())) mark_sharding(net.w, marks.w);
  return net;
}

/// A tracer on the mesh, with the bytes that the plan is compared with.
class OnMesh {
 public:
  explicit OnMesh(const std::string& mesh)
      : mesh_(Mesh::parse(mesh)),
        devices_(mesh_.size(), {.threads = 2}),
        tracer_(devices_, {.mesh = mesh_}) {}

  Tracer& tracer() { return tracer_; }

  /// Inputs that go to the devices first count there.
  void step() {
    for (const DeviceId id : devices_.addressable()) devices_.at(id).reset_peak();
    std::vector<std::size_t> before;
    for (const DeviceId id : devices_.addressable()) {
      before.push_back(devices_.at(id).memory().in_use_bytes);
      sent_ -= devices_.at(id).traffic().sent_bytes;
    }
    tracer_.mark_step();
    for (std::int64_t p = 0; p < mesh_.size(); ++p) {
      const DeviceId id = mesh_.device_at(p);
      EXPECT_EQ(tracer_.last()->memory(p).peak_bytes + before[as_size(id)],
                devices_.at(id).memory().peak_bytes)
          << "position " << p;
      sent_ += devices_.at(id).traffic().sent_bytes;
    }
  }

 private:
  Mesh mesh_;
  Devices devices_;
  Tracer tracer_;
  std::size_t sent_ = 0;
};

TEST(Scan, GivesWhatTheProgramWrittenOutGivesOnAnyMesh) {
  for (const Marks& marks : all_marks()) {
    for (const std::int64_t length : {1, 2, 5}) {
      for (const bool reverse : {false, true}) {
        OnMesh looped(marks.mesh), plain("");
        const Net net = make_net(looped.tracer(), marks, length);
        const auto [last, ys] = scan(net.body(), net.first, net.xs, {.reverse = reverse});
        EXPECT_EQ(ys.shape(), (Shape{length, 5, 4}));
        looped.step();
        const Net same = make_net(plain.tracer(), {}, length);
        const auto [expected, expected_ys] = written_out(same.body(), same.first, same.xs, reverse);
        plain.step();
        EXPECT_EQ(floats(last), floats(expected)) << marks.mesh << " length " << length;
        EXPECT_EQ(floats(ys), floats(expected_ys)) << marks.mesh << " length " << length;
      }
    }
  }
}

TEST(Scan, OfLengthZeroGivesWhatItWasGiven) {
  for (const char* const mesh : {"", "data=2"}) {
    OnMesh on(mesh);
    const Net net = make_net(on.tracer(), {}, 0);
    const auto [last, ys] = scan(net.body(), net.first, net.xs);
    const Tensor gradient = grad(sum(last * last), net.first);
    on.step();
    EXPECT_EQ(floats(last), floats(net.first));
    EXPECT_EQ(ys.shape(), (Shape{0, 5, 4}));
    std::vector<float> twice = floats(net.first);
    for (float& value : twice) value *= 2;
    EXPECT_EQ(floats(gradient), twice);
  }
}

TEST(Scan, NothingNeedBeStackedOrCarriedOrGiven) {
  OnMesh on("data=2");
  Tensor x = counting(on.tracer(), {6, 2});
  mark_sharding(x, {{"data"}, {}});
  const auto doubled = [](const Tensor& h, std::nullptr_t) { return std::pair(h + h, nullptr); };
  const auto [eight, none] = scan(doubled, x, nullptr, {.length = 3});
  const auto square = [](std::nullptr_t, const Tensor& row) {
    return std::pair(nullptr, row * row);
  };
  const auto [nothing, squares] = scan(square, nullptr, x);
  // The carries change places, what comes from outside is given on, and a slice is given twice.
  using Two = std::pair<Tensor, Tensor>;
  const Tensor y = counting(on.tracer(), {6, 2}) + 1.0;
  const auto swap = [&](const Two& two, const Tensor& row) {
    return std::pair(Two(two.second, two.first), std::vector<Tensor>{row, row, y});
  };
  const auto [swapped, rows] = scan(swap, Two(x, y), x, {.length = 6});
  const auto [once, same] = scan(swap, Two(x, y), x * 1.0, {.reverse = true});
  on.step();
  std::vector<float> eights = floats(x), fours = floats(x);
  for (float& value : eights) value *= 8;
  for (float& value : fours) value *= value;
  EXPECT_EQ(floats(eight), eights);
  EXPECT_EQ(floats(squares), fours);
  EXPECT_EQ(floats(swapped.first), floats(x));
  EXPECT_EQ(floats(swapped.second), floats(y));
  EXPECT_EQ(floats(rows[0]), floats(x));
  EXPECT_EQ(floats(rows[1]), floats(x));
  EXPECT_EQ(rows[2].shape(), (Shape{6, 6, 2}));
  EXPECT_EQ(floats(same[0]), floats(x));
}

TEST(Scan, TakesMapsAndVectorsAndIntegers) {
  OnMesh on("data=2");
  using State = std::map<std::string, Tensor>;
  Tensor numbers = on.tracer().tensor<std::int32_t>({4}, {1, 2, 3, 4});
  const Tensor some = on.tracer().tensor<std::int64_t>({2}, {1, std::int64_t{1} << 40});
  const State first{{"sum", some}, {"last", some * 0}};
  const auto body = [](const State& state, const Tensor& count) {
    const Tensor wide = broadcast_to(convert(count, DType::i64), {2});
    const Tensor next = state.at("sum") * 3 + wide;
    return std::pair(State{{"sum", next}, {"last", state.at("sum")}}, eq(wide, 2));
  };
  const auto [last, twos] = scan(body, first, numbers);
  on.step();
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_EQ(last.at("sum").to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{81 + 27 + 18 + 9 + 4, 81 * big + 27 + 18 + 9 + 4}));
  EXPECT_EQ(last.at("last").to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{27 + 9 + 6 + 3, 27 * big + 9 + 6 + 3}));
  EXPECT_EQ(twos.dtype(), DType::boolean);
}

TEST(Scan, InAScanUsesWhatIsOutsideOfBoth) {
  for (const char* const mesh : {"", "data=2", "data=3"}) {
    OnMesh on(mesh);
    Tracer& tracer = on.tracer();
    Tensor x = counting(tracer, {3, 4}), w = tracer.tensor<float>({4}, {1, 0, -1, 2}, "w");
    if (*mesh != 0) mark_sharding(x, {{}, {"data"}});
    const Tensor bias = w + 1.0;
    const auto outer = [&](const Tensor& h, const Tensor& row) {
      const auto inner = [&](const Tensor& g, std::nullptr_t) {
        return std::pair(clamp(-9.0, g * w + row, 9.0), g + bias);
      };
      const auto [last, all] = scan(inner, h, nullptr, {.length = 2});
      return std::pair(last + bias, sum(all, 0));
    };
    const auto [last, ys] = scan(outer, w, x);
    const auto [expected, expected_ys] = written_out(
        [&](const Tensor& h, const Tensor& row) {
          const Tensor g = clamp(-9.0, h * w + row, 9.0);
          return std::pair(clamp(-9.0, g * w + row, 9.0) + bias, h + bias + (g + bias));
        },
        w, x, false);
    const Tensor gradient = grad(sum(last * last) + sum(ys), w),
                 expected_gradient = grad(sum(expected * expected) + sum(expected_ys), w);
    on.step();
    EXPECT_EQ(floats(last), floats(expected)) << mesh;
    EXPECT_EQ(floats(ys), floats(expected_ys)) << mesh;
    EXPECT_EQ(floats(gradient), floats(expected_gradient)) << mesh;
  }
}

TEST(Scan, GradientsAreThoseOfTheProgramWrittenOutOnAnyMesh) {
  for (const Marks& marks : all_marks()) {
    for (const bool reverse : {false, true}) {
      std::vector<std::vector<float>> found[2];
      for (const bool loops : {true, false}) {
        OnMesh on(loops ? marks.mesh : "");
        const Net net = make_net(on.tracer(), loops ? marks : Marks{}, 4);
        const auto [last, ys] = loops ? scan(net.body(), net.first, net.xs, {.reverse = reverse})
                                      : written_out(net.body(), net.first, net.xs, reverse);
        const std::vector<Tensor> gradients =
            grad(sum(last * last) + sum(ys * ys), {net.first, net.xs, net.w});
        on.step();
        for (const Tensor& gradient : gradients) found[loops].push_back(floats(gradient));
      }
      EXPECT_EQ(found[1], found[0]) << marks.mesh;
    }
  }
}

/// The loss of a net of f64 whose values are not integers.
Tensor smooth_loss(const Tensor& first, const Tensor& xs, const Tensor& w, const Tensor& unused) {
  const auto body = [&](const Tensor& h, const Tensor& x) {
    const Tensor next = tanh(linear(h, w) * x + sin(h));
    return std::pair(next, next * logistic(x));
  };
  const auto [last, ys] = scan(body, first, xs);
  return sum(last * last) + sum(ys) + sum(unused);
}

TEST(Scan, GradientsAreFiniteDifferences) {
  constexpr double kStep = 1e-6;
  const Shape state{2, 3}, steps{4, 2, 3}, weight{3, 3};
  std::mt19937 random(5);
  const auto numbers = [&](const Shape& shape) {
    std::vector<double> values(as_size(num_elements(shape)));
    for (double& value : values) value = static_cast<double>(random() % 1000) / 500 - 1;
    return values;
  };
  std::vector<std::vector<double>> given{numbers(state), numbers(steps), numbers(weight)};
  Devices devices(2);
  const auto run = [&](const std::vector<std::vector<double>>& values, bool derives) {
    Tracer tracer(devices, {.mesh = Mesh::parse("data=2")});
    Tensor first = tracer.tensor(state, values[0]), xs = tracer.tensor(steps, values[1]),
           w = tracer.tensor(weight, values[2]);
    mark_sharding(xs, {{}, {"data"}, {}});
    const Tensor loss = smooth_loss(first, xs, w, first);
    std::vector<Tensor> made{loss};
    if (derives) {
      for (const Tensor& gradient : grad(loss, {first, xs, w})) made.push_back(gradient);
    }
    tracer.mark_step();
    std::vector<std::vector<double>> all;
    for (const Tensor& one : made) all.push_back(one.to_vector<double>());
    return all;
  };
  const auto found = run(given, true);
  for (std::size_t i = 0; i < given.size(); ++i) {
    for (std::size_t e = 0; e < given[i].size(); ++e) {
      auto more = given, less = given;
      more[i][e] += kStep;
      less[i][e] -= kStep;
      const double expected = (run(more, false)[0][0] - run(less, false)[0][0]) / (2 * kStep);
      EXPECT_NEAR(found[i + 1][e], expected, 1e-7 * (1 + std::abs(expected))) << i << ' ' << e;
    }
  }
}

TEST(Scan, GradientsOfGradientsAreThoseOfTheProgramWrittenOut) {
  std::vector<std::vector<float>> found[2];
  for (const bool loops : {true, false}) {
    OnMesh on("");
    Tracer& tracer = on.tracer();
    const Tensor first = tracer.tensor<float>({2}, {1, -1}), xs = counting(tracer, {3, 2}),
                 w = tracer.tensor<float>({2}, {2, 1}, "w");
    const auto body = [&](const Tensor& h, const Tensor& x) { return std::pair(h * w + x, h * h); };
    const auto [last, ys] = loops ? scan(body, first, xs) : written_out(body, first, xs, false);
    const Tensor slope = grad(sum(last * w) + sum(ys), w);
    const std::vector<Tensor> second = grad(sum(slope * slope), {w, first, xs});
    on.step();
    for (const Tensor& one : second) found[loops].push_back(floats(one));
  }
  EXPECT_EQ(found[1], found[0]);
}

TEST(Scan, KeepsNothingOfABlockOfCheckpoint) {
  std::vector<float> gradients[2];
  std::size_t peaks[2];
  for (const bool recomputes : {false, true}) {
    OnMesh on("");
    Tracer& tracer = on.tracer();
    const Tensor x = tracer.tensor<float>({8, 16}, small({8, 16}, 1)),
                 ws = tracer.tensor<float>({6, 16, 16}, small({6, 16, 16}, 2), "ws");
    const auto body = [&](const Tensor& h, const Tensor& w) {
      const auto layer = [&](const Tensor& a) { return sin(sin(sin(linear(a, w)))); };
      return std::pair(recomputes ? checkpoint(layer, h) : layer(h), nullptr);
    };
    const auto [last, none] = scan(body, x, ws);
    const Tensor gradient = grad(sum(last * last), ws);
    on.step();
    gradients[recomputes] = floats(gradient);
    peaks[recomputes] = tracer.last()->memory(0).peak_bytes;
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_LT(peaks[1] + 6 * 2 * 8 * 16 * sizeof(float), peaks[0]);
}

TEST(Scan, InABlockOfCheckpointIsRunAgain) {
  std::vector<float> gradients[2];
  std::size_t scans[2];
  for (const bool recomputes : {false, true}) {
    OnMesh on("data=2");
    const Net net = make_net(on.tracer(), {}, 4);
    const auto block = [&](const Tensor& first) { return scan(net.body(), first, net.xs).second; };
    const Tensor ys = recomputes ? checkpoint(block, net.first) : block(net.first);
    const Tensor gradient = grad(sum(ys * ys), net.w);
    on.step();
    gradients[recomputes] = floats(gradient);
    scans[recomputes] = 0;
    for (const Node& node : on.tracer().last()->graph().nodes)
      scans[recomputes] += node.op == Op::scan;
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(scans[0], 2u);
  EXPECT_EQ(scans[1], 3u);
}

TEST(Scan, CountsItsWorkAndItsCollectivesOnceATrip) {
  OnMesh on("model=2");
  const Net net = make_net(on.tracer(), {"model=2", {}, {}, {{"model"}, {}}}, 5);
  const auto [last, ys] = scan(net.body(), net.first, net.xs);
  on.step();
  const Executable& step = *on.tracer().last();
  EXPECT_EQ(flops(step), 5 * 2.0 * 5 * 4 * 4);
  const std::vector<CollectiveTotal> totals = step.collectives();
  ASSERT_EQ(totals.size(), 1u) << dump(step);
  EXPECT_EQ(totals[0].kind, CollectiveKind::reduce_scatter);
  EXPECT_EQ(totals[0].count, 5);
  EXPECT_EQ(totals[0].bytes, 5 * 5 * 2 * sizeof(float));
  EXPECT_EQ(report(step, machines().front()).device_flops, flops(step) / 2);
}

/// The collectives of a kind.
std::int64_t count(const Executable& step, CollectiveKind kind) {
  std::int64_t found = 0;
  for (const CollectiveTotal& total : step.collectives()) {
    if (total.kind == kind) found += total.count;
  }
  return found;
}

// As in the program written out, where a weight's gradients are added up before they are combined.
TEST(Scan, TheGradientOfAWeightThatEachTripUsesIsCombinedOnce) {
  OnMesh on("data=4");
  const Net net = make_net(on.tracer(), {"data=4", {{"data"}, {}}, {{}, {"data"}, {}}, {}}, 6);
  const Tensor gradient = grad(sum(scan(net.body(), net.first, net.xs).second), net.w);
  on.step();
  EXPECT_EQ(count(*on.tracer().last(), CollectiveKind::all_reduce), 1) << dump(*on.tracer().last());
}

TEST(Scan, AWeightThatEachTripUsesIsGatheredOnceForEachPass) {
  OnMesh on("data=4");
  const Net net =
      make_net(on.tracer(), {"data=4", {{"data"}, {}}, {{}, {"data"}, {}}, {{"data"}, {}}}, 6);
  const Tensor gradient = grad(sum(scan(net.body(), net.first, net.xs).second), net.w);
  on.step();
  EXPECT_EQ(count(*on.tracer().last(), CollectiveKind::all_gather), 2) << dump(*on.tracer().last());
}

// One more place for a carry that the body still reads when it has the next; none for others.
TEST(Scan, ACarryIsWrittenOverWhatItWasIfThatCanBe) {
  const auto peak = [](std::int64_t length, const auto& next) {
    OnMesh on("data=1");
    const Tensor h = counting(on.tracer(), {32, 32}, "h"), w = counting(on.tracer(), {32, 32}, "w");
    const auto body = [&](const Tensor& c, const std::tuple<>&) {
      return std::pair(next(c, w), std::tuple<>());
    };
    const Tensor last = scan(body, h, std::tuple<>(), {.length = length}).first;
    on.step();
    return on.tracer().last()->memory(0).peak_bytes;
  };
  const auto scaled = [](const Tensor& c, const Tensor& w) { return c * 0.5 + w; };
  const auto product = [](const Tensor& c, const Tensor& w) { return matmul(c, w); };
  const auto gone_before = [](const Tensor& c, const Tensor& w) { return matmul(c * 2.0, w); };
  EXPECT_EQ(peak(5, scaled), peak(1, scaled));
  EXPECT_EQ(peak(5, product), peak(1, product) + 32 * 32 * 4);
  EXPECT_EQ(peak(5, gone_before), peak(1, gone_before));
}

// Carries that take each other's place, are read by a neighbour, and by two results at once.
TEST(Scan, CarriesThatAreWrittenOverOneAnotherAreThoseOfTheProgramWrittenOut) {
  const auto run = [](const char* mesh, bool is_loop) {
    const Mesh of = Mesh::parse(mesh);
    Devices devices(of.size(), {.threads = 4});
    Tracer tracer(devices, {.mesh = of});
    Tensor a = counting(tracer, {24, 3}, "a"), b = counting(tracer, {24, 3}, "b");
    Tensor xs = tracer.tensor<float>({7, 24, 3}, small({7, 24, 3}, 3), "xs");
    mark_sharding(a, PartitionSpec::parse("data,-"));
    mark_sharding(b, PartitionSpec::parse("data,-"));
    using Carry = std::tuple<Tensor, Tensor, Tensor>;
    const auto body = [](const Carry& carry, const Tensor& x) {
      const auto& [p, q, r] = carry;
      const Tensor above = concatenate({slice(r, {23, 0}, {24, 3}), slice(r, {0, 0}, {23, 3})}, 0);
      const Tensor n = clamp(-9.0, p - q + x, 9.0), m = clamp(-9.0, q - p * x, 9.0);
      return std::pair(Carry(m, p, clamp(-9.0, r + above + n, 9.0)), n - q);
    };
    const Carry first(a, b, a * 0.0 + b);
    const auto [last, ys] =
        is_loop ? scan(body, first, xs) : written_out(body, first, xs, /*reverse=*/false);
    tracer.mark_step();
    std::vector<float> all = ys.to_vector<float>();
    for (const Tensor& one : {std::get<0>(last), std::get<1>(last), std::get<2>(last)}) {
      const std::vector<float> values = one.to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<float> expected = run("data=1", false);
  for (const char* const mesh : {"data=1", "data=2", "data=5", "data=8"}) {
    EXPECT_EQ(run(mesh, true), expected) << mesh;
  }
}

TEST(Scan, TheProgramDoesNotGrowWithItsLength) {
  std::size_t nodes[2], steps[2];
  for (const bool longer : {false, true}) {
    OnMesh on("data=2");
    const Net net = make_net(on.tracer(), {}, longer ? 300 : 3);
    const auto [last, ys] = scan(net.body(), net.first, net.xs);
    const Tensor gradient = grad(sum(ys * ys), net.w);
    on.step();
    nodes[longer] = on.tracer().last()->graph().nodes.size();
    steps[longer] = planned_program(*on.tracer().last()).partitioned.steps.size();
  }
  EXPECT_EQ(nodes[0], nodes[1]);
  EXPECT_EQ(steps[0], steps[1]);
}

TEST(Scan, IsFoundAgainAndToldFromAnotherBody) {
  OnMesh on("");
  const auto run = [&](double number) {
    const Tensor x = counting(on.tracer(), {3, 2});
    const auto [last, ys] =
        scan([&](const Tensor& h, const Tensor& row) { return std::pair(h + row * number, h); },
             full_like(x[0], 0), x);
    on.step();
    return floats(last);
  };
  EXPECT_EQ(run(1), (std::vector<float>{6, 9}));
  EXPECT_EQ(run(1), (std::vector<float>{6, 9}));
  EXPECT_EQ(on.tracer().counters().hits, 1);
  EXPECT_EQ(run(2), (std::vector<float>{12, 18}));
  EXPECT_EQ(on.tracer().counters().hits, 1);
  EXPECT_THAT(on.tracer().last_miss(), HasSubstr("another body"));
}

TEST(Scan, TextShowsTheBodyInBraces) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {3, 2}}, "x")},
      w{&graph, append_input(graph, {DType::f32, {2}}, "w")},
      h{&graph, append_input(graph, {DType::f32, {2}}, "h")};
  const auto [last, ys] =
      scan([&](const NodeRef& a, const NodeRef& row) { return std::pair(a * w + row, a); }, h, x,
           {.reverse = true});
  graph.outputs = {last.id, ys.id};
  EXPECT_EQ(dump(graph),
            "%0 = input() \"x\" : f32[3, 2]\n"
            "%1 = input() \"w\" : f32[2]\n"
            "%2 = input() \"h\" : f32[2]\n"
            "%3 = scan(%1, %2, %0) length=[3] carries=[1] xs=[1] reverse : bool[0] {\n"
            "  %0 = input() \"w\" : f32[2]\n"
            "  %1 = input() \"carry\" : f32[2]\n"
            "  %2 = input() \"x\" : f32[2]\n"
            "  %3 = mul(%1, %0) : f32[2]\n"
            "  %4 = add(%3, %2) : f32[2]\n"
            "  return %4 %1\n"
            "}\n"
            "%4 = result(%3) index=[0] : f32[2]\n"
            "%5 = result(%3) index=[1] : f32[3, 2]\n"
            "return %4 %5\n");
}

// ---- cond().

/// A loss and its gradients, of one of two branches.
std::vector<std::vector<float>> decided(const Marks& marks, float number, bool written_out) {
  OnMesh on(written_out ? "" : marks.mesh);
  Tracer& tracer = on.tracer();
  const Net net = make_net(tracer, written_out ? Marks{} : marks, 2);
  const Tensor decides = gt(tracer.tensor<float>({}, {number}), 0);
  const auto product = [&](const Tensor& h) { return std::pair(linear(h, net.w), h * 2.0); };
  const auto difference = [&](const Tensor& h) { return std::pair(h - net.xs[1], h * h); };
  const auto [y, z] = written_out ? (number > 0 ? product(net.first) : difference(net.first))
                                  : cond(decides, product, difference, net.first);
  std::vector<Tensor> made = grad(sum(y * y) + sum(z), {net.first, net.xs, net.w});
  made.push_back(y);
  made.push_back(z);
  on.step();
  std::vector<std::vector<float>> values;
  for (const Tensor& one : made) values.push_back(floats(one));
  return values;
}

TEST(Cond, GivesWhatTheBranchGivesOnAnyMesh) {
  for (const Marks& marks : all_marks()) {
    for (const float number : {1.0F, -1.0F}) {
      EXPECT_EQ(decided(marks, number, false), decided(marks, number, true)) << marks.mesh;
    }
  }
}

TEST(Cond, InAScanDecidesEachTime) {
  for (const char* const mesh : {"", "data=2"}) {
    OnMesh on(mesh);
    Tensor x = counting(on.tracer(), {6, 4});
    if (*mesh != 0) mark_sharding(x, {{}, {"data"}});
    const auto body = [](const Tensor& h, const Tensor& row) {
      const Tensor next = cond(
          lt(sum(h), 20), [](const Tensor& a, const Tensor& b) { return a + b; },
          [](const Tensor& a, const Tensor&) { return a * 0.5; }, h, row);
      return std::pair(next, next);
    };
    const auto [last, ys] = scan(body, full_like(x[0], 1), x);
    const Tensor gradient = grad(sum(last), x);
    on.step();
    // 1 + 0 .. 3, + 4 .. 7 is 32 in all; halved it is 16; + 12 .. 15 is 70; halved twice.
    EXPECT_EQ(floats(last), (std::vector<float>{3.625, 4.125, 4.625, 5.125})) << mesh;
    std::vector<float> expected(24, 0);
    for (std::size_t i = 0; i < 8; ++i) expected[i] = 0.125;
    for (std::size_t i = 12; i < 16; ++i) expected[i] = 0.25;
    EXPECT_EQ(floats(gradient), expected) << mesh;
  }
}

TEST(Cond, RefusesWhatIsNoScalarAndBranchesThatDiffer) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = counting(tracer, {2}, "x"), yes = gt(sum(x), 0);
  const auto scope = tracer.scope("net");
  const auto same = [&] { return x; };
  const auto refusal = [](const std::function<void()>& body) {
    return message_of(ErrorCode::invalid_argument, body);
  };
  EXPECT_EQ(refusal([&] { cond(gt(x, 0), same, same); }),
            "cond(%5 bool[2], %0 f32[2]) in \"net\": found bool[2] to decide by, needed bool[]");
  EXPECT_EQ(refusal([&] { cond(yes, same, [&] { return sum(x); }); }),
            "cond(%3 bool[]) in \"net\": found branches that give result as f32[2] and as f32[], "
            "needed one type");
  const auto list = [&](std::size_t count) {
    return [&, count] { return std::vector<Tensor>(count, x); };
  };
  EXPECT_EQ(refusal([&] { cond(yes, list(2), list(1)); }),
            "cond(%3 bool[]) in \"net\": found branches that give 2 and 1 tensors, needed the same "
            "of both");
}

}  // namespace
}  // namespace shardwise
