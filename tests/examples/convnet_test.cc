#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convnet/training.h"
#include "shardwise/loader/loader.h"
#include "shardwise/loader/source.h"
#include "testing/errors.h"

namespace convnet {
namespace {

using namespace shardwise;

/// Images of random pixels; the label says which corner is bright.
std::shared_ptr<const Source> pictures(std::int64_t count, std::int64_t side) {
  std::vector<std::byte> pixels, labels;
  std::uint32_t random = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<std::byte>(i % 4));
    for (std::int64_t y = 0; y < side; ++y) {
      for (std::int64_t x = 0; x < side; ++x) {
        random = random * 1664525 + 1013904223;
        const std::int64_t corner = (y < side / 2 ? 0 : 2) + (x < side / 2 ? 0 : 1);
        pixels.push_back(static_cast<std::byte>((random >> 25) + (corner == i % 4 ? 120u : 0u)));
      }
    }
  }
  return zip({memory_source({"image", DType::u8, {side, side}}, count, std::move(pixels)),
              memory_source({"label", DType::u8, {}}, count, std::move(labels))});
}

struct Result {
  std::vector<double> losses;
  std::int64_t correct = 0;
};

Result train(const std::string& mesh_text, const std::string& plan, const Sizes& sizes, int steps) {
  const Mesh mesh = Mesh::parse(mesh_text);
  Devices devices(mesh.size());
  Training training(devices, mesh, Plan(plan, mesh), sizes);
  training.begin(1);
  const auto loader_of = [&](std::int64_t images, std::int64_t epochs) {
    return std::make_unique<Loader>(
        devices, pictures(images, sizes.image), training.placements(),
        LoaderOptions{
            .batch_size = sizes.batch, .epochs = epochs, .order = RecordOrder::sequential});
  };
  std::unique_ptr<Loader> loader = loader_of(256, 100);
  Result result;
  for (int step = 0; step < steps; ++step) {
    result.losses.push_back(training.step(*loader->next(), 0.05));
  }
  EXPECT_EQ(training.tracer().counters().kept, 1) << training.tracer().last_miss();
  result.correct = training.count_correct(*loader->next());
  // The same step, with nothing in memory that it does not use.
  loader = loader_of(sizes.batch, 1);
  std::optional<Batch> batch = loader->next();
  batch->mask = batch->weights = batch->field("label");
  for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
  training.step(*batch, 0.05);
  const Executable& step = *training.tracer().last();
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    EXPECT_EQ(devices.at(mesh.device_at(p)).memory().peak_bytes, step.memory(p).peak_bytes)
        << mesh_text << ", position " << p;
  }
  Training planned(devices, mesh, Plan(plan, mesh), sizes);
  planned.begin_abstract();
  EXPECT_EQ(planned.plan_step()->memory(0).peak_bytes, step.memory(0).peak_bytes) << plan;
  return result;
}

TEST(Convnet, LearnsTheSameOnAnyMeshUnderAnyPlan) {
  const Sizes small{.depth = 8, .width = 4, .image = 17, .classes = 4, .batch = 32};
  const Result expected = train("", "batch", small, 60);
  EXPECT_LT(expected.losses.back(), 0.5 * expected.losses.front());
  EXPECT_GT(expected.correct, 24);
  const struct {
    const char *mesh, *plan;
  } cases[] = {
      {"data=8", "batch"}, {"space=8", "spatial"}, {"data=2,space=3", "both"}, {"data=3", "batch"}};
  for (const auto& [mesh, plan] : cases) {
    const Result found = train(mesh, plan, small, 60);
    for (std::size_t i = 0; i < 10; ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-3) << mesh << ", step " << i;
    }
    EXPECT_LT(found.losses.back(), 0.5 * found.losses.front()) << mesh;
  }
}

TEST(Convnet, DeepOnesAreTheSameOnAnyMesh) {
  for (const std::int64_t depth : {18, 50}) {
    const Sizes sizes{.depth = depth, .width = 4, .image = 66, .classes = 4, .batch = 4};
    const Result expected = train("", "batch", sizes, 1);
    const Result found = train("data=2,space=4", "both", sizes, 1);
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-4) << depth;
  }
}

TEST(Convnet, HasTheParametersOfThePublishedOnes) {
  const auto parameters = [](std::int64_t depth) {
    std::int64_t count = 0;
    const Sizes sizes{.depth = depth, .width = 64, .image = 224, .channels = 3, .classes = 1000};
    for (const Weight& weight : weights(sizes)) count += num_elements(weight.shape);
    return count;
  };
  EXPECT_EQ(parameters(18), 11'689'512);  // torchvision's
  EXPECT_EQ(parameters(50), 25'557'032);
}

TEST(Convnet, RefusesWhatThereIsNot) {
  const Mesh mesh = Mesh::parse("data=2");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { Plan("rows", mesh); }),
            "found plan \"rows\", needed batch, spatial or both");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { Plan("both", mesh); }),
            "plan \"both\": found mesh \"data=2\", needed one with an axis \"space\"");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { check({.depth = 34}); }),
            "found depth 34, needed 8, 18 or 50");
}

}  // namespace
}  // namespace convnet
