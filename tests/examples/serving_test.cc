#include "serving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/nn/attention.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"
#include "tokens.h"
#include "training.h"

namespace gpt {
namespace {

using namespace shardwise;

constexpr Sizes kServed{.layers = 2, .width = 32, .heads = 4, .context = 24, .batch = 8};
constexpr std::pair<const char*, const char*> kMeshes[] = {
    {"1", "none"},         {"model=2", "tensor"},        {"model=4", "tensor"},
    {"data=2", "data"},    {"data=2,model=2", "tensor"}, {"fsdp=3", "fsdp"},
    {"model=3", "tensor"}, {"fsdp=2,model=2", "2d"},     {"data=4,model=2", "tensor"}};

Text text_of(const std::string& bytes) { return {bytes.begin(), bytes.end()}; }

const std::vector<Text> kTexts{text_of("abac"), text_of("f"), text_of("cadeaba"), text_of("ee")};

/// A model of large random weights, so that each token depends on all before it.
class GptServing : public testing::Test {
 protected:
  void SetUp() override { directory_ = saved("plain", {}); }

  std::filesystem::path saved(const char* name, const Recipe& recipe) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 0.4F);
    Recipe plain = recipe;
    plain.scan = false;  // stacked weights begin with those of separate layers
    std::map<std::string, Given> given;
    for (const Weight& weight : weights(kServed, plain)) {
      std::vector<float> values(as_size(num_elements(weight.shape)));
      // Gains and biases stay near their first values.
      const float by = weight.deviation == 0 ? 0.1F : 1.0F;
      for (float& value : values) value = static_cast<float>(weight.value) + by * normal(random);
      const auto bytes = std::as_bytes(std::span(values));
      given[weight.name] = {DType::f32, weight.shape, {bytes.begin(), bytes.end()}};
    }
    Devices devices(1);
    Training training(devices, parse_mesh("1"), Plan("none", parse_mesh("1")), kServed, recipe);
    training.begin(1, given);
    write_file(dir_ / "text", std::string(100, 'a'));
    // The rate 0 keeps the weights, and they come to the device.
    training.step(*read_tokens(dir_ / "text", kServed.batch, kServed.context)->next(), 0);
    CheckpointManager manager(dir_ / name);
    manager.save(1, training.sources(), {.user_json = training.user_json()});
    return manager.latest()->step.directory;
  }

  /// A model on a mesh of its own.
  struct Served {
    Served(const std::filesystem::path& from, const char* mesh_text, const char* plan,
           const Recipe& recipe = {}, const Sizes& sizes = kServed)
        : mesh(parse_mesh(mesh_text)),
          devices(mesh.size()),
          serving(devices, mesh, Plan(plan, mesh), sizes, recipe) {
      serving.restore(CheckpointReader(from));
    }
    Mesh mesh;
    Devices devices;
    Serving serving;
  };

  std::vector<Text> generated(const GenerateOptions& options,
                              const std::vector<Text>& texts = kTexts, const char* mesh = "1",
                              const char* plan = "none") {
    return Served(directory_, mesh, plan).serving.generate(texts, options);
  }

  /// Logits after a text, by the forward pass of training: no cache, no padding.
  std::vector<float> uncached_logits(const Text& text) {
    const CheckpointReader reader(directory_);
    Devices devices(1);
    Tracer tracer(devices);
    Weights weights;
    for (const Weight& weight : gpt::weights(kServed)) {
      weights.emplace(weight.name,
                      tracer.tensor(weight.shape, reader.read<float>(weight.name), weight.name));
    }
    const Blocks blocks(tracer, kServed, {}, weights);
    const auto length = static_cast<std::int64_t>(text.size());
    Tensor h = take(blocks.weight("embed"), tracer.tensor(Shape{1, length}, text), 0) +
               slice(blocks.weight("pos"), {0, 0}, {length, kServed.width});
    for (std::int64_t i = 0; i < kServed.layers; ++i) {
      h = blocks
              .layer(
                  h, blocks.layer_weights(i),
                  [](const Tensor& q, const Tensor& k, const Tensor& v) {
                    return attention(q, k, v);
                  },
                  [](const Tensor& x, double) { return x; })
              .h;
    }
    const Tensor last = blocks.logits(h)[0][-1];
    tracer.mark_step();
    return last.to_vector<float>();
  }

  TempDir dir_;
  std::filesystem::path directory_;
};

TEST_F(GptServing, ContinuesEachTextAsAForwardPassWithoutACache) {
  const std::vector<Text> made = generated({.tokens = 12});
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    Text text = kTexts[i], right;
    for (int n = 0; n < 12; ++n) {
      const std::vector<float> logits = uncached_logits(text);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      right.push_back(static_cast<std::int32_t>(best));
      text.push_back(right.back());
    }
    EXPECT_EQ(made[i], right) << i;
  }
  EXPECT_GT(std::set<std::int32_t>(made[0].begin(), made[0].end()).size(), 6u) << "no loop";
}

TEST_F(GptServing, GivesTheTokensOfOneDeviceOnAnyMesh) {
  const GenerateOptions greedy{.tokens = 12}, drawn{.tokens = 12, .temperature = 0.9, .seed = 5},
      of_few{.tokens = 12, .temperature = 2, .top_k = 5, .seed = 5};
  const std::vector<Text> first = generated(greedy), second = generated(drawn),
                          third = generated(of_few);
  EXPECT_NE(first, second);
  EXPECT_NE(second, third);
  for (const auto& [mesh, plan] : kMeshes) {
    SCOPED_TRACE(std::string(mesh) + " " + plan);
    Served served(directory_, mesh, plan);
    EXPECT_EQ(served.serving.generate(kTexts, greedy), first);
    EXPECT_EQ(served.serving.generate(kTexts, drawn), second);
    EXPECT_EQ(served.serving.generate(kTexts, of_few), third);
  }
}

TEST_F(GptServing, ATextDoesNotDependOnTheOthers) {
  const std::vector<Text> together = generated({.tokens = 10});
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    EXPECT_EQ(generated({.tokens = 10}, {kTexts[i]}), std::vector<Text>{together[i]}) << i;
  }
  // Random numbers follow the number of the text, so the first may be alone.
  const GenerateOptions drawn{.tokens = 10, .temperature = 1};
  EXPECT_EQ(generated(drawn, {kTexts[0]})[0], generated(drawn)[0]);
}

TEST_F(GptServing, DrawsTheSameForASeedAndOthersForAnother) {
  const GenerateOptions drawn{.tokens = 16, .temperature = 1.5, .seed = 7};
  GenerateOptions other = drawn, one = drawn;
  other.seed = 8;
  one.top_k = 1;
  EXPECT_EQ(generated(drawn), generated(drawn));
  EXPECT_NE(generated(drawn), generated(other));
  EXPECT_EQ(generated(one), generated({.tokens = 16})) << "of the most likely one";
}

TEST_F(GptServing, DrawsByTheProbabilitiesOfTheLogits) {
  constexpr std::size_t kDraws = 4000;
  constexpr double kTemperature = 1.3;
  std::vector<float> logits = uncached_logits(kTexts[0]);
  std::vector<double> likely;
  for (const float logit : logits) likely.push_back(std::exp(logit / kTemperature));
  std::vector<std::size_t> order(likely.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return likely[a] > likely[b]; });
  for (const std::int64_t top_k : {0, 4}) {
    const std::vector<Text> made =
        generated({.tokens = 1, .temperature = kTemperature, .top_k = top_k},
                  std::vector<Text>(kDraws, kTexts[0]));
    std::vector<double> counts(likely.size(), 0);
    for (const Text& text : made) counts[as_size(text.at(0))] += 1;
    const std::size_t among = top_k == 0 ? likely.size() : as_size(top_k);
    double total = 0;
    for (std::size_t i = 0; i < among; ++i) total += likely[order[i]];
    for (std::size_t i = 0; i < likely.size(); ++i) {
      const double p = i < among ? likely[order[i]] / total : 0;
      EXPECT_NEAR(counts[order[i]] / kDraws, p, 5 * std::sqrt(p / kDraws) + 3.0 / kDraws)
          << order[i];
    }
  }
}

TEST_F(GptServing, ATextEndsBeforeTheStopToken) {
  const std::vector<Text> whole = generated({.tokens = 12});
  // A token that one text has in the middle, at least.
  const std::int32_t stop = whole[0][6];
  std::vector<Text> right = whole;
  for (Text& text : right) text.erase(std::find(text.begin(), text.end(), stop), text.end());
  std::vector<Text> streamed(kTexts.size());
  std::size_t steps = 0;
  Served served(directory_, "model=2", "tensor");
  const std::vector<Text> made =
      served.serving.generate(kTexts, {.tokens = 12, .stop = stop},
                              [&](const std::vector<std::optional<std::int32_t>>& tokens) {
                                ASSERT_EQ(tokens.size(), kTexts.size());
                                ++steps;
                                for (std::size_t i = 0; i < tokens.size(); ++i) {
                                  if (tokens[i]) streamed[i].push_back(*tokens[i]);
                                }
                              });
  EXPECT_EQ(made, right);
  EXPECT_EQ(streamed, right);
  EXPECT_LT(made[0].size(), 7u);
  std::size_t longest = 0;
  for (const Text& text : made) longest = std::max(longest, text.size());
  EXPECT_EQ(steps, std::min<std::size_t>(12, longest + 1)) << "no step after all have ended";
}

TEST_F(GptServing, ServesStackedLayersOfARecipe) {
  const Recipe recipe{.activation = Activation::silu, .norm = Norm::rms, .scan = true};
  const auto step = saved("stacked", recipe);
  const std::vector<Text> alone =
      Served(step, "1", "none", recipe).serving.generate(kTexts, {.tokens = 12});
  EXPECT_NE(alone, generated({.tokens = 12}));
  for (const auto& [mesh, plan] : kMeshes) {
    SCOPED_TRACE(std::string(mesh) + " " + plan);
    EXPECT_EQ(Served(step, mesh, plan, recipe).serving.generate(kTexts, {.tokens = 12}), alone);
  }
}

TEST_F(GptServing, TheMeasuredPeakIsThePlannedOne) {
  for (const auto& [mesh_text, plan] : kMeshes) {
    SCOPED_TRACE(std::string(mesh_text) + " " + plan);
    Served served(directory_, mesh_text, plan);
    const std::int64_t count = static_cast<std::int64_t>(kTexts.size());
    const ServingPlans plans = served.serving.plan(count, 7, {.tokens = 12});
    const auto expect_peaks = [&](const Executable& planned) {
      for (std::int64_t position = 0; position < served.mesh.size(); ++position) {
        Device& device = served.devices.at(served.mesh.device_at(position));
        EXPECT_EQ(device.memory().peak_bytes, planned.memory(position).peak_bytes) << position;
        device.reset_peak();
      }
    };
    for (std::int64_t position = 0; position < served.mesh.size(); ++position) {
      served.devices.at(served.mesh.device_at(position)).reset_peak();
    }
    int steps = 0;
    served.serving.generate(kTexts, {.tokens = 12}, [&](const auto&) {
      expect_peaks(steps++ == 0 ? *plans.prefill : *plans.decode);
    });
    EXPECT_EQ(steps, 12);
  }
}

TEST_F(GptServing, ADeviceHasOneCacheCutOverBatchAndHeads) {
  constexpr std::int64_t kPlaces = 20, kCount = 64, kLength = 4;
  const std::size_t bytes = 2 * 2 * kCount * kServed.width * kPlaces * sizeof(float);
  for (const auto& [mesh, plan, parts] :
       {std::tuple("1", "none", 1), std::tuple("model=4", "tensor", 4),
        std::tuple("data=4,model=2", "tensor", 8), std::tuple("data=2", "data", 2)}) {
    SCOPED_TRACE(mesh);
    Served served(directory_, mesh, plan);
    const ServingPlans plans =
        served.serving.plan(kCount, kLength, {.tokens = kPlaces - kLength + 1});
    EXPECT_EQ(plans.cache_bytes(), bytes / as_size(std::int64_t{parts}));
    std::size_t weights = 0;
    for (const GraphInput& input : plans.decode->graph().inputs) {
      if (input.kind != MemoryKind::parameter) continue;
      weights += num_bytes(plans.decode->graph().node(input.node).type.shape, sizeof(float));
    }
    const std::size_t others = plans.decode->memory(0).peak_bytes - plans.cache_bytes();
    EXPECT_LT(others, weights + plans.cache_bytes()) << "no room for another cache";
  }
}

TEST_F(GptServing, SendsTwoSumsOfALayerForEachToken) {
  Served served(directory_, "model=4", "tensor");
  for (const std::int64_t texts : {1, 16}) {
    // Of [texts, width] f32 each, in a ring over 4 devices.
    const auto sum = static_cast<std::size_t>(texts * kServed.width) * sizeof(float) * 2 * 3 / 4;
    EXPECT_EQ(served.serving.plan(texts, 4, {.tokens = 4}).wire_bytes(), 2 * 2 * sum);
  }
  Served alone(directory_, "data=4", "data");
  EXPECT_EQ(alone.serving.plan(8, 4, {.tokens = 4}).wire_bytes(), 0u);
}

TEST_F(GptServing, RefusesWhatCannotBe) {
  Served served(directory_, "model=2", "tensor");
  const auto refusal = [&](const std::vector<Text>& texts, const GenerateOptions& options) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { served.serving.generate(texts, options); });
  };
  EXPECT_EQ(refusal({}, {.tokens = 1}), "generate: found no text, needed at least one");
  EXPECT_EQ(refusal({text_of("a"), {}}, {.tokens = 1}),
            "generate: found text 1 empty, needed a byte");
  EXPECT_EQ(refusal({text_of("abc")}, {.tokens = 22}),
            "generate: found a text of 3 bytes and 22 more, needed at most the context of 24");
  EXPECT_EQ(refusal({{1, 256}}, {.tokens = 1}),
            "generate: found token 256 in text 0, needed 0 to 255");
  EXPECT_EQ(refusal({{-1}}, {.tokens = 1}), "generate: found token -1 in text 0, needed 0 to 255");
  EXPECT_EQ(refusal(kTexts, {.tokens = 0}), "generate: found 0 tokens, needed at least 1");
  EXPECT_EQ(refusal(kTexts, {.tokens = 1, .temperature = -0.5}),
            "generate: found temperature -0.5, needed 0 or more");
  EXPECT_EQ(refusal(kTexts, {.tokens = 1, .temperature = NAN}),
            "generate: found temperature nan, needed 0 or more");
  EXPECT_EQ(refusal(kTexts, {.tokens = 1, .top_k = 257}),
            "generate: found top_k 257, needed 0 to 256");
  EXPECT_EQ(refusal(kTexts, {.tokens = 1, .seed = std::uint64_t{1} << 32}),
            "generate: found seed 4294967296, needed one below 2^32");
  EXPECT_EQ(refusal(kTexts, {.tokens = 1, .stop = 256}),
            "generate: found stop token 256, needed 0 to 255");
}

TEST_F(GptServing, RefusesTheCheckpointOfAnotherModel) {
  Sizes sizes = kServed;
  sizes.heads = 2;
  sizes.context = 48;
  const Recipe recipe{.dropout = 0.5};
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] { Served(directory_, "1", "none", recipe, sizes); }),
            "generate from " + directory_.string() +
                ": found heads 4, needed 2; found context 24, needed 48")
      << "dropout is not asked for";
  const Mesh mesh = Mesh::parse("stage=2");
  Devices devices(2);
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument,
                 [&] { Serving(devices, mesh, Plan("pipeline", mesh), kServed, {.stages = 2}); }),
      "generate: found a plan with stages or cut positions, needed none, data, fsdp, tensor or 2d");
  const Mesh one = parse_mesh("1");
  Serving bare(devices, one, Plan("none", one), kServed);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { bare.generate(kTexts, {.tokens = 1}); }),
            "generate: found no weights, needed restore() before");
}

}  // namespace
}  // namespace gpt
