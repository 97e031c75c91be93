// Messages between the processes of a save: nothing damaged or foreign is published.

#include "shardwise/checkpoint/detail/record/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/detail/save/messages.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

RecordHead some_head() {
  RecordHead head{.run = 7,
                  .list = {.high = 1, .low = 2},
                  .first_writer = 3,
                  .files = {},
                  .logical_bytes = 400,
                  .stored_bytes = 300,
                  .chunks = 2};
  head.files.resize(2);
  head.files[0].bytes = 5000;
  head.files[0].data_end = 4096;
  head.files[0].description_hash = {.high = 5, .low = 6};
  return head;
}

TensorList some_list() {
  TensorList list{.writers = WriterMap({0, 2, 4}), .tensors = {}};
  TensorEntry& boxes =
      list.tensors.emplace_back(TensorEntry{.name = "boxes", .dtype = DType::i8, .shape = {4, 2}});
  boxes.listed = {{0, Box({0, 0}, {4, 1})}, {1, Box({0, 1}, {4, 2})}};
  TensorEntry& cut =
      list.tensors.emplace_back(TensorEntry{.name = "cut", .dtype = DType::bf16, .shape = {8}});
  cut.sharding = Sharding(Mesh::parse("x=4"), PartitionSpec::parse("x"));
  return list;
}

TEST(Record, ComesBackAsItWas) {
  EXPECT_EQ(decode_head(encode(some_head())), some_head());
  const Bytes list = encode(some_list());
  EXPECT_EQ(decode_list(list), some_list());
  RecordHead head = some_head();
  head.list = hash_of(list);
  const PartCosts costs{.plan_seconds = 0.25, .write_seconds = 1.5, .memory_bytes = 1u << 20};
  const Bytes record = join(head, costs, list);
  const SplitRecord again = split(record);
  EXPECT_EQ(again.head, head);
  EXPECT_EQ(again.costs, costs);
  EXPECT_TRUE(std::ranges::equal(again.list, list));
}

TEST(Record, HeadIsSmall) {
  RecordHead head = some_head();
  head.first_writer = 16'383;
  head.files.resize(1);
  head.files[0].bytes = (17u << 20) + 1;
  head.files[0].data_end = 16u << 20;
  head.logical_bytes = head.stored_bytes = 16u << 20;
  head.chunks = 1000;
  EXPECT_LE(encode(head).size(), 72u);
}

TEST(Record, AnyDamageOfOneByteIsFound) {
  for (const Bytes& message : {encode(some_head()), encode(some_list()), encode(PartCosts())}) {
    for (std::size_t at = 0; at < message.size(); ++at) {
      Bytes damaged = message;
      damaged[at] ^= std::byte{0x10};
      EXPECT_THROW(decode_head(damaged), Error) << at;
      EXPECT_THROW(decode_list(damaged), Error) << at;
      EXPECT_THROW(decode_costs(damaged), Error) << at;
      damaged.resize(at);
      EXPECT_THROW(decode_head(damaged), Error) << at;
      EXPECT_THROW(decode_list(damaged), Error) << at;
      EXPECT_THROW(decode_costs(damaged), Error) << at;
    }
  }
}

TEST(Record, BoundsWhatItHolds) {
  const auto list_with = [](const std::function<void(TensorList&)>& change) {
    TensorList list = some_list();
    change(list);
    const Bytes bytes = encode(list);
    return message_of(ErrorCode::invalid_argument, [&] { decode_list(bytes); });
  };
  EXPECT_THAT(list_with([](TensorList& list) {
                list.writers = WriterMap({0, 3, 2});
              }),
              HasSubstr("found the number 2, needed 3 to"));
  EXPECT_THAT(list_with([](TensorList& list) {
                list.writers = WriterMap({0, 1, 1LL << 50});
              }),
              HasSubstr("needed at most 1099511627776"));
  EXPECT_THAT(list_with([](TensorList& list) {
                list.writers = WriterMap({0, 1, 2});
              }),
              HasSubstr("nobody writes what device 3 holds"));
  EXPECT_THAT(list_with([](TensorList& list) {
                list.tensors[0].listed[0].box = Box({0, 0}, {5, 1});
              }),
              HasSubstr("leaves its shape [4, 2]"));
  EXPECT_THAT(list_with([](TensorList& list) { list.tensors[0].listed[1].writer = 2; }),
              HasSubstr("found the number 2, needed 0 to 1"));
  EXPECT_THAT(list_with([](TensorList& list) { std::swap(list.tensors[0], list.tensors[1]); }),
              HasSubstr("needed are sorted, distinct names"));
  for (const double seconds : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Bytes costs = encode(PartCosts{.write_seconds = seconds});
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { decode_costs(costs); }),
                HasSubstr("found a time that is negative or not finite"));
  }
  RecordHead head = some_head();
  head.files[0].data_end = 6000;
  const Bytes bytes = encode(head);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { decode_head(bytes); }),
              HasSubstr("found the number 6000, needed 128 to 5000"));
}

// A box that ends before it begins can be sent, though Box holds none.
TEST(Record, MergedHasTheBytesOfAllTensors) {
  TensorList list = some_list();
  list.tensors.erase(list.tensors.begin());  // "cut", of 16 bytes, stays
  const auto merged = [&](std::int64_t logical_bytes) {
    std::vector<RecordHead> heads(2);
    for (std::int64_t writer = 0; writer < 2; ++writer) {
      RecordHead& head = heads[static_cast<std::size_t>(writer)];
      head.list = hash_of(encode(list));
      head.first_writer = writer;
      head.files.resize(1);
    }
    heads.front().logical_bytes = logical_bytes;
    std::vector<NumberedList> lists;
    lists.push_back({0, list});
    return merge(heads, std::move(lists), "writer").second.logical_bytes;
  };
  EXPECT_EQ(merged(16), 16u);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { merged(15); }),
            "found 15 bytes that all processes together wrote, needed 16, those of all tensors");
}

TEST(Record, RefusesBoxesThatEndBeforeTheyBegin) {
  Packer packer;
  for (const std::uint64_t value : {2, 0, 4, 0, 1, 1}) packer.number(value);  // starts, tensors
  packer.text("w");
  for (const std::uint64_t value : {0, 1, 8, 0, 1, 0, 6, 4}) packer.number(value);
  const Bytes bytes = sealed(packer.take());
  EXPECT_THROW(decode_list(bytes), Error);
}

TEST(Messages, ComeBackAsTheyWere) {
  jobs_detail::AttemptNotice notice{
      .id = std::string(32, 'a'),
      .directory = ".step-00000005.tmp",
      .is_reused = true,
      .skipped = true,
      .existing = Existing::replace,
      .base = "/run/step-00000004",
      .terms = {.step = 5, .writers = 3, .copies = 1, .processes_per_host = 2}};
  const jobs_detail::AttemptNotice again = jobs_detail::decode_notice(encode(notice));
  EXPECT_EQ(again.id, notice.id);
  EXPECT_EQ(again.directory, notice.directory);
  EXPECT_TRUE(again.skipped);
  EXPECT_EQ(again.existing, Existing::replace);
  EXPECT_EQ(again.base, notice.base);
  EXPECT_EQ(again.terms, notice.terms);
  notice.directory = "../elsewhere";
  EXPECT_THROW(jobs_detail::decode_notice(encode(notice)), Error);
  const jobs_detail::SaveOutcome outcome{.lists_wanted = {1, 3}, .stats = {}, .manifest = "{}"};
  EXPECT_EQ(jobs_detail::decode_outcome(encode(outcome), 4).lists_wanted, outcome.lists_wanted);
  EXPECT_THROW(jobs_detail::decode_outcome(encode(outcome), 3), Error);
}

/// Two writers' records of two tensors over four devices.
class Publishing : public testing::Test {
 protected:
  std::vector<ShardRecord> write(const CheckpointAttempt& attempt) const {
    std::vector<ShardRecord> records;
    for (std::int64_t w = 0; w < 2; ++w) {
      records.push_back(write_shards(attempt.directory(), {.writer = w, .starts = {0, 2, 4}},
                                     sources_of(tensors_), {.threads = 1}));
    }
    return records;
  }

  // False if it is refused; else the published checkpoint must be right.
  bool publishes(CheckpointAttempt& attempt, const std::vector<ShardRecord>& records) const {
    try {
      attempt.publish(records);
    } catch (const Error&) {
      return false;
    }
    const std::filesystem::path path = dir_ / "w.sw";
    EXPECT_TRUE(verify_checkpoint(path, {.threads = 1, .pin = false}).ok());
    EXPECT_TRUE(holds(CheckpointReader(path, {.threads = 1, .pin = false}), tensors_));
    return true;
  }

  TempDir dir_;
  const std::vector<HostTensor> tensors_{
      host_tensor("s", DType::f32, {16}, "data=4", "data"),
      host_tensor("w", DType::f32, {256, 80}, "data=4", "data,-", Values::noise)};
};

// One place of a record is damaged: it is refused, or the published values are those saved. Every
// second time the hashes are made right, as if a process had sent it so.
TEST_F(Publishing, NeverPublishesWhatADamagedRecordSays) {
  int refused = 0;
  std::unique_ptr<CheckpointAttempt> attempt;
  std::vector<ShardRecord> written;  // in the attempt, until one of them is published
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t bound) {
      return static_cast<std::size_t>(random() % bound);
    };
    if (!attempt) {
      attempt = std::make_unique<CheckpointAttempt>(dir_ / "w.sw", Existing::replace);
      written = write(*attempt);
    }
    std::vector<ShardRecord> records = written;
    ShardRecord& record = records[below(2)];
    auto [head, costs, list] = split(record);
    const bool is_head = random() % 2 == 0, is_resealed = seed % 2 == 0;
    Bytes part = is_head ? encode(head) : Bytes(list.begin(), list.end());
    if (is_resealed) part.resize(part.size() - sizeof(std::uint64_t));
    switch (random() % 4) {
      case 0:
        part[below(part.size())] = static_cast<std::byte>(random());
        break;
      case 1:
        part[below(part.size())] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 2:
        part.insert(part.begin() + static_cast<std::ptrdiff_t>(below(part.size())),
                    static_cast<std::byte>(random()));
        break;
      default:
        part.resize(below(part.size()));
        break;
    }
    if (is_resealed) part = sealed(std::move(part));
    try {
      if (is_head) {
        record = join(decode_head(part), costs, list);
      } else {
        head.list = hash_of(part);
        record = join(head, costs, part);
      }
    } catch (const Error&) {
      ++refused;
      continue;
    }
    if (publishes(*attempt, records)) {
      attempt.reset();
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(Publishing, TellsTheTimeOfTheSlowestWriterAndTheMemoryOfTheLargest) {
  CheckpointAttempt one(dir_ / "one.sw");
  const ShardRecord alone = write_shards(one.directory(), {}, sources_of(tensors_), {.threads = 1});
  const PartCosts costs = split(alone).costs;
  const SaveStats stats = one.publish({&alone, 1});
  EXPECT_GT(stats.write_seconds, 0);
  EXPECT_GT(stats.memory_bytes, 0u);
  EXPECT_EQ(stats.plan_seconds, costs.plan_seconds);
  EXPECT_EQ(stats.write_seconds, costs.write_seconds);
  EXPECT_EQ(stats.memory_bytes, costs.memory_bytes);
  EXPECT_NEAR(stats.plan_seconds + stats.write_seconds + stats.publish_seconds, stats.total_seconds,
              1e-6);

  CheckpointAttempt attempt(dir_ / "w.sw");
  std::vector<ShardRecord> records = write(attempt);
  const PartCosts said[] = {{.plan_seconds = 8, .write_seconds = 1, .memory_bytes = 1u << 20},
                            {.plan_seconds = 2, .write_seconds = 9, .memory_bytes = 1u << 10}};
  for (std::size_t w = 0; w < 2; ++w) {
    const SplitRecord parts = split(records[w]);
    records[w] = join(parts.head, said[w], Bytes(parts.list.begin(), parts.list.end()));
  }
  const SaveStats of_two = attempt.publish(records);
  EXPECT_EQ(of_two.plan_seconds, 2);
  EXPECT_EQ(of_two.write_seconds, 9);
  EXPECT_EQ(of_two.publish_seconds, 0) << "these took longer than all of it";
  EXPECT_EQ(of_two.memory_bytes, 1u << 20);
}

TEST_F(Publishing, RefusesRecordsOfAnotherAttempt) {
  CheckpointAttempt before(dir_ / "w.sw"), attempt(dir_ / "w.sw");
  const std::vector<ShardRecord> stale = write(before);
  std::vector<ShardRecord> records = write(attempt);
  std::swap(records[1], const_cast<ShardRecord&>(stale[1]));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { attempt.publish(records); }),
              HasSubstr("found a record of writer 1 for another attempt"));
}

TEST_F(Publishing, LooksAtTheFiles) {
  for (const bool is_cut : {true, false}) {
    CheckpointAttempt attempt(dir_ / "w.sw");
    const std::vector<ShardRecord> records = write(attempt);
    const std::filesystem::path file = attempt.directory() / "shards-00001-of-00002.h5";
    if (is_cut) {
      std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
    } else {
      std::filesystem::remove(file);
    }
    EXPECT_FALSE(publishes(attempt, records));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "w.sw"));
}

// Devices that no writer has would be saved by none.
TEST_F(Publishing, RefusesStartsThatLeaveDevicesOut) {
  const CheckpointAttempt attempt(dir_ / "w.sw");
  for (const std::vector<std::int64_t>& starts :
       {std::vector<std::int64_t>{0, 1}, {0, 1, 2}, {0, 2, 3}}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             write_shards(attempt.directory(), {.writer = 0, .starts = starts},
                                          sources_of(tensors_));
                           }),
                HasSubstr("is cut over device 3, the job has devices 0 to"));
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           write_shards(attempt.directory(),
                                        {.writer = 0, .starts = {0, 1, 1LL << 41}},
                                        sources_of(tensors_));
                         }),
              HasSubstr("to 1099511627776 at most"));
}

TEST_F(Publishing, OneWriterMayHaveAnyNumberOfDevices) {
  for (const std::int64_t devices : {std::int64_t{4}, std::numeric_limits<std::int64_t>::max()}) {
    CheckpointAttempt attempt(dir_ / "w.sw", Existing::replace);
    const ShardRecord record = write_shards(
        attempt.directory(), {.writer = 0, .starts = {0, devices}}, sources_of(tensors_));
    EXPECT_TRUE(publishes(attempt, {record}));
  }
}

TEST(ManagerDevices, AreBounded) {
  const TempDir dir;
  for (const std::int64_t devices : {std::int64_t{-1}, std::int64_t{1} << 41}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { CheckpointManager(dir.path(), {.devices = devices}); }),
                HasSubstr("needed 0 (those of the meshes) to 1099511627776"));
  }
  CheckpointManager manager(dir.path(), {.devices = kMostDevices});
  const HostTensor tensor = host_tensor("w", DType::f32, {4}, "data=2", "data");
  const SaveStats stats = manager.save(1, {tensor.source()}, {.writers = 2});
  EXPECT_TRUE(holds(CheckpointReader(stats.directory), std::vector{tensor}));
}

}  // namespace
}  // namespace shardwise::detail
