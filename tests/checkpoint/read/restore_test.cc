#include "shardwise/checkpoint/detail/read/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

constexpr std::int64_t kDevices = 4;

class RestoreArrays : public testing::Test {
 protected:
  RestoreArrays() {
    std::vector<HandMadeTensor> hand_made;
    for (const HostTensor& tensor : tensors_) {
      hand_made.push_back({.name = tensor.name,
                           .dtype = tensor.spec.dtype,
                           .shape = tensor.spec.shape,
                           .pieces = {Box::whole(tensor.spec.shape)},
                           .data = *tensor.data});
    }
    HandMadeCheckpoint checkpoint(hand_made);
    checkpoint.seal();
    path_ = checkpoint.write(dir_.path());
  }

  std::unique_ptr<ChunkReader> reader() const {
    return std::make_unique<ChunkReader>(open_checkpoint(*posix_file_system(), path_),
                                         ReadOptions{.threads = 1});
  }
  TensorRequest request(std::size_t tensor, const Mesh& mesh, const char* spec) const {
    const HostTensor& wanted = tensors_[tensor];
    return {wanted.name,
            {wanted.spec.dtype, wanted.spec.shape, Sharding(mesh, PartitionSpec::parse(spec))}};
  }

  const std::vector<HostTensor> tensors_{
      host_tensor("a", DType::f32, {8, 6}, "data=2", "data,-", Values::noise, 1),
      host_tensor("b", DType::f32, {8, 6}, "data=2", "data,-", Values::noise, 2),
      host_tensor("c", DType::bf16, {5}, "data=2", "data", Values::noise, 3)};
  const TempDir dir_;
  std::filesystem::path path_;
};

// Equal shardings whose meshes number the devices differently have layouts of their own; so have
// equal shapes of other specs.
TEST_F(RestoreArrays, GivesEachDeviceItsBoxesWhateverTheOrderOfDevices) {
  const Mesh usual = Mesh::parse("x=2,y=2");
  const Mesh turned({{"x", 2}, {"y", 2}}, std::vector<DeviceId>{3, 1, 0, 2});
  Devices devices(kDevices, {.threads = 1});
  const std::vector<TensorRequest> requests{request(0, usual, "x,y"),  request(1, turned, "x,y"),
                                            request(0, turned, "x,y"), request(1, usual, "y,-"),
                                            request(2, usual, "x"),    request(0, usual, "x,y"),
                                            request(2, turned, "y"),   request(1, usual, "x,y")};
  const std::vector<std::size_t> numbers{0, 1, 0, 1, 2, 0, 2, 1};
  const auto chunks = reader();
  const auto arrays = restore_arrays(*chunks, devices, requests, numbers);
  ASSERT_EQ(arrays.size(), requests.size());
  for (std::size_t r = 0; r < arrays.size(); ++r) {
    const Mesh& mesh = requests[r].spec.sharding.mesh();
    EXPECT_TRUE(holds_addressable(arrays[r], tensors_[numbers[r]])) << r;
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      EXPECT_EQ(arrays[r].sharding().mesh().device_at(p), mesh.device_at(p)) << r;
    }
  }
}

TEST_F(RestoreArrays, WhatDoesNotFitFailsBeforeAnythingIsRead) {
  Devices devices(kDevices, {.capacity_bytes = 64, .threads = 1});
  const auto chunks = reader();
  const std::vector<TensorRequest> requests{request(2, Mesh::parse("x=4"), "x"),
                                            request(0, Mesh::parse("x=4"), "-,-")};
  const std::vector<std::size_t> numbers{2, 0};
  message_of(ErrorCode::resource_exhausted,
             [&] { restore_arrays(*chunks, devices, requests, numbers); });
  EXPECT_EQ(chunks->stats().chunks, 0);
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
}

}  // namespace
}  // namespace shardwise::detail
