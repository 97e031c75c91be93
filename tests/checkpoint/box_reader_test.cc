#include "shardwise/checkpoint/box_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

/// The example of the header.
class Squares : public BoxReader {  // 1,000 numbers that nobody has in memory
 public:
  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }
  void read(std::size_t, const Box& box, std::span<std::byte> out) const override {
    for (std::int64_t i = box.begin(0); i < box.end(0); ++i) {
      const std::int64_t value = i * i;
      std::memcpy(out.data() + (i - box.begin(0)) * 8, &value, 8);
    }
  }

 private:
  TensorInfo info_{.name = "squares", .dtype = DType::i64, .shape = {1000}};
};

std::vector<std::int64_t> squares_in(const CheckpointReader& reader) {
  std::vector<std::int64_t> values(1000);
  reader.read("squares", Box({0}, {1000}), std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<std::int64_t> all_squares() {
  std::vector<std::int64_t> values(1000);
  std::iota(values.begin(), values.end(), 0);
  for (std::int64_t& value : values) value *= value;
  return values;
}

TEST(BoxReader, ACustomOneIsSavedWithoutASharding) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const SaveStats stats = manager.save(1, {{"squares", std::make_shared<Squares>()}});
  const CheckpointReader reader(stats.directory);
  EXPECT_EQ(squares_in(reader), all_squares());
  EXPECT_EQ(reader.tensors()[0].pieces, 1);
  EXPECT_EQ(reader.tensors()[0].sharding->spec().to_string(), "-");
}

TEST(BoxReader, ACustomOneIsResharded) {
  const TempDir dir;
  const SaveStats stats =
      reshard_checkpoint(Squares(), {dir.path(), 12}, Mesh::parse("x=4"), SpecRules(),
                         {.save = {.user_json = "{\"from\": \"nowhere\"}"}});
  EXPECT_EQ(stats.directory, dir / "step-00000012");
  const CheckpointReader reader(stats.directory);
  EXPECT_EQ(squares_in(reader), all_squares());
  EXPECT_EQ(reader.tensors()[0].sharding->mesh().to_string(), "x=4");
  EXPECT_EQ(reader.tensors()[0].sharding->spec().to_string(), "-")
      << "nobody has said how it was cut";
  EXPECT_EQ(reader.user_json(), "{\"from\": \"nowhere\"}");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           reshard_checkpoint(Squares(), {dir.path(), 13}, Mesh::parse("x=4"),
                                              SpecRules::parse("squares=y"));
                         }),
              testing::HasSubstr("tensor \"squares\": "));
}

// Checkpoint, array, host memory and function: the same elements of any box, by any way.
TEST(BoxReader, AllKindsReadTheSame) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("w", DType::f32, {60, 70}, "data=4,model=2", "data,model");
  Devices devices(8);
  CheckpointManager manager(dir.path());
  const CheckpointReader checkpoint(manager.save(1, {tensor.source()}).directory);
  const TensorSource sources[] = {
      tensor_source("w", ShardedArray::from_host(devices, tensor.spec, *tensor.data)),
      host_source("w", tensor.spec, *tensor.data), tensor.source()};
  std::vector<const BoxReader*> readers{&checkpoint};
  for (const TensorSource& source : sources) readers.push_back(source.reader.get());
  for (const BoxReader* reader : readers) {
    ASSERT_EQ(reader->tensors().size(), 1u);
    EXPECT_EQ(reader->tensors()[0].name, "w");
    EXPECT_EQ(reader->tensors()[0].dtype, DType::f32);
    EXPECT_EQ(reader->tensors()[0].shape, (Shape{60, 70}));
    for (const Box& box : {Box({0, 0}, {60, 70}), Box({7, 3}, {44, 61}), Box({15, 0}, {30, 35})}) {
      std::vector<std::byte> out(num_bytes(box.shape(), 4));
      reader->read(0, box, out);
      EXPECT_TRUE(out == tensor.part(box)) << to_string(box);
      if (const std::byte* const place = reader->contiguous(0, box)) {
        EXPECT_EQ(std::memcmp(place, out.data(), out.size()), 0) << to_string(box);
      }
    }
  }
  const Box shard({15, 0}, {30, 35});
  EXPECT_EQ(checkpoint.contiguous(0, shard), nullptr);
  EXPECT_NE(sources[0].reader->contiguous(0, shard), nullptr) << "one device has it";
  EXPECT_EQ(sources[1].reader->contiguous(0, shard), nullptr) << "rows of 70, not of 35";
  EXPECT_NE(sources[1].reader->contiguous(0, Box({7, 0}, {9, 70})), nullptr);
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { checkpoint.read(1, Box(), {}); }),
              testing::HasSubstr("no tensor number 1"));
}

}  // namespace
}  // namespace shardwise
