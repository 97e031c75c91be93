// Arrays of any sharding are saved and restored onto any other; the contents of each device are
// then compared with the one array that all was cut from, row by row.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/box_copy.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/random_shardings.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

constexpr std::int64_t kDevices = 48;

struct Whole {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<std::byte> data;  // row-major
};

class RandomTrips : public RandomShardings {
 public:
  using RandomShardings::RandomShardings;

  template <class List>
  auto one_of(const List& list) {
    return list[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(std::size(list)) - 1))];
  }

  Whole tensor(std::string name) {
    const auto dtypes = all_dtypes();
    Whole tensor{.name = std::move(name), .dtype = one_of(dtypes), .shape = {}, .data = {}};
    const auto rank = static_cast<std::size_t>(draw(0, 4));
    tensor.shape = shape(rank);
    if (rank > 0 && draw(0, 5) == 0) enlarge(tensor.shape, size_bytes(tensor.dtype));
    const auto first = static_cast<std::uint64_t>(draw(1, 1'000'000));
    tensor.data = draw(0, 1) == 0 ? counting_values(tensor.dtype, tensor.shape, first)
                                  : scattered_values(tensor.dtype, tensor.shape, first);
    return tensor;
  }

  /// On the first devices or on any, by whole axes or parts of them, under any policy.
  Sharding any_sharding(const Shape& shape) {
    const Mesh m = mesh();
    const PartitionSpec s =
        draw(0, 1) == 0 ? spec(m, shape.size()) : spec_with_parts(m, shape.size());
    return sharding(m, s, shape);
  }

 private:
  /// To some chunks of 1 MiB, mostly with an odd rest.
  void enlarge(Shape& shape, std::size_t element_bytes) {
    const auto dim = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(shape.size()) - 1));
    const std::int64_t bytes = draw(1'000'000, 3'000'000);
    std::int64_t others = static_cast<std::int64_t>(element_bytes);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (d != dim) others *= std::max<std::int64_t>(shape[d], 1);
    }
    shape[dim] = bytes / others;
  }
};

// Compares a box's contents with the whole array, row by row. `at` is the place, in the whole
// array, of the box's first element in this dim and the later ones; `found` moves on in the box's
// memory.
bool holds_rows(const Box& box, std::size_t dim, std::size_t row_bytes, const Dims& stride_bytes,
                const std::byte* at, const std::byte*& found) {
  if (dim + 1 >= box.rank()) {
    const bool same = std::memcmp(found, at, row_bytes) == 0;
    found += row_bytes;
    return same;
  }
  const std::int64_t stride = stride_bytes[dim], extent = box.extent(dim);
  bool same = true;
  for (std::int64_t i = 0; same && i < extent; ++i, at += stride) {
    same = holds_rows(box, dim + 1, row_bytes, stride_bytes, at, found);
  }
  return same;
}

bool holds_its_part(const ConstBoxView& shard, const Whole& whole) {
  const Box& box = shard.box;
  if (box.empty()) return true;
  const auto element = static_cast<std::int64_t>(size_bytes(whole.dtype));
  Dims strides = row_major_strides(whole.shape);
  std::int64_t at = 0, row_bytes = element;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    strides[d] *= element;
    at += box.begin(d) * strides[d];
    if (d + 1 == box.rank()) row_bytes *= box.extent(d);
  }
  const std::byte* found = shard.data;
  return holds_rows(box, 0, static_cast<std::size_t>(row_bytes), strides, whole.data.data() + at,
                    found);
}

struct Seen {
  int empty = 0, several_chunks = 0, several_files = 0, compressed = 0, boxes = 0;
};

void count_what_is_there(const CheckpointReader& reader, Seen& seen) {
  for (const TensorInfo& info : reader.tensors()) {
    seen.empty += info.logical_bytes == 0;
    seen.several_chunks += info.chunks > info.pieces;
    seen.compressed += info.stored_bytes < info.logical_bytes;
  }
  seen.several_files += std::filesystem::exists(reader.directory() / "shards-00001-of-00002.h5") ||
                        std::filesystem::exists(reader.directory() / "shards-00001-of-00003.h5") ||
                        std::filesystem::exists(reader.directory() / "shards-00001-of-00004.h5");
}

void restore_and_compare(const CheckpointReader& reader, const std::vector<Whole>& tensors,
                         Devices& devices, RandomTrips& random, Seen& seen) {
  std::vector<TensorRequest> requests;
  std::vector<const Whole*> requested;
  for (const Whole& tensor : tensors) {
    for (std::int64_t times = random.draw(1, 2); times > 0; --times) {
      requests.push_back(
          {tensor.name, {tensor.dtype, tensor.shape, random.any_sharding(tensor.shape)}});
      requested.push_back(&tensor);
    }
  }
  const std::vector<ShardedArray> arrays = reader.restore(devices, requests);
  ASSERT_EQ(arrays.size(), requests.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const Sharding& sharding = requests[i].spec.sharding;
    SCOPED_TRACE(testing::Message() << requests[i].name << " onto " << sharding.to_string());
    for (std::int64_t p = 0; p < sharding.mesh().size(); ++p) {
      const ConstBoxView shard = arrays[i].shard(p);
      ASSERT_EQ(shard.box, sharding.box_at(p, requested[i]->shape));
      ASSERT_TRUE(holds_its_part(shard, *requested[i])) << "position " << p;
      seen.boxes += !shard.box.empty();
    }
  }
}

TEST(RoundTrip, AnyShardingToAnyOther) {
  Devices devices(kDevices, {.threads = 2});
  Seen seen;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    RandomTrips random(seed);
    const TempDir dir;
    std::vector<Whole> tensors;
    std::vector<TensorSource> sources;
    testing::Message about;
    for (std::int64_t t = random.draw(1, 4); t > 0; --t) {
      tensors.push_back(random.tensor("t" + std::to_string(t)));
      const Whole& tensor = tensors.back();
      const Sharding sharding = random.any_sharding(tensor.shape);
      about << ", " << tensor.name << " " << name(tensor.dtype) << to_string(tensor.shape) << " on "
            << sharding.to_string();
      sources.push_back(tensor_source(
          tensor.name,
          ShardedArray::from_host(devices, {tensor.dtype, tensor.shape, sharding}, tensor.data)));
    }
    SaveOptions save{
        .codec = random.one_of(std::vector{Codec::automatic, Codec::zstd, Codec::none}),
        .writers = random.draw(1, 4)};
    if (random.draw(0, 1) == 0) save.memory_budget_bytes = std::size_t{8} << 20;
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", codec " << name(save.codec) << ", " << save.writers
                 << " writers, " << save.memory_budget_bytes << " bytes of memory" << about);
    CheckpointManager manager(dir.path(), {.write = {.threads = 2}});
    const SaveStats stats = manager.save(1, std::move(sources), save);
    const CheckpointReader reader(
        stats.directory,
        {.memory_budget_bytes = random.draw(0, 1) == 0 ? std::size_t{1} : std::size_t{256} << 20,
         .threads = 2,
         .read_once = random.draw(0, 1) == 0});
    count_what_is_there(reader, seen);
    restore_and_compare(reader, tensors, devices, random, seen);
    if (HasFailure()) return;
  }
  // The random cases cover enough of each kind.
  EXPECT_GT(seen.empty, 30);
  EXPECT_GT(seen.several_chunks, 30);
  EXPECT_GT(seen.several_files, 60);
  EXPECT_GT(seen.compressed, 50);
  EXPECT_GT(seen.boxes, 3000);
}

/// 1,024 elements, each of 256 that differ in every byte: all there are of one byte.
Whole every_byte(DType dtype) {
  Whole whole{.name = std::string(name(dtype)), .dtype = dtype, .shape = {32, 32}, .data = {}};
  const std::size_t element = size_bytes(dtype);
  for (std::size_t i = 0; i < 1024 * element; ++i) {
    const std::size_t value = dtype == DType::boolean ? i % 2 : i / element + i % element;
    whole.data.push_back(static_cast<std::byte>(value));
  }
  return whole;
}

TEST(RoundTrip, EveryDTypeIsVerifiedAndRestoredBitByBit) {
  Devices devices(8, {.threads = 2});
  const Mesh mesh = Mesh::parse("data=4,model=2");
  const Sharding before(mesh, PartitionSpec::parse("data,model"));
  const Sharding after(mesh, PartitionSpec::parse("model,-"));
  for (const Codec codec : {Codec::automatic, Codec::zstd, Codec::none}) {
    const TempDir dir;
    std::vector<Whole> tensors;
    std::vector<TensorSource> sources;
    for (const DType dtype : all_dtypes()) {
      const Whole& whole = tensors.emplace_back(every_byte(dtype));
      sources.push_back(tensor_source(
          whole.name, ShardedArray::from_host(devices, {dtype, whole.shape, before}, whole.data)));
    }
    const SaveStats stats =
        CheckpointManager(dir.path()).save(1, std::move(sources), {.codec = codec, .writers = 3});
    EXPECT_TRUE(verify_checkpoint(stats.directory).ok());
    const CheckpointReader reader(stats.directory);
    for (const Whole& whole : tensors) {
      SCOPED_TRACE(whole.name);
      EXPECT_EQ(reader.tensor(whole.name).dtype, whole.dtype);
      const ShardedArray restored = reader.restore(devices, whole.name, after);
      EXPECT_EQ(restored.sharding(), after);
      EXPECT_TRUE(restored.to_host() == whole.data);
    }
  }
}

}  // namespace
}  // namespace shardwise
