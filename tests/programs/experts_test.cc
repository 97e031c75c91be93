#include "shardwise/runtime/nn/experts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tensor.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// experts() routes as a loop over tokens does, and sends each place of an expert once there and
// once back.

namespace shardwise {
namespace {

constexpr std::int64_t kGroups = 8, kTokens = 6, kRowWidth = 4, kExperts = 4;

struct Mixed {
  std::vector<float> y, x, router, params;  ///< the result, and gradients
  double dropped = 0, balance = 0;
  std::vector<CollectiveTotal> collectives;
};

std::vector<float> fractions(const Shape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(as_size(num_elements(shape)));
  for (float& value : values) value = static_cast<float>(random() % 65) / 32 - 1;
  return values;
}

const Shape kX{kGroups, kTokens, kRowWidth}, kRouter{kRowWidth, kExperts},
    kIn{kExperts, kRowWidth, 32}, kOut{kExperts, 32, kRowWidth};

Mixed mixed(const std::string& mesh_text, const ExpertsOptions& options) {
  const Mesh mesh = Mesh::parse(mesh_text);
  Devices devices(mesh.size(), {.threads = 2});
  Tracer tracer(devices, {.mesh = mesh});
  const auto axis = [&](const char* name) {
    return mesh_text.find(name) == std::string::npos ? PartitionSpec::Entry{}
                                                     : PartitionSpec::Entry{name};
  };
  Tensor x = tracer.tensor(kX, fractions(kX, 1), "x");
  Tensor router = tracer.tensor(kRouter, fractions(kRouter, 2), "router");
  Tensor in = tracer.tensor(kIn, fractions(kIn, 3), "in");
  Tensor out = tracer.tensor(kOut, fractions(kOut, 4), "out");
  PartitionSpec::Entry rows = axis("data");
  if (const auto expert = axis("expert"); !expert.empty()) rows.push_back(expert.front());
  mark_sharding(x, {rows, {}, {}});
  mark_sharding(in, {axis("expert"), {}, {}});
  mark_sharding(out, {axis("expert"), {}, {}});
  using Expert = std::pair<Tensor, Tensor>;
  const auto block = [](const Tensor& own, const Expert& expert) {
    return linear(tanh(linear(own, expert.first)), expert.second);
  };
  ExpertsOptions with_axes = options;
  with_axes.group_axes = rows;
  with_axes.expert_axes = axis("expert");
  const auto [y, dropped, balance] = experts(block, Expert(in, out), x, router, with_axes);
  const std::vector<Tensor> gradients = grad(sum(y * y) + balance, {x, router, in, out});
  for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
  tracer.mark_step();
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    EXPECT_EQ(tracer.last()->memory(p).peak_bytes, devices.at(p).memory().peak_bytes) << mesh_text;
  }
  Mixed found{
      floats(y),      floats(gradients[0]), floats(gradients[1]),        floats(gradients[2]),
      dropped.item(), balance.item(),       tracer.last()->collectives()};
  return found;
}

/// The mixture by a loop over tokens.
Mixed by_hand(const ExpertsOptions& options) {
  const std::vector<float> x = fractions(kX, 1), router = fractions(kRouter, 2),
                           in = fractions(kIn, 3), out = fractions(kOut, 4);
  const auto at = [](const Shape& shape, std::int64_t i, std::int64_t j, std::int64_t k) {
    return as_size((i * shape[1] + j) * shape[2] + k);
  };
  Mixed made;
  made.y.resize(x.size());
  std::vector<double> first_choices(kExperts), all_gates(kExperts);
  for (std::int64_t g = 0; g < kGroups; ++g) {
    std::vector<std::vector<double>> gates(kTokens, std::vector<double>(kExperts));
    std::vector<std::vector<std::int64_t>> order(kTokens, std::vector<std::int64_t>(kExperts));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      double whole = 0;
      for (std::int64_t e = 0; e < kExperts; ++e) {
        double logit = 0;
        for (std::int64_t d = 0; d < kRowWidth; ++d) {
          logit += x[at(kX, g, t, d)] * router[as_size(d * kExperts + e)];
        }
        whole += gates[as_size(t)][as_size(e)] = std::exp(logit);
      }
      for (double& gate : gates[as_size(t)]) gate /= whole;
      std::iota(order[as_size(t)].begin(), order[as_size(t)].end(), 0);
      std::ranges::stable_sort(order[as_size(t)], [&](std::int64_t a, std::int64_t b) {
        return gates[as_size(t)][as_size(a)] > gates[as_size(t)][as_size(b)];
      });
      first_choices[as_size(order[as_size(t)][0])] += 1.0 / (kGroups * kTokens);
      for (std::int64_t e = 0; e < kExperts; ++e) {
        all_gates[as_size(e)] += gates[as_size(t)][as_size(e)] / (kGroups * kTokens);
      }
    }
    std::vector<std::int64_t> taken(kExperts);
    for (std::int64_t choice = 0; choice < options.top_k; ++choice) {
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const std::vector<std::int64_t>& best = order[as_size(t)];
        const std::int64_t e = best[as_size(choice)];
        if (options.capacity > 0 && taken[as_size(e)]++ >= options.capacity) {
          ++made.dropped;
          continue;
        }
        double sum = 0;
        for (std::int64_t c = 0; c < options.top_k; ++c)
          sum += gates[as_size(t)][as_size(best[as_size(c)])];
        const double gate = gates[as_size(t)][as_size(e)] / (options.top_k > 1 ? sum : 1);
        for (std::int64_t h = 0; h < kIn[2]; ++h) {
          double hidden = 0;
          for (std::int64_t d = 0; d < kRowWidth; ++d)
            hidden += x[at(kX, g, t, d)] * in[at(kIn, e, d, h)];
          for (std::int64_t d = 0; d < kRowWidth; ++d) {
            made.y[at(kX, g, t, d)] +=
                static_cast<float>(gate * std::tanh(hidden) * out[at(kOut, e, h, d)]);
          }
        }
      }
    }
  }
  for (std::int64_t e = 0; e < kExperts; ++e) {
    made.balance += kExperts * first_choices[as_size(e)] * all_gates[as_size(e)];
  }
  return made;
}

auto near_each(const std::vector<float>& values) {
  return testing::Pointwise(testing::FloatNear(2e-4F), values);
}

TEST(Experts, AreThoseOfALoopOverTokensOnAnyMesh) {
  for (const ExpertsOptions& options :
       {ExpertsOptions{.top_k = 1}, ExpertsOptions{.top_k = 1, .capacity = 2},
        ExpertsOptions{.top_k = 2, .capacity = 3}, ExpertsOptions{.top_k = 4, .capacity = 1},
        ExpertsOptions{.top_k = 2, .capacity = 99}}) {
    const Mixed expected = by_hand(options), whole = mixed("", options);
    if (options.capacity > 0 && options.capacity < 4) {
      EXPECT_GT(expected.dropped, 0);
    }
    for (const char* const mesh :
         {"", "expert=4", "expert=2", "data=2,expert=4", "expert=2,data=2", "data=8", "expert=3"}) {
      const Mixed found = mixed(mesh, options);
      const std::string which =
          fmt::format("mesh {} top_k {} capacity {}", mesh, options.top_k, options.capacity);
      EXPECT_THAT(found.y, near_each(expected.y)) << which;
      EXPECT_EQ(found.dropped, expected.dropped) << which;
      EXPECT_NEAR(found.balance, expected.balance, 1e-5) << which;
      EXPECT_THAT(found.x, near_each(whole.x)) << which;
      EXPECT_THAT(found.router, near_each(whole.router)) << which;
      EXPECT_THAT(found.params, near_each(whole.params)) << which;
    }
  }
}

TEST(Experts, RouterLearnsFromItsGates) {
  const Mixed whole = mixed("", {.top_k = 1});
  EXPECT_THAT(whole.router, testing::Contains(testing::Ne(0)));
}

TEST(Experts, MoveRowsByFourAllToAlls) {
  const std::int64_t capacity = 3;
  const std::size_t rows =
      as_size(kExperts * kGroups * capacity * kRowWidth) * sizeof(float);  // of all devices
  for (const auto& [mesh, devices] :
       {std::pair{"expert=4", 4}, {"expert=2", 2}, {"data=2,expert=4", 8}}) {
    for (const CollectiveTotal& total :
         mixed(mesh, {.top_k = 2, .capacity = capacity}).collectives) {
      if (total.kind == CollectiveKind::all_to_all) {  // there and back, and so their gradients
        EXPECT_EQ(total.tensors, 4) << mesh;
        EXPECT_EQ(total.bytes, 4 * rows / as_size(devices)) << mesh;
      } else {  // gradients of weights, and the numbers that are counted
        EXPECT_EQ(name(total.kind), "all-reduce") << mesh;
      }
    }
  }
}

TEST(Experts, RefuseOtherShapes) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = counting(tracer, {2, 6, 4}), router = counting(tracer, {4, 3});
  const Tensor ws = counting(tracer, {3, 4, 4});
  const auto refusal = [&](const Tensor& routes, const ExpertsOptions& options) {
    return message_of(ErrorCode::invalid_argument, [&] {
      experts([](const Tensor& rows, const Tensor& w) { return linear(rows, w); }, ws, x, routes,
              options);
    });
  };
  EXPECT_EQ(
      refusal(router, {.top_k = 4}),
      "experts(%0 f32[2, 6, 4], %1 f32[4, 3]): found top_k 4 and capacity 0, needed x [groups, "
      "tokens, width], a router [width, experts], a top_k of 1 to the experts, and a capacity "
      "of 0 or more");
  EXPECT_THAT(refusal(router, {.capacity = -1}), testing::HasSubstr("capacity -1"));
  EXPECT_THAT(refusal(ws, {}), testing::HasSubstr("needed x [groups, tokens, width]"));
}

}  // namespace
}  // namespace shardwise
