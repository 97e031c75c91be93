#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/model.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/box_copy.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"
#include "tokens.h"
#include "training.h"

namespace gpt {
namespace {

using namespace shardwise;

TEST(Plan, CutsWeightsAsItsNameSays) {
  const struct {
    const char *plan, *mesh, *weight;
    Shape shape;
    const char* spec;
  } cases[] = {
      {"none", "data=4,model=2", "l0.wq", {128, 128}, "-,-"},
      {"data", "data=8", "l0.wq", {128, 128}, "-,-"},
      {"fsdp", "fsdp=8", "embed", {256, 128}, "fsdp,-"},
      {"fsdp", "fsdp=8", "l0.w1", {128, 512}, "-,fsdp"},
      {"fsdp", "data=8", "l0.w1", {128, 512}, "-,data"},
      {"fsdp", "fsdp=8", "l0.bq", {12}, "-"},
      {"fsdp", "fsdp=8", "l0.wq", {100, 128}, "-,fsdp"},
      {"tensor", "data=4,model=2", "l3.wv", {128, 128}, "-,model"},
      {"tensor", "data=4,model=2", "l3.b1", {512}, "model"},
      {"tensor", "data=4,model=2", "l3.wo", {128, 128}, "model,-"},
      {"tensor", "data=4,model=2", "l3.w2", {512, 128}, "model,-"},
      {"tensor", "data=4,model=2", "l3.g1", {128}, "-"},
      {"tensor", "data=4,model=2", "head", {128, 256}, "-,-"},
      {"2d", "fsdp=4,model=2", "l0.wq", {128, 128}, "fsdp,model"},
      {"2d", "fsdp=4,model=2", "l0.w2", {512, 128}, "model,fsdp"},
      {"2d", "data=4,model=2", "head", {128, 256}, "-,data"},
      {"pipeline", "data=2,stage=4", "layers.wq", {4, 128, 128}, "stage,-,-"},
      {"pipeline", "data=2,stage=4", "embed", {256, 128}, "stage,-"},
      {"pipeline", "data=2,stage=4", "head", {128, 256}, "-,stage"},
      {"context", "context=4,model=2", "l3.wv", {128, 128}, "-,model"},
      {"context", "data=2,context=4", "l3.wv", {128, 128}, "-,-"},
      {"expert", "data=2,expert=4", "l3.wq", {128, 128}, "-,-"},
      {"expert", "data=2,expert=4", "l3.router", {128, 8}, "-,-"},
      {"expert", "data=2,expert=4", "l3.w1", {8, 128, 512}, "expert,-,-"},
      {"expert", "data=2,expert=4", "layers.b2", {4, 8, 128}, "-,expert,-"},
      {"expert", "expert=4,model=2", "l3.w1", {8, 128, 512}, "expert,-,model"},
      {"expert", "expert=4,model=2", "layers.w2", {4, 8, 512, 128}, "-,expert,model,-"},
      {"tensor", "model=2", "l3.w2", {8, 512, 128}, "-,model,-"},
  };
  for (const auto& one : cases) {
    const Plan plan(one.plan, Mesh::parse(one.mesh));
    EXPECT_EQ(plan.weight(one.weight, one.shape).to_string(), one.spec)
        << one.plan << " " << one.mesh << " " << one.weight;
  }
}

TEST(Plan, CutsTheBatchOverTheAxesOfData) {
  EXPECT_EQ(Plan("none", Mesh::parse("data=4")).batch().to_string(), "-,-");
  EXPECT_EQ(Plan("tensor", Mesh::parse("model=4")).batch().to_string(), "-,-");
  EXPECT_EQ(Plan("tensor", Mesh::parse("data=4,model=2")).batch().to_string(), "data,-");
  EXPECT_EQ(Plan("2d", Mesh::parse("fsdp=4,model=2")).batch().to_string(), "fsdp,-");
  const Plan context("context", Mesh::parse("data=2,context=4"));
  EXPECT_EQ(context.batch().to_string(), "data,-");
  EXPECT_EQ(context.ordered_batch().to_string(), "data,context");
  EXPECT_EQ(Plan("expert", Mesh::parse("data=2,expert=4")).batch().to_string(), "data+expert,-");
}

TEST(Plan, NamesTheAxisThatIsMissing) {
  const auto refusal = [](const char* plan, const char* mesh) {
    return message_of(ErrorCode::invalid_argument, [&] { Plan(plan, Mesh::parse(mesh)); });
  };
  EXPECT_EQ(
      refusal("zero", "data=8"),
      "found plan \"zero\", needed none, data, fsdp, tensor, 2d, pipeline, context or expert");
  for (const auto& [plan, mesh, axis] :
       {std::array{"data", "model=2", "data"}, std::array{"tensor", "data=2", "model"},
        std::array{"fsdp", "model=2", "data"}, std::array{"2d", "data=2", "model"},
        std::array{"pipeline", "data=8", "stage"}, std::array{"context", "data=8", "context"},
        std::array{"expert", "data=8", "expert"}}) {
    const std::string message = refusal(plan, mesh);
    EXPECT_NE(message.find("needed one with an axis " + quoted(axis)), std::string::npos)
        << message;
  }
}

std::vector<std::int32_t> values(const HostBatch& batch, const char* field) {
  const HostPart& part = batch.field(field).parts.front();
  std::vector<std::int32_t> values(part.bytes / sizeof(std::int32_t));
  std::memcpy(values.data(), part.data.get(), part.bytes);
  return values;
}

TEST(Tokens, AreTheBytesOfATextInShuffledWindows) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i);
  write_file(dir / "text", text);
  const auto tokens = read_tokens(dir / "text", 3, 10);
  EXPECT_EQ(tokens->batches_per_epoch(), 190 / 3);
  std::set<std::int32_t> begins;
  for (int step = 0; step < 190 / 3; ++step) {
    const HostBatch batch = *tokens->next();
    const auto found = values(batch, "tokens"), targets = values(batch, "targets");
    ASSERT_EQ(found.size(), 30u);
    for (std::size_t i = 0; i < 30; ++i) {
      EXPECT_EQ(targets[i], found[i] + 1);
      if (i % 10 == 0) begins.insert(found[i]);
      if (i % 10 != 0) {
        EXPECT_EQ(found[i], found[i - 1] + 1);
      }
    }
  }
  EXPECT_EQ(begins.size(), 189u) << "each window once, but for the last batch";
  message_of(ErrorCode::invalid_argument, [&] { read_tokens(dir / "text", 3, 200); });
  message_of(ErrorCode::not_found, [&] { read_tokens(dir / "none", 3, 10); });
}

std::vector<std::int32_t> six_from(std::int32_t first) {
  std::vector<std::int32_t> values(6);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Each i32[2, 3]; the values of the n-th begin at 100 n.
void write_batches(const std::filesystem::path& path, const std::vector<std::string>& names) {
  class Batches : public BoxReader {
   public:
    explicit Batches(const std::vector<std::string>& names) {
      for (const std::string& name : names) {
        infos_.push_back({.name = name, .dtype = DType::i32, .shape = {2, 3}});
      }
    }
    std::span<const TensorInfo> tensors() const override { return infos_; }
    void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
      const std::vector<std::int32_t> values = six_from(static_cast<std::int32_t>(100 * tensor));
      copy_box(box, sizeof values[0], {std::as_bytes(std::span(values)).data(), Box::whole({2, 3})},
               {out.data(), box});
    }

   private:
    std::vector<TensorInfo> infos_;
  };
  export_model(Batches(names), path);
}

TEST(Tokens, RefuseBatchesOfAnotherShape) {
  const TempDir dir;
  const std::filesystem::path none = dir / "none.safetensors", some = dir / "some.safetensors";
  write_batches(none, {"x1", "y1"});
  write_batches(some, {"x0", "y0", "x1", "y1"});
  const auto refusal = [](const std::filesystem::path& path, std::int64_t context) {
    return message_of(ErrorCode::invalid_argument, [&] { read_tokens(path, 2, context); });
  };
  EXPECT_EQ(refusal(none, 3), "read " + none.string() + ": found no tensors x0 and y0");
  EXPECT_EQ(refusal(some, 4),
            "read " + some.string() + ": found batch 0 of i32[2, 3], needed i32[2, 4]");
}

TEST(Tokens, AreTheBatchesOfASafetensorsFileInTurn) {
  const TempDir dir;
  write_batches(dir / "x.safetensors", {"x0", "y0", "x1", "y1"});
  const auto tokens = read_tokens(dir / "x.safetensors", 2, 3);
  for (const std::int64_t step : {0, 1, 2, 3}) {
    const HostBatch batch = *tokens->next();
    const std::int32_t first = step % 2 == 0 ? 0 : 200;
    EXPECT_EQ(values(batch, "tokens"), six_from(first)) << step;
    EXPECT_EQ(values(batch, "targets"), six_from(first + 100)) << step;
  }
}

constexpr Sizes kSizes{.layers = 2, .width = 16, .heads = 2, .context = 8, .batch = 8};
constexpr double kRate = 1e-2;
constexpr std::int64_t kSteps = 6;

class GptTraining : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i * i % 7);
    write_file(dir_ / "text", text);
  }

  /// On a mesh and plan; `begin` gives the first values. The losses of the steps from `first` on.
  std::vector<double> losses(
      const char* mesh_text, const char* plan, std::int64_t first,
      const std::function<void(Training&)>& begin,
      const std::function<void(Training&)>& end = [](Training&) {}, const Recipe& recipe = {}) {
    const Mesh mesh = Mesh::parse(mesh_text);
    Devices devices(mesh.size());
    Training training(devices, mesh, Plan(plan, mesh), kSizes, recipe);
    begin(training);
    const auto tokens =
        read_tokens(dir_ / "text", kSizes.batch, kSizes.context, {.seed = 1, .next_batch = first});
    std::vector<double> losses;
    for (std::int64_t step = first; step < kSteps; ++step) {
      losses.push_back(training.step(*tokens->next(), kRate));
      if (step + 1 == kSteps / 2) end(training);
    }
    return losses;
  }

  TempDir dir_;
};

void expect_close(const std::vector<double>& found, const std::vector<double>& needed) {
  ASSERT_EQ(found.size(), needed.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], needed[i], 1e-5) << i;
}

constexpr std::pair<const char*, const char*> kLayouts[] = {
    {"data=4", "data"},           {"fsdp=4", "fsdp"},      {"data=2,model=2", "tensor"},
    {"fsdp=2,model=2", "2d"},     {"model=2", "tensor"},   {"data=3", "data"},
    {"data=3,model=2", "tensor"}, {"data=3,model=2", "2d"}};

const auto kFresh = [](Training& training) { training.begin(3); };

std::function<void(Training&)> saves_to(CheckpointManager& manager) {
  return [&manager](Training& training) {
    manager.save(kSteps / 2, training.sources(), {.user_json = training.user_json()});
  };
}

TEST_F(GptTraining, LosesTheSameOnAnyMeshUnderAnyPlan) {
  const std::vector<double> alone = losses("data=1", "none", 0, kFresh);
  EXPECT_NEAR(alone.front(), std::log(256), 0.1);
  EXPECT_LT(alone.back(), alone.front() - 0.5);
  for (const auto& [mesh, plan] : kLayouts) {
    SCOPED_TRACE(std::string(mesh) + " " + plan);
    expect_close(losses(mesh, plan, 0, kFresh), alone);
  }
}

TEST_F(GptTraining, EveryRecipeLearnsTheSameOnAnyMesh) {
  const std::vector<double> usual = losses("data=1", "none", 0, kFresh);
  const std::pair<const char*, Recipe> recipes[] = {
      {"gelu_erf", {.activation = Activation::gelu_erf}},
      {"silu", {.activation = Activation::silu}},
      {"rms", {.norm = Norm::rms}},
      {"dropout", {.dropout = 0.3}},
      {"clip", {.clip = 0.01}}};
  const auto end = [](Training&) {};
  for (const auto& [name, recipe] : recipes) {
    SCOPED_TRACE(name);
    const std::vector<double> alone = losses("data=1", "none", 0, kFresh, end, recipe);
    EXPECT_LT(alone.back(), alone.front() - 0.2);
    EXPECT_NE(alone, usual) << "another recipe";
    expect_close(losses("data=2,model=2", "tensor", 0, kFresh, end, recipe), alone);
    expect_close(losses("fsdp=3", "fsdp", 0, kFresh, end, recipe), alone);
  }
}

TEST_F(GptTraining, DropsOtherElementsInEachStep) {
  Devices devices(1);
  const Mesh mesh = Mesh::line(1);
  Training training(devices, mesh, Plan("none", mesh), kSizes, {.dropout = 0.3});
  training.begin(3);
  const HostBatch batch = *read_tokens(dir_ / "text", kSizes.batch, kSizes.context)->next();
  // The rate 0 keeps the weights, so only dropout can change the loss.
  const double first = training.step(batch, 0);
  EXPECT_NE(training.step(batch, 0), first);
  Training without(devices, mesh, Plan("none", mesh), kSizes);
  without.begin(3);
  const double whole = without.step(batch, 0);
  EXPECT_EQ(without.step(batch, 0), whole);
}

TEST_F(GptTraining, DropsTheSameElementsWhenResumed) {
  const Recipe recipe{.dropout = 0.3};
  CheckpointManager manager(dir_ / "checkpoints");
  const auto save = saves_to(manager);
  const std::vector<double> whole = losses("data=1", "none", 0, kFresh, save, recipe);
  const CheckpointReader reader(manager.latest()->step.directory);
  const std::vector<double> rest = losses(
      "data=2", "data", kSteps / 2, [&](Training& training) { training.restore(reader); },
      [](Training&) {}, recipe);
  expect_close(rest, {whole.begin() + kSteps / 2, whole.end()});
}

TEST_F(GptTraining, RestoredOnAnotherMeshAndPlanItGoesOn) {
  CheckpointManager manager(dir_ / "checkpoints");
  const auto save = saves_to(manager);
  const std::vector<double> whole = losses("data=2,model=2", "tensor", 0, kFresh, save);
  const std::vector<double> rest(whole.begin() + kSteps / 2, whole.end());
  const CheckpointReader reader(manager.latest()->step.directory);
  const auto restore = [&](Training& training) { training.restore(reader); };
  for (const auto& [mesh, plan] : kLayouts) {
    SCOPED_TRACE(std::string(mesh) + " " + plan);
    expect_close(losses(mesh, plan, kSteps / 2, restore), rest);
  }
}

constexpr std::pair<const char*, const char*> kExpertLayouts[] = {
    {"data=2,expert=2", "expert"},  {"expert=4", "expert"},
    {"expert=2,model=2", "expert"}, {"data=4", "data"},
    {"model=2", "tensor"},          {"fsdp=2,model=2", "2d"}};
const Recipe kExperts{.experts = {.count = 4, .capacity = 1}};

TEST_F(GptTraining, ExpertsLearnTheSameOnAnyMeshUnderAnyPlan) {
  std::int64_t dropped = 0;
  const auto end = [&](const Training& training) { dropped = training.dropped().value(); };
  const std::vector<double> alone = losses("data=1", "none", 0, kFresh, end, kExperts);
  EXPECT_LT(alone.back(), alone.front() - 0.5);
  const std::int64_t dropped_alone = dropped;
  EXPECT_GT(dropped_alone, 0);
  for (const auto& [mesh, plan] : kExpertLayouts) {
    SCOPED_TRACE(std::string(mesh) + " " + plan);
    expect_close(losses(mesh, plan, 0, kFresh, end, kExperts), alone);
    EXPECT_EQ(dropped, dropped_alone);
  }
}

TEST_F(GptTraining, ExpertsRestoredOnAnotherMeshAndPlanGoOn) {
  CheckpointManager manager(dir_ / "checkpoints");
  const std::vector<double> whole =
      losses("data=2,expert=2", "expert", 0, kFresh, saves_to(manager), kExperts);
  const std::vector<double> rest(whole.begin() + kSteps / 2, whole.end());
  const CheckpointReader reader(manager.latest()->step.directory);
  const auto restore = [&](Training& training) { training.restore(reader); };
  for (const auto& [mesh, plan] : kExpertLayouts) {
    SCOPED_TRACE(std::string(mesh) + " " + plan);
    expect_close(losses(
                     mesh, plan, kSteps / 2, restore, [](Training&) {}, kExperts),
                 rest);
  }
  EXPECT_NE(message_of(ErrorCode::invalid_argument,
                       [&] { losses("data=2", "data", kSteps / 2, restore); })
                .find("found experts 4, needed null"),
            std::string::npos);
}

TEST_F(GptTraining, RefusesExpertsThatCannotBe) {
  const auto refusal = [&](const char* mesh, const char* plan, const Recipe& recipe) {
    return message_of(ErrorCode::invalid_argument, [&] {
      losses(
          mesh, plan, 0, kFresh, [](Training&) {}, recipe);
    });
  };
  EXPECT_EQ(refusal("expert=3", "expert", {.experts = {.count = 4}}),
            "plan \"expert\": found 4 experts over expert=3, needed a multiple");
  EXPECT_EQ(refusal("expert=2", "expert", {}),
            "plan \"expert\": found 0 experts over expert=2, needed a multiple");
  EXPECT_EQ(refusal("data=2", "data", {.experts = {.count = 4, .top_k = 5}}),
            "found 5 of 4 experts for a token, needed 1 to all of them");
  EXPECT_EQ(refusal("data=2", "data", {.experts = {.count = 4, .capacity = -1}}),
            "found capacity -1 of experts, needed 0 to the context of 8");
  EXPECT_EQ(refusal("stage=2", "pipeline",
                    {.scan = true, .stages = 2, .micro_batches = 2, .experts = {.count = 4}}),
            "found experts in a pipeline, needed another plan");
}

TEST_F(GptTraining, RefusesPipelinesThatDoNotDivide) {
  const auto refusal = [&](const char* mesh, std::int64_t stages, std::int64_t micro_batches) {
    return message_of(ErrorCode::invalid_argument, [&] {
      losses(mesh, "pipeline", 0, kFresh, [](Training&) {},
             {.scan = true, .stages = stages, .micro_batches = micro_batches});
    });
  };
  for (const auto& [message, found] :
       {std::pair(refusal("stage=3", 3, 4),
                  "found 3 stages for 2 layers, needed a number that divides"),
        std::pair(refusal("stage=2", 2, 3),
                  "found 3 micro-batches of a batch of 8, needed a number"),
        std::pair(refusal("stage=2", 2, 1),
                  "found 1 micro-batches for 2 stages, needed as many")}) {
    EXPECT_NE(message.find(found), std::string::npos) << message;
  }
}

TEST_F(GptTraining, RefusesToGoOnWithAnotherModelAndNamesWhatDiffers) {
  CheckpointManager manager(dir_ / "checkpoints");
  losses("data=2", "data", 0, kFresh, saves_to(manager), {.activation = Activation::gelu_erf});
  const auto step = manager.latest()->step.directory;
  const CheckpointReader reader(step);
  Devices devices(1);
  const Mesh mesh = Mesh::line(1);
  Sizes sizes = kSizes;
  sizes.heads = 4;
  Training other(devices, mesh, Plan("none", mesh), sizes,
                 {.activation = Activation::silu, .norm = Norm::rms, .dropout = 0.5, .clip = 1});
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { other.restore(reader); }),
            "resume from " + step.string() +
                ": found heads 2, needed 4; found activation \"gelu_erf\", needed \"silu\"; found "
                "norm \"layer\", needed \"rms\"; found dropout 0.0, needed 0.5; found clip 0.0, "
                "needed 1.0");
}

TEST_F(GptTraining, BeginsWithGivenWeightsAndNamesTheOneThatIsMissing) {
  std::map<std::string, Given> given;
  for (const Weight& weight : weights(kSizes)) {
    const std::size_t bytes = num_bytes(weight.shape, sizeof(float));
    given[weight.name] = {DType::f32, weight.shape, std::vector<std::byte>(bytes)};
  }
  // All weights are zero: every token is as likely as the next.
  const std::vector<double> found =
      losses("data=2", "data", kSteps - 1, [&](Training& training) { training.begin(1, given); });
  EXPECT_NEAR(found.front(), std::log(256), 1e-5);
  given["l1.w1"].shape = {64, 16};
  const auto refusal = [&] {
    return message_of(ErrorCode::invalid_argument, [&] {
      losses("data=2", "data", 0, [&](Training& training) { training.begin(1, given); });
    });
  };
  EXPECT_EQ(refusal(),
            "begin with given weights: found \"l1.w1\" of f32[64, 16], needed f32[16, 64]");
  given["l1.w1"] = {DType::f16, {16, 64}, {}};
  EXPECT_EQ(refusal(),
            "begin with given weights: found \"l1.w1\" of f16[16, 64], needed f32[16, 64]");
  given.erase("l1.w1");
  EXPECT_EQ(refusal(), "begin with given weights: found \"l1.w1\" missing, needed f32[16, 64]");
  given.clear();
  EXPECT_EQ(refusal(), "begin with given weights: found \"embed\" missing, needed f32[256, 16]");
}

TEST_F(GptTraining, RefusesHeadsThatDoNotDivideTheWidthAndRatesThatCannotBe) {
  Devices devices(1);
  const Mesh mesh = Mesh::line(1);
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument,
                 [&] { Training(devices, mesh, Plan("none", mesh), {.width = 16, .heads = 3}); }),
      "found 3 heads for a width of 16, needed a divisor");
  const auto refusal = [&](const Recipe& recipe) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { Training(devices, mesh, Plan("none", mesh), kSizes, recipe); });
  };
  EXPECT_EQ(refusal({.dropout = 1}), "found dropout 1, needed is 0 to less than 1");
  EXPECT_EQ(refusal({.dropout = NAN}), "found dropout nan, needed is 0 to less than 1");
  EXPECT_EQ(refusal({.clip = -1}), "found clip -1, needed is 0 or more");
}

}  // namespace
}  // namespace gpt
