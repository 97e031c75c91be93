// Checkpoints that earlier builds have written, read by this one.
#include "testing/golden.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

class Golden : public ::testing::TestWithParam<int> {
 protected:
  const std::filesystem::path directory_ =
      test_data("checkpoint-v2") / ("step-0000000" + std::to_string(GetParam()));
};

TEST_P(Golden, IsReadOnToAnotherMesh) {
  const CheckpointReader reader(directory_, {.pin = false});
  EXPECT_EQ(reader.user_json(),
            GetParam() < 5 ? R"({"made by":"version 1"})" : R"({"made by":"version 2"})");
  Devices devices(3);
  const Mesh mesh = Mesh::parse("model=3");
  const std::vector<GoldenTensor> tensors = golden_tensors(GetParam());
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (const GoldenTensor& tensor : tensors) {
    SCOPED_TRACE(tensor.name);
    std::vector<PartitionSpec::Entry> spec(tensor.shape.size());
    if (!spec.empty()) spec.back() = {"model"};
    const auto array = reader.restore(devices, tensor.name, Sharding(mesh, PartitionSpec(spec)));
    EXPECT_EQ(array.dtype(), tensor.dtype);
    EXPECT_EQ(array.shape(), tensor.shape);
    EXPECT_EQ(array.to_host(), golden_values(tensor));
    EXPECT_EQ(reader.tensor(tensor.name).sharding->spec().to_string(), tensor.spec);
    EXPECT_EQ(reader.tensor(tensor.name).sharding->mesh().to_string(), golden_mesh(GetParam()));
    EXPECT_EQ(reader.tensor(tensor.name).sharding->policy().to_string(), tensor.policy);
  }
}

TEST_P(Golden, HasEveryByteAsWritten) {
  const VerifyReport report = verify_checkpoint(directory_, {.pin = false});
  for (const Damage& damage : report.damage) ADD_FAILURE() << damage.file << ": " << damage.message;
  EXPECT_GT(report.chunks, 0);
  EXPECT_EQ(CheckpointReader(directory_, {.pin = false}).has_index(), GetParam() != 7);
}

INSTANTIATE_TEST_SUITE_P(EveryStep, Golden, ::testing::Values(1, 2, 3, 4, 6, 7));

}  // namespace
}  // namespace shardwise
