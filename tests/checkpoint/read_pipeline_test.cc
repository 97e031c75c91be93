#include "shardwise/checkpoint/detail/read/read_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>
#include <set>

#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

/// Byte i of a file is i * 7; counts what is read, and fails where it is told to.
class CountingFile : public File {
 public:
  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (offset <= fails_at && fails_at < offset + size) {
      throw Error(ErrorCode::io, "read: broken device");
    }
    for (std::size_t i = 0; i < size; ++i) data[i] = value(offset + i);
    ++reads;
    largest = std::max(largest.load(), size);
  }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { std::abort(); }
  std::uint64_t size() override { return UINT64_MAX; }
  void resize(std::uint64_t) override { std::abort(); }
  void sync() override { std::abort(); }
  void close() override {}

  static std::byte value(std::uint64_t place) {
    return static_cast<std::byte>(place * 7 + place / 251);
  }

  std::atomic<int> reads{0};
  std::atomic<std::size_t> largest{0};
  std::uint64_t fails_at = UINT64_MAX;
};

class Pipeline : public testing::Test {
 protected:
  Pipeline() {
    for (int i = 0; i < 2; ++i) {
      auto file = std::make_unique<CountingFile>();
      counters_.push_back(file.get());
      files_.push_back(std::move(file));
    }
  }

  /// Runs the job and checks that each item came once, with its bytes.
  void expect_all(std::span<const ReadItem> items, std::size_t budget_bytes, int threads = 3) {
    std::vector<std::atomic<int>> seen(items.size());
    std::atomic<int> wrong{0};
    ReadJob job{.files = files_, .items = items};
    job.budget_bytes = budget_bytes;
    job.threads = threads;
    std::atomic<int> at_once{0}, most{0};
    job.consume = [&](std::size_t item, std::span<const std::byte> bytes) {
      most = std::max(most.load(), ++at_once);
      ++seen[item];
      if (bytes.size() != items[item].bytes) ++wrong;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != CountingFile::value(items[item].address + i)) ++wrong;
      }
      --at_once;
    };
    run_read_job(job);
    EXPECT_EQ(wrong, 0);
    for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
    EXPECT_LE(most, threads);
  }

  std::vector<std::unique_ptr<File>> files_;
  std::vector<CountingFile*> counters_;
};

TEST_F(Pipeline, GivesEachItemItsBytesWhateverTheBuffers) {
  std::vector<ReadItem> items;
  for (std::size_t file = 0; file < 2; ++file) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      items.push_back({file, i * 5000 + i % 3, static_cast<std::size_t>(i * 37 % 4900)});
    }
  }
  for (const std::size_t buffers : {std::size_t{0}, std::size_t{1}, std::size_t{5000},
                                    std::size_t{60'000}, std::size_t{64} << 20}) {
    SCOPED_TRACE(buffers);
    expect_all(items, buffers);
    expect_all(items, buffers, 1);
  }
}

TEST_F(Pipeline, ReadsNeighboursTogetherAndLeavesOutLargeHoles) {
  const ReadItem items[] = {{0, 0, 100},       {0, 104, 100},     {0, 60'000, 100},
                            {0, 200'000, 100}, {1, 200'100, 100}, {1, 200'200, 50}};
  expect_all(items, std::size_t{1} << 20);
  EXPECT_EQ(counters_[0]->reads, 2);
  EXPECT_EQ(counters_[0]->largest, 60'100u);
  EXPECT_EQ(counters_[1]->reads, 1);
  EXPECT_EQ(counters_[1]->largest, 150u);
}

// Three threads compute, so six read: a sixth of the budget each, less what a call takes itself.
TEST_F(Pipeline, KeepsToItsBudget) {
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 64; ++i) items.push_back({0, i * 1000, 1000});
  expect_all(items, 24'000);
  EXPECT_EQ(counters_[0]->largest, 4000u);
  EXPECT_EQ(counters_[0]->reads, 16);

  ReadJob job{.files = files_, .items = items};
  job.threads = 3;
  job.budget_bytes = 24'000;
  job.call_bytes = 2000;
  job.consume = [](std::size_t, std::span<const std::byte>) {};
  counters_[0]->largest = 0;
  run_read_job(job);
  EXPECT_EQ(counters_[0]->largest, 2000u);

  job.call_bytes = 11'000;  // two lanes of a read and a call each
  std::atomic<int> at_once{0}, most{0};
  job.consume = [&](std::size_t, std::span<const std::byte>) {
    most = std::max(most.load(), ++at_once);
    --at_once;
  };
  run_read_job(job);
  EXPECT_LE(most, 2);
}

TEST_F(Pipeline, LeavesFetchedItemsToTheCaller) {
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 50; ++i) items.push_back({0, i * 1000, 1000, i % 3 == 1});
  ReadJob job{.files = files_, .items = items};
  job.threads = 2;
  std::vector<std::atomic<int>> consumed(items.size()), fetched(items.size());
  job.consume = [&](std::size_t item, std::span<const std::byte>) { ++consumed[item]; };
  job.fetch = [&](std::size_t item) { ++fetched[item]; };
  run_read_job(job);
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(consumed[i], items[i].fetched ? 0 : 1) << i;
    EXPECT_EQ(fetched[i], items[i].fetched ? 1 : 0) << i;
  }
  EXPECT_EQ(counters_[0]->reads, 17) << "neighbours are read together where neither is fetched";
}

TEST_F(Pipeline, ThrowsWhatAReadThrowsAndSaysForWhat) {
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 100; ++i) items.push_back({0, i * 100'000, 10});
  counters_[0]->fails_at = 7'000'005;
  ReadJob job{.files = files_, .items = items};
  job.consume = [](std::size_t, std::span<const std::byte>) {};
  job.describe = [](std::size_t item) { return "item " + std::to_string(item); };
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }),
              "read item 70: read: broken device");
  }
  counters_[0]->fails_at = 5;
  job.items = std::span<const ReadItem>(items).first(1);
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }),
            "read item 0: read: broken device");
}

TEST_F(Pipeline, OfTwoReadsThatFailTheFirstIsReportedWhicheverWasFaster) {
  /// Its first byte cannot be read, but that is found out only after another read has failed.
  class SlowToFail : public CountingFile {
   public:
    void read_at(std::uint64_t offset, std::byte*, std::size_t) override {
      if (offset == 0) another_failed_.wait();
      if (offset != 0) another_failed_.count_down();
      throw Error(ErrorCode::io, "read: broken device");
    }

   private:
    std::latch another_failed_{1};
  };
  std::vector<std::unique_ptr<File>> files;
  files.push_back(std::make_unique<SlowToFail>());
  const ReadItem items[] = {{0, 0, 10}, {0, 1'000'000, 10}};
  ReadJob job{.files = files, .items = items};
  job.consume = [](std::size_t, std::span<const std::byte>) {};
  job.describe = [](std::size_t item) { return std::to_string(item); };
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }), "read 0: read: broken device");
}

TEST_F(Pipeline, ThrowsWhatConsumeOrProgressThrow) {
  struct Stop {};
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 100; ++i) items.push_back({0, i * 100'000, 10});
  for (int round = 0; round < 20; ++round) {
    ReadJob job{.files = files_, .items = items};
    job.budget_bytes = 30;
    job.consume = [](std::size_t item, std::span<const std::byte>) {
      if (item == 50) throw Stop();
    };
    EXPECT_THROW(run_read_job(job), Stop);
    job.consume = [](std::size_t, std::span<const std::byte>) {};
    job.progress = [] { throw Stop(); };
    EXPECT_THROW(run_read_job(job), Stop);
  }
}

TEST_F(Pipeline, OfNothingDoesNothing) {
  expect_all({}, 100);
  EXPECT_EQ(counters_[0]->reads, 0);
}

}  // namespace
}  // namespace shardwise::detail
