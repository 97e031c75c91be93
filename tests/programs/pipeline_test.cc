#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// pipeline() gives the values and gradients of the layers one after the other.

namespace shardwise {
namespace {

constexpr std::int64_t kLayers = 4, kBatch = 24, kWidth = 4;

using Layer = std::pair<Tensor, Tensor>;
using Block = std::function<Tensor(const Tensor&, const Layer&)>;

Tensor clamped(const Tensor& h, const Layer& layer) {
  return clamp(-3.0, linear(h, layer.first, layer.second) + h, 3.0);
}

struct Piped {
  std::vector<float> y, w, b, x;
  std::vector<std::size_t> sent;  ///< by device
};

/// y and the gradients of a weighted sum of it; planned memory is compared with measured. Without
/// stages, one layer after the other.
Piped piped(const std::string& mesh_text, const PipelineOptions& options, const Block& block,
            bool with_gradients = true) {
  const Mesh mesh = Mesh::parse(mesh_text);
  Devices devices(mesh.size(), {.threads = 2});
  Tracer tracer(devices, {.mesh = mesh});
  const auto tensor = [&](const Shape& shape, std::uint32_t seed, const char* label) {
    return tracer.tensor(shape, small(shape, seed), label);
  };
  const auto axis = [&](const char* name) {
    return mesh_text.find(name) == std::string::npos ? PartitionSpec::Entry{}
                                                     : PartitionSpec::Entry{name};
  };
  Tensor w = tensor({kLayers, kWidth, kWidth}, 1, "w"), b = tensor({kLayers, kWidth}, 2, "b");
  Tensor x = tensor({kBatch, kWidth}, 3, "x");
  mark_sharding(w, {axis("stage"), {}, axis("model")});
  mark_sharding(b, {axis("stage"), axis("model")});
  mark_sharding(x, {axis("data"), {}});
  const Tensor weights = tensor({kBatch, kWidth}, 4, "of the sum");
  Tensor y = x;
  if (options.stages > 0) {
    y = pipeline(block, Layer(w, b), x, options);
  } else {
    for (std::int64_t i = 0; i < kLayers; ++i) y = block(y, Layer(w[i], b[i]));
  }
  Piped found;
  std::vector<Tensor> gradients;
  if (with_gradients) gradients = grad(sum(y * weights), {w, b, x});
  if (!with_gradients) mark_sharding(y, {axis("stage"), {}});
  for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
  tracer.mark_step();
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    EXPECT_EQ(tracer.last()->memory(p).peak_bytes, devices.at(p).memory().peak_bytes) << mesh_text;
    found.sent.push_back(devices.at(p).traffic().sent_bytes);
  }
  found.y = floats(y);
  if (!with_gradients) return found;
  found.w = floats(gradients[0]);
  found.b = floats(gradients[1]);
  found.x = floats(gradients[2]);
  return found;
}

TEST(Pipeline, GivesTheValuesAndGradientsOfTheLayersOnAnyMesh) {
  const Piped expected = piped("", {}, clamped);
  EXPECT_THAT(expected.w, testing::Contains(testing::Ne(0)));
  const struct {
    const char* mesh;
    PipelineOptions options;
  } cases[] = {{"", {1, 1}},
               {"", {4, 6}},
               {"stage=2", {2, 2}},
               {"stage=4", {4, 6}},
               {"stage=4", {2, 3}},  // two have nothing
               {"stage=3", {4, 4}},  // uneven
               {"data=2,stage=2", {2, 4}},
               {"data=5,stage=2", {2, 4}},
               {"stage=4,data=2", {4, 12}},
               {"stage=2,model=2", {2, 6}},
               {"data=2,stage=2,model=2", {4, 6}}};
  for (const auto& c : cases) {
    const Piped found = piped(c.mesh, c.options, clamped);
    const std::string which = std::string(c.mesh) + ' ' + std::to_string(c.options.stages);
    EXPECT_EQ(found.y, expected.y) << which;
    EXPECT_EQ(found.w, expected.w) << which;
    EXPECT_EQ(found.b, expected.b) << which;
    EXPECT_EQ(found.x, expected.x) << which;
  }
}

TEST(Pipeline, SendsARowOfAMicroBatchOverEachBorderATrip) {
  constexpr std::int64_t kStages = 4, kMicroBatches = 6;
  const PipelineOptions options{kStages, kMicroBatches};
  const auto bytes = [](std::int64_t rows) { return as_size(rows * kWidth) * sizeof(float); };
  const std::size_t shifted =
      bytes((kMicroBatches + kStages - 1) * (kBatch / kMicroBatches));  // all trips
  const std::size_t whole = bytes(kBatch), part = whole / kStages;      // of x or y
  const Piped forward = piped("stage=4", options, clamped, false);
  EXPECT_EQ(forward.sent, (std::vector<std::size_t>{shifted, shifted, shifted, whole - part}));
  // y and the gradient of x are gathered at the end.
  const Piped both = piped("stage=4", options, clamped);
  const std::size_t gathered = 2 * (kStages - 1) * part;
  EXPECT_EQ(both.sent[1], 2 * shifted + gathered);
  EXPECT_EQ(both.sent[2], 2 * shifted + gathered);
  EXPECT_EQ(both.sent[3], shifted + (whole - part) + gathered);
}

TEST(Pipeline, BubblesAddNothingToTheGradientsOfABlockThatDivides) {
  const Block block = [](const Tensor& h, const Layer& layer) {
    const Tensor squares = reduce_sum(h * h, {1});
    return linear(h, layer.first) / broadcast(sqrt(squares), h.type().shape, {0}) + layer.second;
  };
  const Piped expected = piped("", {}, block), found = piped("stage=4", {4, 6}, block);
  const auto near = [](const std::vector<float>& values) {
    return testing::Pointwise(testing::FloatNear(1e-2F), values);
  };
  EXPECT_THAT(found.y, near(expected.y));
  EXPECT_THAT(found.w, near(expected.w));
  EXPECT_THAT(found.b, near(expected.b));
  EXPECT_THAT(found.x, near(expected.x));
}

TEST(Pipeline, RecomputesABlockOfCheckpoint) {
  const Block block = [](const Tensor& h, const Layer& layer) {
    return checkpoint([&](const Tensor& x) { return clamped(clamped(x, layer), layer); }, h);
  };
  const Piped expected = piped("", {}, block), found = piped("stage=2", {2, 3}, block);
  EXPECT_EQ(found.w, expected.w);
  EXPECT_EQ(found.x, expected.x);
}

class BadPipeline : public testing::Test {
 protected:
  std::string refusal(const Tensor& params, const PipelineOptions& options,
                      ErrorCode code = ErrorCode::invalid_argument) {
    return message_of(code, [&] {
      pipeline([](const Tensor& h, const Tensor& w) { return linear(h, w); }, params, x_, options);
    });
  }

  Devices devices_{1};
  Tracer tracer_{devices_};
  Tensor x_ = counting(tracer_, {6, 2}, "x"), w_ = counting(tracer_, {4, 2, 2}, "w");
  Tracer::Scope scope_ = tracer_.scope("net");
};

TEST_F(BadPipeline, StagesAndMicroBatchesThatDoNotDivide) {
  const std::string begin = "pipeline(%0 f32[6, 2], %1 f32[4, 2, 2]) in \"net\": found ";
  EXPECT_EQ(refusal(w_, {3, 3}),
            begin + "3 stages for 4 layers, needed a number that divides them");
  EXPECT_EQ(refusal(w_, {0, 3}),
            begin + "0 stages for 4 layers, needed a number that divides them");
  EXPECT_EQ(refusal(w_, {4, 4}),
            begin + "4 micro-batches of a batch of 6, needed a number that divides it");
  EXPECT_EQ(refusal(w_, {4, 3}), begin + "3 micro-batches for 4 stages, needed as many or more");
}

TEST_F(BadPipeline, OtherSchedules) {
  EXPECT_EQ(refusal(w_, {2, 3, "1f1b"}, ErrorCode::unsupported),
            "pipeline: found schedule \"1f1b\", needed \"gpipe\", the only one so far");
}

TEST_F(BadPipeline, ABlockThatChangesItsType) {
  EXPECT_EQ(refusal(counting(tracer_, {4, 2, 3}), {2, 3}),
            "pipeline(%0 f32[6, 2], %1 f32[4, 2, 3]) in \"net\": found a block that gives x as "
            "f32[2, 3], needed f32[2, 2] as it gets it");
}

TEST_F(BadPipeline, ABlockOfAnOperationThatIsOfOneSlice) {
  EXPECT_EQ(message_of(ErrorCode::unsupported,
                       [&] {
                         const auto block = [](const Tensor& h, const Tensor& w) {
                           return linear(
                               h, append_to(w, Op::decompose, {w}, DecompositionAttributes{}));
                         };
                         pipeline(block, w_, x_, {2, 3});
                       }),
            "pipeline in \"net\": found decompose, needed an operation that works on all slices at "
            "once");
}

}  // namespace
}  // namespace shardwise
