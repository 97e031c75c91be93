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
  void expect_all(std::span<const ReadItem> items, std::size_t buffer_bytes,
                  std::int64_t width = 0) {
    std::vector<std::atomic<int>> seen(items.size());
    std::atomic<int> wrong{0};
    ReadJob job{.files = files_, .items = items};
    job.buffer_bytes = buffer_bytes;
    job.width = width;
    std::atomic<std::int64_t> at_once{0}, most{0};
    job.consume = [&](std::size_t item, std::span<const std::byte> bytes) {
      most = std::max(most.load(), ++at_once);
      ++seen[item];
      if (bytes.size() != items[item].bytes) ++wrong;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != CountingFile::value(items[item].address + i)) ++wrong;
      }
      --at_once;
    };
    run_read_job(job, executor_);
    EXPECT_EQ(wrong, 0);
    for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
    EXPECT_LE(most, width == 0 ? INT64_MAX : width);
  }

  std::vector<std::unique_ptr<File>> files_;
  std::vector<CountingFile*> counters_;
  Executor executor_{3};
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

TEST_F(Pipeline, KeepsReadsToAQuarterOfTheBuffers) {
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 64; ++i) items.push_back({0, i * 1000, 1000});
  expect_all(items, 16'000);
  EXPECT_EQ(counters_[0]->largest, 4000u);
  EXPECT_EQ(counters_[0]->reads, 16);
}

TEST_F(Pipeline, ReadsStraightToADestination) {
  std::vector<std::byte> memory(3000);
  const ReadItem items[] = {{0, 50, 1000, memory.data()},
                            {0, 1050, 1000, memory.data() + 1000},
                            {0, 2050, 500, memory.data() + 2500},
                            {0, 2600, 10}};
  expect_all(items, 1 << 20);
  EXPECT_EQ(counters_[0]->reads, 3) << "the first two lie one after the other in both";
  for (std::size_t i = 0; i < 2000; ++i) ASSERT_EQ(memory[i], CountingFile::value(50 + i));
  EXPECT_EQ(memory[2000], std::byte{0});
  EXPECT_EQ(memory[2500], CountingFile::value(2050));
}

TEST_F(Pipeline, ThrowsWhatAReadThrowsAndSaysForWhat) {
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 100; ++i) items.push_back({0, i * 100'000, 10});
  counters_[0]->fails_at = 7'000'005;
  ReadJob job{.files = files_, .items = items};
  job.consume = [](std::size_t, std::span<const std::byte>) {};
  job.describe = [](std::size_t item) { return "item " + std::to_string(item); };
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job, executor_); }),
              "read item 70: read: broken device");
  }
  counters_[0]->fails_at = 5;
  job.items = std::span<const ReadItem>(items).first(1);
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job, executor_); }),
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
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job, executor_); }),
            "read 0: read: broken device");
}

TEST_F(Pipeline, ThrowsWhatConsumeOrProgressThrow) {
  struct Stop {};
  std::vector<ReadItem> items;
  for (std::uint64_t i = 0; i < 100; ++i) items.push_back({0, i * 100'000, 10});
  for (int round = 0; round < 20; ++round) {
    ReadJob job{.files = files_, .items = items};
    job.buffer_bytes = 30;
    job.consume = [](std::size_t item, std::span<const std::byte>) {
      if (item == 50) throw Stop();
    };
    EXPECT_THROW(run_read_job(job, executor_), Stop);
    job.consume = [](std::size_t, std::span<const std::byte>) {};
    job.progress = [] { throw Stop(); };
    EXPECT_THROW(run_read_job(job, executor_), Stop);
  }
}

TEST_F(Pipeline, OfNothingDoesNothing) {
  expect_all({}, 100);
  EXPECT_EQ(counters_[0]->reads, 0);
}

TEST_F(Pipeline, DividesABudgetBetweenCallsAndBuffers) {
  ReadJob job;
  divide_budget(job, 1000, 0, executor_);
  EXPECT_EQ(job.buffer_bytes, 1000u);
  EXPECT_EQ(job.width, 0);
  divide_budget(job, 1000, 100, executor_);  // three workers take 300
  EXPECT_EQ(job.buffer_bytes, 700u);
  EXPECT_EQ(job.width, 0);
  divide_budget(job, 1000, 200, executor_);  // half pays for two
  EXPECT_EQ(job.buffer_bytes, 600u);
  EXPECT_EQ(job.width, 2);
  divide_budget(job, 1000, 5000, executor_);  // at least one
  EXPECT_EQ(job.buffer_bytes, 0u);
  EXPECT_EQ(job.width, 1);
}

}  // namespace
}  // namespace shardwise::detail
