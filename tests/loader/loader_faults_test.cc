// Runs in which things go wrong, or stop: tests of loader/loader.cc with faulty, slow and
// blocked sources and devices that are full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "loader/pattern_source.h"
#include "shardwise/loader/loader.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kLoaderKind = static_cast<std::size_t>(MemoryKind::loader);

std::shared_ptr<const PatternSource> scalars(std::int64_t size, PatternSource::Hook hook) {
  return std::make_shared<const PatternSource>(
      size, std::vector<Field>{{"x", DType::u32, {}}, {"y", DType::u8, {2}}}, std::move(hook));
}

std::vector<FieldPlacement> both(const char* mesh) {
  return {{"x", make_sharding("data", mesh)}, {"y", make_sharding("data,-", mesh)}};
}

// Calls of the fingerprint come first, on the constructor's thread: a hook may tell them apart.
struct ConstructorsThread {
  std::thread::id id = std::this_thread::get_id();
  bool here() const { return std::this_thread::get_id() == id; }
};

TEST(LoaderFaults, ThrowsTheErrorInItsTurnAndAgain) {
  Devices devices(4, {.threads = 1});
  for (const std::int64_t bad : {0, 1, 7, 8, 23, 39}) {
    for (int threads = 1; threads <= 4; ++threads) {
      for (int prefetch = 1; prefetch <= 4; ++prefetch) {
        const ConstructorsThread constructor;
        const auto source = scalars(40, [&](std::size_t field, std::int64_t record) {
          if (!constructor.here() && record == bad && field == 1) {
            throw Error(ErrorCode::corrupt, "read: somewhere: bad byte");
          }
        });
        Loader loader(devices, source, both("data=4"),
                      {.batch_size = 4,
                       .order = RecordOrder::sequential,
                       .prefetch = prefetch,
                       .threads = threads});
        for (std::int64_t b = 0; b < bad / 4; ++b) {
          const auto batch = loader.next();
          ASSERT_TRUE(batch.has_value());
          EXPECT_EQ(batch->index, b);
          std::uint32_t first = 0;
          std::memcpy(&first, batch->fields[0].shard(0).data, 4);
          EXPECT_EQ(first, static_cast<std::uint32_t>(PatternSource::element(0, 4 * b, 0)));
        }
        for (int again = 0; again < 3; ++again) {
          EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { loader.next(); }),
                    "loader: batch " + std::to_string(bad / 4) + ", record " + std::to_string(bad) +
                        ", field \"y\": read: somewhere: bad byte");
        }
        EXPECT_EQ(loader.state().next_batch, bad / 4);
        EXPECT_EQ(loader.stats().batches, bad / 4);
      }
    }
  }
}

TEST(LoaderFaults, PassesOnWhatIsNotAnErrorOfOurs) {
  Devices devices(1, {.threads = 1});
  const ConstructorsThread constructor;
  const auto source = scalars(10, [&](std::size_t, std::int64_t record) {
    if (!constructor.here() && record == 5) throw std::out_of_range("mine");
  });
  Loader loader(devices, source, both("data=1"),
                {.batch_size = 2, .order = RecordOrder::sequential});
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_THROW(loader.next(), std::out_of_range);
  EXPECT_THROW(loader.next(), std::out_of_range);
}

// Large records, so that a batch is several tickets, which fail in any order.
TEST(LoaderFaults, NamesTheFirstBadRowOfABatchWhoeverReadsIt) {
  class LargeRecords final : public Source {
   public:
    std::int64_t size() const override { return 64; }
    std::span<const Field> fields() const override { return {&field_, 1}; }
    std::uint64_t fingerprint() const override { return 1; }
    void read(const Sample& sample, std::span<const FieldBox>) const override {
      if (sample.record >= 37) throw Error(ErrorCode::io, "bad");
    }

   private:
    Field field_{"x", DType::u8, {20000}};
  };
  Devices devices(2, {.threads = 1});
  for (int i = 0; i < 30; ++i) {
    Loader loader(
        devices, std::make_shared<const LargeRecords>(), {{"x", make_sharding("data,-", "data=2")}},
        {.batch_size = 32, .order = RecordOrder::sequential, .prefetch = 2, .threads = 4});
    EXPECT_TRUE(loader.next().has_value());
    EXPECT_EQ(message_of(ErrorCode::io, [&] { loader.next(); }),
              "loader: batch 1, record 37, field \"x\": bad");
  }
}

TEST(LoaderFaults, ARecordThatTheFingerprintCannotReadIsAnErrorOfItsStepOnly) {
  Devices devices(1, {.threads = 1});
  const auto source = scalars(10, [](std::size_t, std::int64_t record) {
    if (record == 9) throw Error(ErrorCode::io, "read: no such sector");
  });
  const LoaderOptions options{.batch_size = 5, .order = RecordOrder::sequential};
  Loader loader(devices, source, both("data=1"), options);
  EXPECT_EQ(Loader(devices, source, both("data=1"), options).state(), loader.state());
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_EQ(message_of(ErrorCode::io, [&] { loader.next(); }),
            "loader: batch 1, record 9, field \"x\": read: no such sector");
}

TEST(LoaderFaults, StopsAtAnyPointOfARun) {
  Devices devices(4, {.threads = 1});
  for (int threads = 1; threads <= 4; ++threads) {
    for (int delivered = 0; delivered <= 6; ++delivered) {
      std::optional<Batch> last;
      {
        Loader loader(devices, scalars(100, {}), both("data=4"),
                      {.batch_size = 20, .prefetch = 1 + delivered % 3, .threads = threads});
        for (int i = 0; i < delivered; ++i) last = loader.next();
      }
      // A delivered batch outlives the loader; all other memory is given back.
      const std::size_t held = last ? 5u * (4 + 2 + 1 + 4) : 0u;
      EXPECT_EQ(devices.at(2).memory().in_use_by_kind[kLoaderKind], held);
      EXPECT_EQ(last.has_value(), delivered != 0 && delivered != 6);
    }
  }
}

/// How many of all records are read by a loader that is destroyed while its readers hang in a read.
/// The source lets one read after the other through only until the loader is gone.
std::int64_t reads_of_a_loader_that_goes(int threads, std::int64_t records) {
  Devices devices(2, {.threads = 1});
  const ConstructorsThread constructor;
  std::latch entered(threads), destroying(1);
  std::atomic<std::int64_t> arrivals{0}, permits{0};
  const auto source = std::make_shared<const PatternSource>(
      records, std::vector<Field>{{"x", DType::u8, {}}}, [&](std::size_t, std::int64_t) {
        if (constructor.here()) return;
        const std::int64_t mine = arrivals++;
        if (mine < threads) entered.count_down();
        for (std::int64_t now = permits; now <= mine; now = permits) permits.wait(now);
      });
  auto loader = std::make_unique<Loader>(
      devices, source, std::vector<FieldPlacement>{{"x", make_sharding("data", "data=2")}},
      LoaderOptions{.batch_size = records, .threads = threads});
  entered.wait();
  std::atomic<bool> gone{false};
  std::jthread destroyer([&] {
    destroying.count_down();
    loader.reset();
    gone = true;
  });
  destroying.wait();
  while (!gone) {
    ++permits;
    permits.notify_all();
    std::this_thread::yield();
  }
  destroyer.join();
  return arrivals;
}

// Which are fewer than it would take to end the tickets that the readers have: unless a busy
// machine holds up the thread that destroys it while they go on.
TEST(LoaderFaults, StopsWhileReadsAreBlocked) {
  constexpr int kThreads = 3;
  constexpr std::int64_t kRecords = kThreads * 32768;  // of a byte: a ticket each
  std::int64_t reads = kRecords;
  for (int run = 0; run < 10 && reads == kRecords; ++run) {
    reads = reads_of_a_loader_that_goes(kThreads, kRecords);
  }
  EXPECT_LT(reads, kRecords);
}

TEST(LoaderFaults, StopsWhileTheConsumerHoldsUpTheRing) {
  Devices devices(2, {.threads = 1});
  const ConstructorsThread constructor;
  for (int threads = 1; threads <= 3; ++threads) {
    std::latch full(2 * 3 * 10);  // both fields of three batches
    std::atomic<int> beyond{0};
    const auto source = scalars(1000, [&](std::size_t, std::int64_t record) {
      if (constructor.here()) return;
      if (record < 30) {
        full.count_down();
      } else {
        ++beyond;
      }
    });
    {
      Loader loader(
          devices, source, both("data=2"),
          {.batch_size = 10, .order = RecordOrder::sequential, .prefetch = 3, .threads = threads});
      full.wait();
      EXPECT_EQ(devices.at(0).memory().in_use_by_kind[kLoaderKind], 3u * 5 * (4 + 2 + 1 + 4));
    }
    EXPECT_EQ(beyond, 0);
    EXPECT_EQ(devices.at(0).memory().peak_bytes, 3u * 5 * (4 + 2 + 1 + 4));
    EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
    devices.at(0).reset_peak();
  }
}

TEST(LoaderFaults, NeverHoldsMoreThanPrefetchAndOneBatches) {
  for (int threads = 1; threads <= 4; ++threads) {
    for (int prefetch = 1; prefetch <= 4; ++prefetch) {
      Devices devices(2, {.threads = 1});
      Loader loader(devices, scalars(200, {}), both("data=2"),
                    {.batch_size = 4, .prefetch = prefetch, .threads = threads});
      while (const auto batch = loader.next()) {
        for (const DeviceId device : devices.addressable()) {
          EXPECT_LE(devices.at(device).memory().in_use_by_kind[kLoaderKind],
                    static_cast<std::size_t>(prefetch + 1) * 2 * (4 + 2 + 1 + 4));
        }
      }
      EXPECT_LE(devices.at(0).memory().peak_bytes,
                static_cast<std::size_t>(prefetch + 1) * 2 * (4 + 2 + 1 + 4));
      EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
      EXPECT_EQ(loader.stats().batches, 50);
    }
  }
}

constexpr std::size_t kBatchBytes = 2 * (4 + 2 + 1 + 4);  // four rows on two devices

TEST(LoaderFaults, ThrowsAtTheBatchThatHasNoRoom) {
  Devices devices(2, {.capacity_bytes = 3 * kBatchBytes, .threads = 1});
  for (int prefetch = 1; prefetch <= 4; ++prefetch) {
    Loader loader(devices, scalars(200, {}), both("data=2"),
                  {.batch_size = 4, .prefetch = prefetch, .threads = 2});
    std::vector<Batch> held;
    for (int i = 0; i < 3; ++i) held.push_back(loader.next().value());
    const std::string message = message_of(ErrorCode::resource_exhausted, [&] { loader.next(); });
    EXPECT_THAT(message, HasSubstr("batch x"));
    held.clear();
    EXPECT_EQ(message_of(ErrorCode::resource_exhausted, [&] { loader.next(); }), message);
    EXPECT_EQ(loader.state().next_batch, 3);
  }
}

// Room for fewer batches than the ring has makes it shorter, not wrong.
TEST(LoaderFaults, RunsWithTheRoomThereIs) {
  for (std::size_t room = 1; room <= 3; ++room) {
    Devices devices(2, {.capacity_bytes = room * kBatchBytes, .threads = 1});
    Loader loader(devices, scalars(400, {}), both("data=2"),
                  {.batch_size = 4, .prefetch = 4, .threads = 3});
    std::int64_t batches = 0;
    while (const auto batch = loader.next()) EXPECT_EQ(batch->index, batches++);
    EXPECT_EQ(batches, 100);
  }
}

}  // namespace
}  // namespace shardwise
