#include "shardwise/checkpoint/detail/read/read_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

/// Counts the reads of a file, however often it was opened, and says how it is to answer.
struct Disk {
  std::atomic<int> reads{0};
  Mutex mutex;
  std::size_t largest SHARDWISE_GUARDED_BY(mutex) = 0;
  std::uint64_t fails_at = UINT64_MAX;
  bool is_in_memory = false;

  std::size_t take_largest() {
    const MutexLock lock(mutex);
    return std::exchange(largest, 0);
  }
};

/// Byte i of a file is i * 7; counts reads, and fails where it is told to.
class CountingFile : public File {
 public:
  explicit CountingFile(Disk& disk) : disk_(disk) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (offset <= disk_.fails_at && disk_.fails_at < offset + size) {
      throw Error(ErrorCode::io, "read: broken device");
    }
    for (std::size_t i = 0; i < size; ++i) data[i] = value(offset + i);
    ++disk_.reads;
    const MutexLock lock(disk_.mutex);
    disk_.largest = std::max(disk_.largest, size);
  }
  bool in_memory(std::uint64_t) override { return disk_.is_in_memory; }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { std::abort(); }
  std::uint64_t size() override { return UINT64_MAX; }
  void resize(std::uint64_t) override { std::abort(); }
  void sync() override { std::abort(); }
  void close() override {}

  static std::byte value(std::uint64_t place) {
    return static_cast<std::byte>(place * 7 + place / 251);
  }

 private:
  Disk& disk_;
};

class Pipeline : public testing::Test {
 protected:
  /// Consumes nothing yet.
  ReadJob job_for(std::span<const FileRange> items) {
    return {.files = files_,
            .buffers = buffers_,
            .ranges = items,
            .consume = [](std::size_t, RangeBytes&) {},
            .describe = [](std::size_t item) { return "item " + std::to_string(item); }};
  }

  /// Runs the job and checks that each item came once, with its bytes.
  void expect_all(std::span<const FileRange> items, std::size_t budget_bytes, int threads = 3) {
    std::vector<std::atomic<int>> seen(items.size());
    std::atomic<int> wrong{0};
    ReadJob job = job_for(items);
    job.budget_bytes = budget_bytes;
    job.threads = threads;
    std::atomic<int> at_once{0}, most{0};
    job.consume = [&](std::size_t item, RangeBytes& range) {
      most = std::max(most.load(), ++at_once);
      ++seen[item];
      const std::span<const std::byte> bytes = range.next();
      if (bytes.size() != items[item].bytes) ++wrong;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != CountingFile::value(items[item].address + i)) ++wrong;
      }
      if (!range.next().empty()) ++wrong;
      --at_once;
    };
    run_read_job(job);
    EXPECT_EQ(wrong, 0);
    for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
    EXPECT_LE(most, threads);
  }

  ReadBuffers buffers_;
  std::array<Disk, 2> disks_;
  // Lanes that need a file at once may each open it.
  OpenFiles files_{
      2, [this](std::size_t number) { return std::make_unique<CountingFile>(disks_[number]); }};
};

TEST_F(Pipeline, GivesEachItemItsBytesWhateverTheBuffers) {
  std::vector<FileRange> items;
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
  const FileRange items[] = {{0, 0, 100},       {0, 104, 100},     {0, 60'000, 100},
                             {0, 200'000, 100}, {1, 200'100, 100}, {1, 200'200, 50}};
  expect_all(items, std::size_t{1} << 20);
  EXPECT_EQ(disks_[0].reads, 2);
  EXPECT_EQ(disks_[0].take_largest(), 60'100u);
  EXPECT_EQ(disks_[1].reads, 1);
  EXPECT_EQ(disks_[1].take_largest(), 150u);
}

// Three threads compute, so six read: a sixth of the budget each, less a call's own memory.
TEST_F(Pipeline, KeepsToItsBudget) {
  std::vector<FileRange> items;
  for (std::uint64_t i = 0; i < 64; ++i) items.push_back({0, i * 1000, 1000});
  expect_all(items, 24'000);
  EXPECT_EQ(disks_[0].take_largest(), 4000u);
  EXPECT_EQ(disks_[0].reads, 16);

  ReadJob job = job_for(items);
  job.threads = 3;
  job.budget_bytes = 24'000;
  job.call_bytes = 2000;
  disks_[0].take_largest();
  run_read_job(job);
  EXPECT_EQ(disks_[0].take_largest(), 2000u);

  job.call_bytes = 11'000;  // two lanes of a read and a call each
  std::atomic<int> at_once{0}, most{0};
  job.consume = [&](std::size_t, RangeBytes&) {
    most = std::max(most.load(), ++at_once);
    --at_once;
  };
  run_read_job(job);
  EXPECT_LE(most, 2);
}

// A part is 1 MiB, or 256 KiB where memory holds the file's bytes.
TEST_F(Pipeline, BringsARangeInPartsInItsOrder) {
  std::vector<FileRange> items;
  for (std::uint64_t i = 0; i < 5; ++i) {
    items.push_back({i / 4, i % 4 * 4'000'000, std::size_t{3'000'000 + i}, true});
  }
  for (const bool in_memory : {false, true}) {
    for (Disk& disk : disks_) disk.is_in_memory = in_memory;
    ReadJob job = job_for(items);
    job.threads = 2;
    job.budget_bytes = 1;
    std::atomic<int> wrong{0}, consumed{0};
    job.consume = [&](std::size_t item, RangeBytes& range) {
      std::uint64_t at = items[item].address;
      for (auto part = range.next(); !part.empty(); part = range.next()) {
        for (const std::byte byte : part) {
          if (byte != CountingFile::value(at++)) ++wrong;
        }
      }
      if (at != items[item].address + items[item].bytes) ++wrong;
      ++consumed;
    };
    run_read_job(job);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(consumed, 5);
    for (Disk& disk : disks_) {
      EXPECT_EQ(disk.take_largest(), in_memory ? std::size_t{256} << 10 : std::size_t{1} << 20);
    }
  }
}

TEST_F(Pipeline, ReadsARangeInPartsByItselfAndOnlyWhatIsAskedFor) {
  std::vector<FileRange> items;
  for (std::uint64_t i = 0; i < 50; ++i) items.push_back({0, i * 1000, 1000, i % 3 == 1});
  ReadJob job = job_for(items);
  job.threads = 2;
  std::vector<std::atomic<int>> consumed(items.size());
  job.consume = [&](std::size_t item, RangeBytes&) { ++consumed[item]; };
  run_read_job(job);
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(consumed[i], 1) << i;
  EXPECT_EQ(disks_[0].reads, 17) << "neighbours are read together where neither is in parts";
  EXPECT_EQ(disks_[0].take_largest(), 2000u);

  disks_[0].fails_at = 4500;
  job.consume = [](std::size_t, RangeBytes& bytes) { bytes.next(); };
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }),
            "read item 4: read: broken device");
}

TEST_F(Pipeline, ThrowsWhatAReadThrowsAndSaysForWhat) {
  std::vector<FileRange> items;
  for (std::uint64_t i = 0; i < 100; ++i) items.push_back({0, i * 100'000, 10});
  disks_[0].fails_at = 7'000'005;
  ReadJob job = job_for(items);
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }),
              "read item 70: read: broken device");
  }
  disks_[0].fails_at = 5;
  job.ranges = std::span<const FileRange>(items).first(1);
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }),
            "read item 0: read: broken device");
}

TEST_F(Pipeline, OfTwoReadsThatFailTheFirstIsReportedWhicheverWasFaster) {
  /// Its first byte cannot be read, but that is found out only after another read has failed.
  class SlowToFail : public CountingFile {
   public:
    using CountingFile::CountingFile;

    void read_at(std::uint64_t offset, std::byte*, std::size_t) override {
      if (offset == 0) another_failed_.wait();
      if (offset != 0) another_failed_.count_down();
      throw Error(ErrorCode::io, "read: broken device");
    }

   private:
    std::latch another_failed_{1};
  };
  OpenFiles files(1, [this](std::size_t) { return std::make_unique<SlowToFail>(disks_[0]); });
  const FileRange items[] = {{0, 0, 10}, {0, 1'000'000, 10}};
  const ReadJob job{.files = files,
                    .buffers = buffers_,
                    .ranges = items,
                    .consume = [](std::size_t, RangeBytes&) {},
                    .describe = [](std::size_t item) { return "item " + std::to_string(item); }};
  EXPECT_EQ(message_of(ErrorCode::io, [&] { run_read_job(job); }),
            "read item 0: read: broken device");
}

TEST_F(Pipeline, ThrowsWhatConsumeOrProgressThrow) {
  struct Stop {};
  std::vector<FileRange> items;
  for (std::uint64_t i = 0; i < 100; ++i) items.push_back({0, i * 100'000, 10});
  for (int round = 0; round < 20; ++round) {
    ReadJob job = job_for(items);
    const auto consume_all = job.consume;
    job.budget_bytes = 30;
    job.consume = [](std::size_t item, RangeBytes&) {
      if (item == 50) throw Stop();
    };
    EXPECT_THROW(run_read_job(job), Stop);
    job.consume = consume_all;
    job.progress = [] { throw Stop(); };
    EXPECT_THROW(run_read_job(job), Stop);
  }
}

TEST_F(Pipeline, OfNothingDoesNothing) {
  expect_all({}, 100);
  EXPECT_EQ(disks_[0].reads, 0);
}

}  // namespace
}  // namespace shardwise::detail
