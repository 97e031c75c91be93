// Batches over the devices of several processes, which are threads here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "loader/pattern_source.h"
#include "shardwise/loader/loader.h"
#include "testing/same_shards.h"
#include "testing/socket_transport.h"

namespace shardwise {
namespace {

using ::testing::Each;

constexpr std::int64_t kRecords = 61, kDevices = 8;

std::shared_ptr<const PatternSource> pattern() {
  return std::make_shared<const PatternSource>(
      kRecords, std::vector<Field>{{"image", DType::u8, {4, 3}}, {"label", DType::i32, {}}});
}

std::vector<Batch> all_batches(Devices& devices, const std::shared_ptr<const Source>& source,
                               const std::vector<FieldPlacement>& placements) {
  Loader loader(devices, source, placements,
                {.batch_size = 10, .epochs = 2, .last_batch = LastBatch::pad}, {.seed = 5});
  std::vector<Batch> batches;
  while (auto batch = loader.next()) batches.push_back(std::move(*batch));
  return batches;
}

/// Elements of the distinct boxes that this process holds, of the rows that are no padding.
std::int64_t elements_here(const ShardedArray& array, std::int64_t valid_rows) {
  std::int64_t elements = 0;
  for (const DistinctPiece& piece : array.sharding().distinct_pieces(array.shape())) {
    const bool is_here = std::ranges::any_of(
        piece.positions, [&](std::int64_t p) { return array.is_addressable(p); });
    const std::int64_t rows = std::min(piece.box.end(0), valid_rows) - piece.box.begin(0);
    if (!is_here || rows <= 0) continue;
    elements += piece.box.num_elements() / (piece.box.end(0) - piece.box.begin(0)) * rows;
  }
  return elements;
}

TEST(LoaderOfProcesses, EachReadsWhatItsDevicesHoldOfTheSameBatches) {
  const Mesh mesh = Mesh::parse("data=4,model=2");
  for (const char* spec : {"data,-,-", "data+model,-,-", "-,model,-", "model,data,-", "-,-,-"}) {
    const std::vector<FieldPlacement> placements{
        {"image", Sharding(mesh, PartitionSpec::parse(spec))},
        {"label", Sharding(mesh, PartitionSpec::parse("data"))}};
    Devices alone(kDevices);
    const std::vector<Batch> expected = all_batches(alone, pattern(), placements);
    ASSERT_EQ(expected.size(), 14u);
    for (const int ranks : {1, 2, 3, 4}) {
      const auto errors = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
        Devices devices(kDevices, {.threads = 1, .group = ProcessGroup(std::move(transport))});
        const auto source = pattern();
        source->fingerprint();
        const std::int64_t sampled = source->elements();
        const std::vector<Batch> batches = all_batches(devices, source, placements);
        ASSERT_EQ(batches.size(), expected.size());
        std::int64_t needed = 2 * sampled;  // by the loader, too
        for (std::size_t b = 0; b < batches.size(); ++b) {
          for (std::size_t f = 0; f < 2; ++f) {
            EXPECT_TRUE(same_shards(batches[b].fields[f], expected[b].fields[f])) << b;
            needed += elements_here(batches[b].fields[f], batches[b].valid_rows);
          }
          EXPECT_TRUE(same_shards(batches[b].mask, expected[b].mask));
          EXPECT_EQ(batches[b].valid_rows, expected[b].valid_rows);
        }
        EXPECT_EQ(source->elements(), needed) << spec << ", " << ranks << " ranks";
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

}  // namespace
}  // namespace shardwise
