#include "shardwise/loader/detail/engine/run_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/engine/delivery_digest.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using ::testing::HasSubstr;

TEST(RunOrder, NumbersEverySampleOnceInOrder) {
  for (std::int64_t records = 1; records <= 12; ++records) {
    for (std::int64_t batch_size = 1; batch_size <= 14; ++batch_size) {
      for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
        if (last == LastBatch::drop && batch_size > records) continue;
        const LoaderOptions options{.batch_size = batch_size, .epochs = 4, .last_batch = last};
        SCOPED_TRACE(std::to_string(records) + " in batches of " + std::to_string(batch_size) +
                     ", " + std::string(name(last)));
        const RunOrder order(records, options, 3);
        std::map<std::pair<std::int64_t, std::int64_t>, BatchRow> steps;  // of epoch and record
        std::int64_t number = 0;
        std::vector<Sample> samples;
        for (std::int64_t batch = 0; batch < order.end_batch(); ++batch) {
          EXPECT_EQ(order.first_number(batch), number);
          const std::int64_t valid = order.valid_rows(batch);
          EXPECT_TRUE(1 <= valid && valid <= batch_size);
          const bool is_last = batch + 1 == order.end_batch();
          if (last == LastBatch::drop || (last == LastBatch::wrap && !is_last)) {
            EXPECT_EQ(valid, batch_size);
          }
          order.samples(number, number + valid, samples);
          EXPECT_EQ(samples[0].epoch, order.epoch_of(number));
          for (std::int64_t row = 0; row < valid; ++row) {
            const Sample& sample = samples[static_cast<std::size_t>(row)];
            EXPECT_EQ(sample.seed, 3u);
            EXPECT_TRUE(steps.insert({{sample.epoch, sample.record}, {batch, row}}).second);
          }
          number += valid;
        }
        EXPECT_EQ(order.first_number(order.end_batch()), number);
        const std::int64_t dropped = last == LastBatch::drop ? records % batch_size : 0;
        EXPECT_EQ(number, 4 * (records - dropped));
        for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
          std::int64_t missing = 0;
          for (std::int64_t record = 0; record < records; ++record) {
            const auto step = order.step_of(record, epoch);
            const auto found = steps.find({epoch, record});
            EXPECT_EQ(step.has_value(), found != steps.end());
            EXPECT_TRUE(!step || found == steps.end() || *step == found->second);
            missing += step ? 0 : 1;
          }
          EXPECT_EQ(missing, dropped);
        }
      }
    }
  }
}

TEST(RunOrder, GoesOnWithoutEnd) {
  for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
    const RunOrder order(1'000'000'007,
                         {.batch_size = 4096, .epochs = INT64_MAX, .last_batch = last}, 1);
    EXPECT_EQ(order.end_batch(), INT64_MAX / 4096);
    const std::int64_t batch = order.end_batch() - 1;
    EXPECT_GT(order.first_number(batch), 0);
    EXPECT_TRUE(1 <= order.valid_rows(batch) && order.valid_rows(batch) <= 4096);
    std::vector<Sample> samples;
    order.samples(order.first_number(batch), order.first_number(batch) + 1, samples);
    EXPECT_TRUE(0 <= samples[0].record && samples[0].record < 1'000'000'007);
    EXPECT_EQ(order.step_of(samples[0].record, samples[0].epoch), (BatchRow{batch, 0}));
    EXPECT_EQ(order.step_of(5, INT64_MAX - 1), std::nullopt);
  }
}

TEST(RunOrder, RejectsASourceWithoutABatch) {
  for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { RunOrder(0, {.batch_size = 2, .last_batch = last}, 1); }),
                HasSubstr("a source of 0 records makes no batch of 2"));
  }
}

TEST(DeliveryDigest, OfAPrefixIsTheSumOfItsSamples) {
  Wide sum = 0;
  for (std::int64_t end = 0; end <= 2000; ++end) {
    EXPECT_EQ(to_digest(digest_of_prefix(end)), to_digest(sum)) << end;
    sum += digest_of_sample(end);
  }
  for (const std::int64_t end : {std::int64_t{1} << 32, std::int64_t{999'999'999'999},
                                 (std::int64_t{1} << 62) + 1, INT64_MAX - 3}) {
    for (std::int64_t n = end; n < end + 3; ++n) {
      EXPECT_EQ(to_digest(digest_of_prefix(n) + digest_of_sample(n)),
                to_digest(digest_of_prefix(n + 1)));
    }
  }
  EXPECT_EQ(to_wide(to_digest(sum)), sum);
}

// Any one sample lost, repeated or taken for another is seen, and so are two that change places
// with others.
TEST(DeliveryDigest, ChangesWithTheSamples) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> seen;
  for (std::int64_t a = 0; a < 300; ++a) {
    for (std::int64_t b = a; b < 300; ++b) {
      const DeliveryDigest digest = to_digest(digest_of_sample(a) + digest_of_sample(b));
      EXPECT_TRUE(seen.insert({{digest.high, digest.low}, a * 300 + b}).second);
    }
  }
}

// Finds the last of the source's samples before each number by looking at each.
TEST(RunOrder, KnowsWhichOfTheSourcesSamplesComeBefore) {
  for (const std::int64_t records : {4, 7, 12}) {
    for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
      for (const RecordOrder kind : {RecordOrder::sequential, RecordOrder::shuffled}) {
        const RunOrder order(records,
                             {.batch_size = 4, .epochs = 3, .order = kind, .last_batch = last}, 5);
        std::vector<Sample> samples;
        order.samples(0, order.first_number(order.end_batch()), samples);
        std::int64_t furthest = 0;
        for (std::size_t number = 0; number < samples.size(); ++number) {
          const auto before = order.samples_before(static_cast<std::int64_t>(number));
          EXPECT_GE(before, furthest);
          const auto [record, epoch, seed] = samples[number];
          if (kind == RecordOrder::sequential) {
            EXPECT_EQ(before, epoch * records + record) << "it is the next itself";
          } else {
            EXPECT_LE(before, furthest == 0 ? 0 : (furthest - 1) / records * records + records);
          }
          furthest = std::max(furthest, epoch * records + record + 1);
        }
      }
    }
  }
  const RunOrder endless(7, {.batch_size = 4, .epochs = std::numeric_limits<std::int64_t>::max()},
                         5);
  EXPECT_EQ(endless.samples_before(endless.first_number(endless.end_batch())),
            std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace shardwise::detail
