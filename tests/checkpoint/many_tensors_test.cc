// More tensors than 16 bits can number.

#include <gtest/gtest.h>

#include <set>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/host_tensor.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

constexpr std::int64_t kTensors = 66'000;

// Each of them 3 numbers that no other one has; but a few of 1 MiB, which zstd can compress.
class ManyTensors {
 public:
  static bool is_large(std::int64_t number) { return number % 10'000 == 9; }
  static Shape shape(std::int64_t number) { return is_large(number) ? Shape{512, 512} : Shape{3}; }
  static std::string name(std::int64_t number) {
    return "layers/" + std::to_string(number % 300) + "/" + std::to_string(number);
  }
  static std::vector<std::byte> values(std::int64_t number) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(num_elements(shape(number))));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::int32_t>(4 * number + static_cast<std::int64_t>(i % 3));
    }
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  ArraySpec spec(std::int64_t number) const {
    return {DType::i32, shape(number), is_large(number) ? rows_ : replicated_};
  }
  std::vector<TensorSource> sources() const {
    std::vector<TensorSource> sources;
    for (std::int64_t n = 0; n < kTensors; ++n) {
      sources.push_back(
          callback_tensor(name(n), spec(n), [n](const Box& box, std::span<std::byte> out) {
            const std::vector<std::byte> all = values(n);
            copy_box(box, 4, {all.data(), Box::whole(shape(n))}, {out.data(), box});
          }));
    }
    return sources;
  }
  std::vector<TensorRequest> requests() const {
    std::vector<TensorRequest> requests;
    for (std::int64_t n = 0; n < kTensors; ++n) requests.push_back({name(n), spec(n)});
    return requests;
  }

 private:
  Sharding rows_{Mesh::parse("x=2"), PartitionSpec::parse("x,-")};
  Sharding replicated_{Mesh::parse("x=2"), PartitionSpec::parse("-")};
};

class ManyTensorsTest : public testing::TestWithParam<Codec> {};

TEST_P(ManyTensorsTest, AreSavedRestoredAndSeenByHdf5) {
  const TempDir dir;
  Devices devices(2);
  const ManyTensors tensors;
  const SaveStats saved =
      CheckpointManager(dir.path()).save(1, tensors.sources(), {.codec = GetParam()});
  EXPECT_EQ(saved.stored_bytes < saved.logical_bytes, GetParam() == Codec::zstd);

  const CheckpointReader reader(saved.directory);
  ASSERT_EQ(std::ssize(reader.tensors()), kTensors);
  const std::vector<TensorRequest> requests = tensors.requests();
  const std::vector<ShardedArray> arrays = reader.restore(devices, requests);
  std::vector<std::byte> found;
  for (std::int64_t n = 0; n < kTensors; ++n) {
    const std::vector<std::byte> expected = tensors.values(n);
    found.assign(expected.size(), std::byte{0});
    arrays[static_cast<std::size_t>(n)].read(Box::whole(ManyTensors::shape(n)), found);
    ASSERT_EQ(found, expected) << requests[static_cast<std::size_t>(n)].name;
  }

  // The library takes its time for each: some of them, and those around 16 bits.
  std::set<std::int64_t> some{9, 65'534, 65'535, 65'536, kTensors - 1};
  for (std::int64_t n = 0; n < kTensors; n += 331) some.insert(n);
  const detail::Hdf5Lock lock;
  for (const std::int64_t n : some) {
    const RawDataset dataset = read_raw(saved.directory / "index.h5", "/" + ManyTensors::name(n));
    EXPECT_EQ(dataset.shape, ManyTensors::shape(n));
    ASSERT_EQ(dataset.data, tensors.values(n)) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ManyTensorsTest, testing::Values(Codec::none, Codec::zstd),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace shardwise
