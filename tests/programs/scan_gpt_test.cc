#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "model.h"
#include "plan.h"
#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

// The GPT of examples/gpt with its layers as one scan.

namespace shardwise {
namespace {

constexpr gpt::Sizes kSizes{.layers = 3, .width = 16, .heads = 2, .context = 8, .batch = 8};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;
  double flops = 0;
  std::size_t nodes = 0;
};

/// The first values of a weight, or of those of all layers.
std::vector<float> first_values(const gpt::Weight& weight, const gpt::Recipe& recipe) {
  gpt::Recipe plain = recipe;
  plain.scan = false;
  std::vector<float> values;
  std::size_t number = 0;
  for (const gpt::Weight& one : gpt::weights(kSizes, plain)) {
    ++number;
    const std::size_t dot = one.name.find('.');
    const bool is_part = dot != std::string::npos && "layers" + one.name.substr(dot) == weight.name;
    if (one.name != weight.name && !is_part) continue;
    for (std::int64_t i = 0; i < num_elements(one.shape); ++i) {
      // No pattern: columns of a router that differ by a constant would make ties.
      const std::size_t mixed = (static_cast<std::size_t>(i) + number * 40'503) * 2'654'435'761;
      const auto some = static_cast<double>((mixed >> 16) % 19) - 9;
      values.push_back(static_cast<float>(one.deviation == 0 ? one.value : some * one.deviation));
    }
  }
  return values;
}

/// Three steps; planned memory is compared with measured.
Trained train(const std::string& mesh_text, const std::string& plan_name,
              const gpt::Recipe& recipe) {
  const Mesh mesh = Mesh::parse(mesh_text);
  const gpt::Plan plan(plan_name, mesh);
  Devices devices(mesh.size());
  Tracer tracer(devices, {.mesh = mesh});
  std::vector<Tensor> weights;
  std::vector<std::string> names;
  for (const gpt::Weight& weight : gpt::weights(kSizes, recipe)) {
    names.push_back(weight.name);
    weights.push_back(tracer.tensor(weight.shape, first_values(weight, recipe), weight.name,
                                    MemoryKind::parameter));
    mark_sharding(weights.back(), plan.weight(weight.name, weight.shape));
  }
  Trained result;
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = [&] {
      Tensor tokens =
          counting(tracer, {kSizes.batch, kSizes.context}, "tokens", MemoryKind::loader);
      mark_sharding(tokens, plan.batch());
      tokens = convert(tokens, DType::i32);
      if (recipe.context_blocks > 0) {
        tokens = zigzag(tokens, 1, recipe.context_blocks);
        mark_sharding(tokens, plan.ordered_batch());
      }
      const Tensor number = full(tracer, {DType::f32, {}}, step, "number");
      std::map<std::string, Tensor> by_name;
      for (std::size_t i = 0; i < names.size(); ++i) by_name.emplace(names[i], weights[i]);
      const Tensor mean =
          gpt::loss(tracer, kSizes, plan.spread(recipe), by_name, number, tokens, tokens).mean;
      const std::vector<Tensor> gradients = grad(mean, weights);
      for (std::size_t i = 0; i < names.size(); ++i) weights[i] -= gradients[i] * 0.1;
      return mean;
    }();
    for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
    tracer.mark_step();
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      EXPECT_EQ(tracer.last()->memory(p).peak_bytes, devices.at(p).memory().peak_bytes);
    }
    result.losses.push_back(loss.item());
  }
  for (std::size_t i = 0; i < names.size(); ++i) result.weights[names[i]] = floats(weights[i]);
  result.flops = flops(*tracer.last());
  result.nodes = tracer.last()->graph().nodes.size();
  return result;
}

void expect_near(const std::map<std::string, std::vector<float>>& found,
                 const std::map<std::string, std::vector<float>>& expected, const char* mesh) {
  for (const auto& [name, values] : found) {
    EXPECT_THAT(values, testing::Pointwise(testing::FloatNear(1e-5F), expected.at(name)))
        << mesh << name;
  }
}

TEST(ScanOfTheGpt, GivesTheLossesAndWeightsOfTheLayersWrittenOut) {
  const struct {
    const char *mesh, *plan;
    gpt::Recompute recompute = gpt::Recompute::none;
    double dropout = 0;
  } cases[] = {{"", "none"},
               {"data=4", "data"},
               {"data=4", "fsdp"},
               {"data=2,model=2", "tensor"},
               {"data=2,model=2", "2d"},
               {"data=2", "fsdp", gpt::Recompute::all},
               {"data=2", "data", gpt::Recompute::inside, 0.25}};
  for (const auto& c : cases) {
    gpt::Recipe recipe{.dropout = c.dropout, .recompute = c.recompute};
    const Trained expected = train(c.mesh, c.plan, recipe);
    recipe.scan = true;
    const Trained found = train(c.mesh, c.plan, recipe);
    const std::string which = std::string(c.mesh) + ' ' + c.plan;
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5) << which;
    }
    EXPECT_EQ(found.flops, expected.flops) << which;
    EXPECT_LT(2 * found.nodes, expected.nodes);
    for (const auto& [name, values] : found.weights) {
      std::vector<float> all;
      if (!name.starts_with("layers.")) all = expected.weights.at(name);
      for (std::int64_t layer = 0; all.size() < values.size(); ++layer) {
        const std::vector<float>& one =
            expected.weights.at("l" + std::to_string(layer) + name.substr(6));
        all.insert(all.end(), one.begin(), one.end());
      }
      if (which == " none") {
        EXPECT_EQ(values, all) << name;
      } else {  // parts of sums are added up in another order
        EXPECT_THAT(values, testing::Pointwise(testing::FloatNear(1e-5F), all)) << which << name;
      }
    }
  }
}

TEST(PipelineOfTheGpt, GivesTheLossesAndWeightsOfTheScan) {
  gpt::Recipe recipe{.scan = true};
  const Trained expected = train("", "none", recipe);
  const struct {
    const char* mesh;
    std::int64_t stages;
    gpt::Recompute recompute = gpt::Recompute::none;
  } cases[] = {{"stage=3", 3},
               {"data=2,stage=3", 3},
               {"stage=3,model=2", 3},
               {"data=2,stage=3,model=2", 3, gpt::Recompute::inside}};
  for (const auto& c : cases) {
    recipe.stages = c.stages;
    recipe.micro_batches = 4;
    recipe.recompute = c.recompute;
    const Trained found = train(c.mesh, "pipeline", recipe);
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5) << c.mesh;
    }
    expect_near(found.weights, expected.weights, c.mesh);
  }
}

TEST(ContextOfTheGpt, GivesTheLossesAndWeightsOfOneDevice) {
  const Trained expected = train("", "none", {});
  const struct {
    const char* mesh;
    std::int64_t blocks;
    bool scan = false;
    gpt::Recompute recompute = gpt::Recompute::none;
  } cases[] = {{"context=4", 4},
               {"data=2,context=2", 2},
               {"context=2,model=2", 2},
               {"data=2,context=2,model=2", 2, true},
               {"context=4", 4, true, gpt::Recompute::all}};
  for (const auto& c : cases) {
    const gpt::Recipe recipe{.recompute = c.recompute, .scan = c.scan, .context_blocks = c.blocks};
    const Trained found = train(c.mesh, "context", recipe);
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5) << c.mesh;
    }
    if (!c.scan) expect_near(found.weights, expected.weights, c.mesh);
  }
}

TEST(ExpertsOfTheGpt, GiveTheLossesAndWeightsOfOneDevice) {
  for (const double capacity : {0.0, 1.0}) {
    gpt::Recipe recipe{.experts = {.count = 4, .capacity = capacity}};
    const Trained expected = train("", "none", recipe);
    const struct {
      const char* mesh;
      bool scan = false;
      gpt::Recompute recompute = gpt::Recompute::none;
    } cases[] = {{"expert=4"},
                 {"data=2,expert=2"},
                 {"data=2,expert=2,model=2"},
                 {"expert=4", true},
                 {"expert=2", false, gpt::Recompute::inside},
                 {"data=2,expert=2", true, gpt::Recompute::all}};
    for (const auto& c : cases) {
      recipe.scan = c.scan;
      recipe.recompute = c.recompute;
      const Trained found = train(c.mesh, "expert", recipe);
      for (std::size_t step = 0; step < expected.losses.size(); ++step) {
        EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5) << c.mesh << capacity;
      }
      if (!c.scan) expect_near(found.weights, expected.weights, c.mesh);
    }
  }
}

}  // namespace
}  // namespace shardwise
