// How much host memory saving, restoring, resharding and verifying take beyond the tensors: no more
// than their budget and 64 MiB, whatever the largest tensor. A test takes a process of its own, as
// memory that others have given back may be found touched already; and the machine's own allocator,
// which the sanitizers replace.

#include "bench/peak_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <ostream>
#include <random>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/reshard.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

constexpr std::size_t kMore = std::size_t{64} << 20;
// Each thread has a coder of some 2 MiB; how many work at once depends on the machine.
constexpr std::size_t kReshardMore = std::size_t{48} << 20;
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
// These threads would exceed the small budget if they did not look at it.
constexpr int kThreads = 16;
const Shape kShape{6144, 16384};  // 384 MiB of f32, more than any budget here and kMore

struct Case {
  const char* name;
  Codec codec;
  std::size_t budget_bytes;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// As weights are, so that zstd makes them smaller; the same in each MiB, as numbers take their
// time.
std::vector<std::byte> weights() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> block(kBlockBytes / sizeof(float));
  for (float& value : block) value = normal(random);
  std::vector<std::byte> all(num_bytes(kShape, sizeof(float)));
  for (std::size_t at = 0; at < all.size(); at += kBlockBytes) {
    std::memcpy(all.data() + at, block.data(), kBlockBytes);
  }
  return all;
}

// The growth of the process's peak memory from now on, beyond `wanted_bytes`.
class Growth {
 public:
  explicit Growth(std::size_t wanted_bytes) : wanted_bytes_(wanted_bytes), peak_(trimmed()) {}

  // Negative if less than the wanted bytes was new.
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(peak_.growth_bytes().value()) -
           static_cast<std::int64_t>(wanted_bytes_);
  }

 private:
  // Memory that was given back goes back to the system, so that to use it again counts.
  static tools::PeakMemory trimmed() {
    ::malloc_trim(0);
    return {};
  }

  std::size_t wanted_bytes_;
  tools::PeakMemory peak_;
};

class PeakMemory : public testing::TestWithParam<Case> {};

TEST_P(PeakMemory, StaysWithinTheBudget) {
  const std::size_t budget = GetParam().budget_bytes;
  const auto most = static_cast<std::int64_t>(budget + kMore);
  const ReadOptions read{.memory_budget_bytes = budget, .threads = kThreads};
  const TempDir dir;
  const std::vector<std::byte> data = weights();
  std::vector<std::byte> out(data.size());
  const Sharding whole(Mesh::parse("one=1"), PartitionSpec::parse("-,-"));
  {
    CheckpointManager manager(dir.path(), {.write = {.threads = kThreads}});
    const Growth growth(0);
    const SaveStats stats =
        manager.save(1, {host_source("w", {DType::f32, kShape, whole}, data)},
                     {.codec = GetParam().codec, .memory_budget_bytes = budget});
    EXPECT_LE(growth.bytes(), most) << "save";
    EXPECT_EQ(stats.stored_bytes < stats.logical_bytes, GetParam().codec == Codec::zstd);
  }
  {
    const Growth growth(0);
    CheckpointReader(dir / "step-00000001", read).read("w", Box::whole(kShape), out);
    EXPECT_LE(growth.bytes(), most) << "read";
    EXPECT_TRUE(out == data);
  }
  {
    const Growth growth(0);
    ReshardOptions options{.save = {.codec = GetParam().codec, .memory_budget_bytes = budget},
                           .threads = kThreads};
    reshard_checkpoint(dir / "step-00000001", dir / "to", Mesh::parse("data=4,model=2"),
                       SpecRules::parse("w=model,data"), options);
    EXPECT_LE(growth.bytes(), most) << "reshard";
    EXPECT_TRUE(verify_checkpoint(dir / "to" / "step-00000001", read).ok());
    EXPECT_LE(growth.bytes(), most) << "verify";
  }
  Devices devices(8);
  const Sharding cut(Mesh::parse("data=4,model=2"), PartitionSpec::parse("model,data"));
  const Growth growth(data.size());
  const ShardedArray array =
      CheckpointReader(dir / "step-00000001", read).restore(devices, "w", cut);
  EXPECT_LE(growth.bytes(), most) << "restore onto another mesh";
  EXPECT_GT(growth.bytes(), -(std::int64_t{16} << 20)) << "the array's memory was new";
  std::fill(out.begin(), out.end(), std::byte{0});
  array.read(Box::whole(kShape), out);
  EXPECT_TRUE(out == data);
}

// As a model has them. Buffers that the allocator keeps after they are freed, for each thread,
// would be several times the budget.
TEST(PeakMemoryOfManyTensors, AReshardStaysWithinItsBudget) {
  const Mesh from = Mesh::parse("data=4,model=2");
  const std::vector<std::byte> data = weights();
  const Shape shape{1024, 1536};
  const std::size_t bytes = num_bytes(shape, sizeof(float));
  std::vector<TensorSource> sources;
  for (std::size_t at = 0; at + bytes <= data.size(); at += bytes) {
    sources.push_back(
        host_source("w" + std::to_string(at),
                    {DType::f32, shape, Sharding(from, PartitionSpec::parse("data,model"))},
                    std::span(data).subspan(at, bytes)));
  }
  const TempDir dir;
  for (const Codec codec : {Codec::none, Codec::zstd}) {
    const std::string name(shardwise::name(codec));
    { CheckpointManager(dir / name).save(1, sources, {.codec = codec}); }
    for (const int threads : {2, kThreads}) {
      for (const std::size_t budget : {std::size_t{16} << 20, std::size_t{64} << 20}) {
        const Growth growth(0);
        reshard_checkpoint(
            dir / name / "step-00000001", dir / "to", Mesh::parse("model=8"),
            SpecRules::parse("*=-,model"),
            {.save = {.codec = codec, .existing = Existing::replace, .memory_budget_bytes = budget},
             .threads = threads});
        EXPECT_LE(growth.bytes(), static_cast<std::int64_t>(budget + kReshardMore))
            << name << ", " << threads << " threads, budget " << budget;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PeakMemory,
    testing::Values(Case{"NoneAsByDefault", Codec::none, SaveOptions().memory_budget_bytes},
                    Case{"ZstdAsByDefault", Codec::zstd, SaveOptions().memory_budget_bytes},
                    Case{"NoneLittle", Codec::none, std::size_t{16} << 20},
                    Case{"ZstdLittle", Codec::zstd, std::size_t{16} << 20}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shardwise
