#include "shardwise/loader/host_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "loader/engine/joined_hosts.h"
#include "loader/engine/trial_source.h"
#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/loader.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kTrialRecords = 23;

std::vector<FieldPlacement> trial_placements(const char* mesh, const char* image, const char* text,
                                             const char* rows) {
  return {{"image", make_sharding(image, mesh)},
          {.field = "text", .sharding = make_sharding(text, mesh), .buckets = {4, 8, 16}},
          {"label", make_sharding(rows, mesh)},
          {"text.length", make_sharding(rows, mesh)}};
}

struct TrialLayout {
  const char* mesh;
  std::vector<FieldPlacement> placements;
};

// 1, 2, 4, 8 and 3 x 2 devices; batch, record dims, both and neither cut.
std::vector<TrialLayout> trial_layouts() {
  std::vector<TrialLayout> all{{"x=1", trial_placements("x=1", "-,-,-", "-,-", "-")},
                               {"x=2", trial_placements("x=2", "x,-,-", "-,x", "x")},
                               {"x=4", trial_placements("x=4", "-,-,x", "x,-", "x")},
                               {"x=4,y=2", trial_placements("x=4,y=2", "x,y,-", "x,y", "y+x")},
                               {"x=3,y=2", trial_placements("x=3,y=2", "y,x,-", "y,-", "-")},
                               {"x=2,y=2", trial_placements("x=2,y=2", "-,x,y", "-,x", "x+y")}};
  return all;
}

// Which sample each row must be, numbered as the header says, without the loader's arithmetic.
struct ExpectedRow {
  std::int64_t epoch, record;
};
std::vector<std::vector<ExpectedRow>> expected_run(const LoaderOptions& options,
                                                   std::uint64_t seed) {
  std::vector<std::vector<ExpectedRow>> batches(1);
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const Shuffle shuffle(kTrialRecords, seed, static_cast<std::uint64_t>(epoch));
    for (std::int64_t place = 0; place < kTrialRecords; ++place) {
      if (std::ssize(batches.back()) == options.batch_size) batches.emplace_back();
      const bool shuffled = options.order == RecordOrder::shuffled;
      batches.back().push_back({epoch, shuffled ? shuffle.at(place) : place});
    }
    const bool is_full = std::ssize(batches.back()) == options.batch_size;
    if (options.last_batch == LastBatch::drop && !is_full) batches.back().clear();
    if (options.last_batch == LastBatch::pad && !is_full) batches.emplace_back();
  }
  if (batches.back().empty()) batches.pop_back();
  return batches;
}

// Every element of a batch, from the records that its rows are; -1: none.
void expect_whole(const WholeBatch& batch, const std::vector<std::int64_t>& records,
                  std::int64_t valid_rows) {
  const auto rows = static_cast<std::int64_t>(records.size());
  EXPECT_EQ(batch.valid_rows, valid_rows);
  const std::size_t bytes[] = {1, 2, 4};
  for (std::size_t field = 0; field < 3; ++field) {
    const Box all = Box::whole(batch.shapes[field]);
    for (const Index& at : indices_of(all)) {
      Index within;
      for (std::size_t dim = 1; dim < at.size(); ++dim) within.push_back(at[dim]);
      const std::int64_t record = records[static_cast<std::size_t>(at[0])];
      const std::uint64_t value = record < 0 ? 0 : TrialSource::element(field, record, within);
      ASSERT_EQ(std::memcmp(batch.arrays[field].data() + offset_in(all, at) * bytes[field], &value,
                            bytes[field]),
                0)
          << "field " << field << " at " << to_string(at);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto i = static_cast<std::size_t>(row);
    std::int32_t length = -1;
    std::memcpy(&length, batch.arrays[3].data() + 4 * i, 4);
    EXPECT_EQ(length, records[i] < 0 ? 0 : TrialSource::text_length(records[i]));
    EXPECT_EQ(batch.arrays[4][i], std::byte{records[i] >= 0});
    float weight = -1;
    std::memcpy(&weight, batch.arrays[5].data() + 4 * i, 4);
    EXPECT_EQ(weight, records[i] < 0 ? 0 : 1.0F / static_cast<float>(valid_rows));
  }
}

TEST(HostLoader, GivesTheSameGlobalBatchesOnAnyMeshHostsThreadsAndResumePoints) {
  RandomShardings random(31);
  const auto source = std::make_shared<const TrialSource>(kTrialRecords);
  for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
    for (const std::int64_t batch_size : {1, 4, 7, 23}) {
      LoaderOptions options{.batch_size = batch_size, .epochs = 3, .last_batch = last};
      const auto expected = expected_run(options, 9);
      for (const TrialLayout& layout : trial_layouts()) {
        SCOPED_TRACE(std::string(layout.mesh) + ", batch " + std::to_string(batch_size) + ", " +
                     std::string(name(last)));
        options.threads = static_cast<int>(random.draw(1, 8));
        options.prefetch = static_cast<int>(random.draw(1, 5));
        LoaderState state{.seed = 9};
        std::size_t b = 0;
        for (bool is_over = false; !is_over;) {
          JoinedHosts hosts(source, layout.placements, options, state, random.draw(1, 4));
          EXPECT_EQ(hosts.first().batches(), std::ssize(expected));
          const std::int64_t stop_after = random.draw(0, 9);
          for (std::int64_t i = 0; i < stop_after && !is_over; ++i) {
            const auto batch = hosts.next();
            is_over = !batch;
            if (is_over) break;
            ASSERT_LT(b, expected.size());
            EXPECT_EQ(batch->index, static_cast<std::int64_t>(b));
            EXPECT_EQ(batch->epoch, expected[b][0].epoch);
            std::vector<std::int64_t> records(static_cast<std::size_t>(batch_size), -1);
            for (std::size_t r = 0; r < expected[b].size(); ++r) {
              records[r] = expected[b][r].record;
              EXPECT_EQ(hosts.first().step_of(records[r], expected[b][r].epoch),
                        (BatchRow{batch->index, static_cast<std::int64_t>(r)}));
            }
            expect_whole(*batch, records, std::ssize(expected[b]));
            ASSERT_FALSE(HasFailure());
            ++b;
          }
          state = hosts.state();
        }
        EXPECT_EQ(b, expected.size());
      }
    }
  }
}

// Which records are bad differs by field and by part of a record, so by the parts that a process
// reads.
TEST(HostLoader, PassesOverTheSameBadRecordsOnAnyMesh) {
  const auto is_bad = [](std::int64_t record, std::size_t field, const Box& box) {
    if (record % 5 == 1) return field == 0 && box.end(0) == 6 && box.end(1) == 4;  // last element
    if (record % 5 == 3) return field == 2;
    return false;
  };
  const auto bad_record = [](std::int64_t record) { return record % 5 == 1 || record % 5 == 3; };
  RandomShardings random(32);
  const auto source = std::make_shared<const TrialSource>(kTrialRecords, is_bad);
  for (const BadRecords policy : {BadRecords::substitute, BadRecords::mask}) {
    for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
      LoaderOptions options{
          .batch_size = 6, .epochs = 2, .last_batch = last, .bad_records = policy};
      const auto expected = expected_run(options, 4);
      std::vector<WholeBatch> first_run;
      for (const TrialLayout& layout : trial_layouts()) {
        SCOPED_TRACE(std::string(layout.mesh) + ", " + std::string(name(policy)));
        options.threads = static_cast<int>(random.draw(1, 8));
        JoinedHosts hosts(source, layout.placements, options, {.seed = 4}, random.draw(1, 4));
        // This one has a part of every row.
        HostLoader whole(source, layout.placements, options, {.seed = 4});
        std::size_t entry = 0;
        for (std::size_t b = 0; b < expected.size(); ++b) {
          const auto batch = hosts.next();
          ASSERT_TRUE(batch.has_value());
          ASSERT_TRUE(whole.next().has_value());
          if (first_run.size() == b) first_run.push_back(*batch);
          EXPECT_EQ(*batch, first_run[b]);
          const BadRecordLedger ledger = whole.bad_records();
          std::vector<std::int64_t> records(6, -1);
          for (std::size_t r = 0; r < expected[b].size(); ++r) {
            const auto [epoch, record] = expected[b][r];
            records[r] = record;
            if (!bad_record(record)) continue;
            ASSERT_LT(entry, ledger.first.size());
            const BadRecord& bad = ledger.first[entry++];
            EXPECT_EQ(bad.batch, batch->index);
            EXPECT_EQ(bad.row, static_cast<std::int64_t>(r));
            EXPECT_EQ(bad.epoch, epoch);
            EXPECT_EQ(bad.record, record);
            EXPECT_EQ(bad.message, record % 5 == 1 ? "field \"image\": read: record is bad"
                                                   : "field \"label\": read: record is bad");
            EXPECT_EQ(bad.substitute >= 0, policy == BadRecords::substitute);
            EXPECT_TRUE(bad.substitute < 0 || !bad_record(bad.substitute));
            records[r] = bad.substitute;
          }
          EXPECT_EQ(ledger.count, static_cast<std::int64_t>(entry));
          expect_whole(*batch, records, std::ssize(expected[b]));
          ASSERT_FALSE(HasFailure());
        }
        EXPECT_FALSE(hosts.next().has_value());
        EXPECT_GT(entry, 10u);
      }
    }
  }
}

TEST(HostLoader, GivesWhatALoaderPutsOnDevices) {
  const auto source = std::make_shared<const TrialSource>(kTrialRecords);
  for (const TrialLayout& layout : trial_layouts()) {
    SCOPED_TRACE(layout.mesh);
    const LoaderOptions options{.batch_size = 5, .epochs = 2, .last_batch = LastBatch::wrap};
    Devices devices(8, {.threads = 1});
    Loader on_devices(devices, source, layout.placements, options, {.seed = 2});
    HostLoader on_host(source, layout.placements, options, {.seed = 2});
    while (const auto batch = on_devices.next()) {
      const auto host = on_host.next();
      ASSERT_TRUE(host.has_value());
      EXPECT_EQ(host->index, batch->index);
      const auto expect_same = [](const ShardedArray& array, const HostArray& same) {
        EXPECT_EQ(array.shape(), same.shape);
        EXPECT_EQ(array.dtype(), same.dtype);
        for (const HostPart& part : same.parts) {
          const ConstBoxView shard = array.shard(part.position);
          EXPECT_EQ(shard.box, part.box);
          EXPECT_EQ(std::memcmp(shard.data, part.data.get(), part.bytes), 0);
        }
      };
      for (std::size_t i = 0; i < host->fields.size(); ++i) {
        expect_same(batch->fields[i], host->fields[i]);
      }
      expect_same(batch->mask, host->mask);
      expect_same(batch->weights, host->weights);
    }
    EXPECT_FALSE(on_host.next().has_value());
    EXPECT_EQ(on_host.state(), on_devices.state());
  }
}

TEST(HostLoader, ReadsEveryElementOnceAStep) {
  for (const TrialLayout& layout : trial_layouts()) {
    SCOPED_TRACE(layout.mesh);
    std::vector<FieldPlacement> placements = layout.placements;
    placements[1].buckets.clear();
    for (const BadRecords policy : {BadRecords::fail, BadRecords::mask}) {
      const auto source = std::make_shared<const TrialSource>(kTrialRecords);
      HostLoader loader(source, placements,
                        {.batch_size = 4, .last_batch = LastBatch::pad, .bad_records = policy});
      while (loader.next()) {
      }
      const std::int64_t once = kTrialRecords * (24 + 12 + 1);
      EXPECT_EQ(source->elements(), once);
    }
  }
}

TEST(HostLoader, TakesTheCallersMemory) {
  const auto source = std::make_shared<const TrialSource>(kTrialRecords);
  const auto placements = cut_batch(*source, Mesh::parse("x=2"), "x");
  std::set<const std::byte*> given;
  std::size_t live = 0;
  const auto allocate = [&](std::int64_t position, std::size_t bytes) {
    EXPECT_TRUE(position == 0 || position == 1);
    ++live;
    const std::shared_ptr<std::byte> memory(new std::byte[bytes], [&](std::byte* data) {
      --live;
      delete[] data;
    });
    given.insert(memory.get());
    return memory;
  };
  {
    std::optional<HostBatch> batch;
    {
      HostLoader loader(source, placements, {.batch_size = 4}, {}, {.allocate = allocate});
      batch = loader.next();
    }
    EXPECT_EQ(live, 2u * 5);  // three fields, mask and weights, of two positions
    for (const HostArray& field : batch->fields) {
      for (const HostPart& part : field.parts) EXPECT_TRUE(given.contains(part.data.get()));
    }
  }
  EXPECT_EQ(live, 0u);

  HostLoader none(source, placements, {.batch_size = 4}, {},
                  {.allocate = [](std::int64_t, std::size_t) { return nullptr; }});
  EXPECT_EQ(message_of(ErrorCode::resource_exhausted, [&] { none.next(); }),
            "loader: allocate \"batch image\": position 0 got no memory, needed is 48 bytes");
  HostLoader throws(source, placements, {.batch_size = 4}, {},
                    {.allocate = [](std::int64_t, std::size_t) -> std::shared_ptr<std::byte> {
                      throw std::bad_alloc();
                    }});
  EXPECT_THROW(throws.next(), std::bad_alloc);
}

TEST(HostLoader, GivesMemoryBackOnlyWhenItsLastOwnerDropsIt) {
  const auto source = std::make_shared<const TrialSource>(kTrialRecords);
  std::vector<WholeBatch> copies;
  std::vector<HostBatch> held;
  const auto placements = trial_layouts()[3].placements;
  {
    HostLoader loader(source, placements, {.batch_size = 4, .epochs = 6, .prefetch = 3});
    while (auto batch = loader.next()) {
      for (const HostPart& part : batch->fields[0].parts) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data.get()) % 64, 0u);
      }
      copies.push_back(join({*batch}));
      if (batch->index % 3 != 1) held.push_back(std::move(*batch));
    }
  }
  std::set<const std::byte*> places;
  for (const HostBatch& batch : held) {
    EXPECT_EQ(join({batch}), copies[static_cast<std::size_t>(batch.index)]);
    for (const HostPart& part : batch.mask.parts)
      EXPECT_TRUE(places.insert(part.data.get()).second);
  }
}

TEST(HostLoader, NamesAPositionThatIsNot) {
  const auto source = std::make_shared<const TrialSource>(kTrialRecords);
  const auto placements = cut_batch(*source, Mesh::parse("x=2"), "x");
  for (const std::int64_t position : {-1, 2}) {
    EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                         [&] {
                           HostLoader(source, placements, {}, {},
                                      {.positions = std::vector<std::int64_t>{0, position}});
                         }),
              "loader: field \"image\": position " + std::to_string(position) +
                  " is to be this process's, but the mesh x=2 has 0 to 1");
  }
  // A host may have nothing.
  HostLoader idle(source, placements, {.batch_size = 4}, {},
                  {.positions = std::vector<std::int64_t>{}});
  while (const auto batch = idle.next()) EXPECT_TRUE(batch->fields[0].parts.empty());
  EXPECT_EQ(source->elements(), 0);
}

TEST(HostLoader, RefusesABatchThatLeavesAProcessWithoutRows) {
  const auto source = std::make_shared<const TrialSource>(kTrialRecords);
  const Mesh mesh = Mesh::parse("data=4");
  const HostLoaderOptions second{.positions = std::vector<std::int64_t>{1}};
  const auto placed = [&](UnevenPolicy policy) {
    auto placements = cut_batch(*source, mesh, "data");
    for (FieldPlacement& place : placements) {
      place.sharding = Sharding(mesh, place.sharding.spec(), policy);
    }
    return placements;
  };
  // Blocks of ceil(rows / 4).
  for (const std::int64_t rows : {1, 2, 3, 5, 6, 9}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             HostLoader(source, placed(UnevenPolicy::ceil()), {.batch_size = rows},
                                        {}, second);
                           }),
                AllOf(HasSubstr("needed is a batch_size that gives rows to each part: a multiple "
                                "of 4, or 4 and more with the policy \"balanced\""),
                      HasSubstr("and a batch of " + std::to_string(rows) + " rows has none")));
  }
  for (const std::int64_t rows : {4, 7, 8, 10}) {
    HostLoader loader(source, placed(UnevenPolicy::ceil()), {.batch_size = rows}, {}, second);
    EXPECT_GT(loader.next()->mask.parts[0].bytes, 0U);
  }
  HostLoader balanced(source, placed(UnevenPolicy::balanced()), {.batch_size = 6}, {}, second);
  EXPECT_EQ(balanced.next()->mask.parts[0].bytes, 2U);
  // One process that has all of the batch, and programs on devices, take means over all rows.
  HostLoader all(source, placed(UnevenPolicy::ceil()), {.batch_size = 6});
  EXPECT_EQ(all.next()->mask.parts.size(), 4U);
}

}  // namespace
}  // namespace shardwise
