// Checkpoints of every format version so far, read by this build.
#include "testing/golden.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"

namespace shardwise {
namespace {

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  const std::filesystem::path directory_ =
      std::filesystem::path(SHARDWISE_TEST_DATA) / "checkpoint-v1" / GetParam();
};

TEST_P(Golden, IsReadOnToAnotherMesh) {
  const CheckpointReader reader(directory_);
  EXPECT_EQ(reader.user_json(), R"({"made by":"version 1"})");
  Devices devices(3);
  const Mesh mesh = Mesh::parse("model=3");
  ASSERT_EQ(reader.tensors().size(), golden_tensors().size());
  for (const GoldenTensor& tensor : golden_tensors()) {
    SCOPED_TRACE(tensor.name);
    std::vector<PartitionSpec::Entry> spec(tensor.shape.size());
    if (!spec.empty()) spec.back() = {"model"};
    const auto array = reader.restore(devices, tensor.name, Sharding(mesh, PartitionSpec(spec)));
    EXPECT_EQ(array.dtype(), tensor.dtype);
    EXPECT_EQ(array.shape(), tensor.shape);
    EXPECT_EQ(array.to_host(), golden_values(tensor));
    EXPECT_EQ(reader.tensor(tensor.name).spec, tensor.spec);
    EXPECT_EQ(reader.tensor(tensor.name).mesh, "data=4,model=2");
  }
}

TEST_P(Golden, HasEveryByteAsWritten) {
  const VerifyReport report = verify_checkpoint(directory_);
  for (const Damage& damage : report.damage) ADD_FAILURE() << damage.file << ": " << damage.message;
  EXPECT_GT(report.chunks, 0);
}

INSTANTIATE_TEST_SUITE_P(Version1, Golden,
                         ::testing::Values("step-00000001", "step-00000002", "step-00000003"));

}  // namespace
}  // namespace shardwise
