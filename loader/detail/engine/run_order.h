#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// Maps each row of each batch to a sample. Samples are numbered in the order of delivery, over the
/// whole run, so a batch has consecutive numbers, and the samples before it are a prefix.
///
/// Immutable, thread-safe; every answer takes O(1).
class RunOrder {
 public:
  /// Throws invalid_argument if `records` do not fill a batch.
  RunOrder(std::int64_t records, const LoaderOptions& options, std::uint64_t seed);

  /// Rounded up for LastBatch::wrap, whose batches run over the end of epochs.
  std::int64_t batches_per_epoch() const { return batches_per_epoch_; }

  /// One after the last batch; a number too large to be reached if epochs never end.
  std::int64_t end_batch() const { return end_batch_; }

  /// The number of a batch's first row, which is the number of samples before it. Requires 0 <=
  /// batch <= end_batch().
  std::int64_t first_number(std::int64_t batch) const;

  /// How many rows of a batch are samples; the others are padding.
  std::int64_t valid_rows(std::int64_t batch) const;

  /// The least number of source samples that includes all those before `number`, counted as
  /// Source::describe does: records that an epoch drops count, and in a random order all records of
  /// an epoch that has begun.
  std::int64_t samples_before(std::int64_t number) const;

  std::int64_t epoch_of(std::int64_t number) const { return number / samples_per_epoch_; }

  /// Replaces `samples` by those of the numbers [begin, end).
  void samples(std::int64_t begin, std::int64_t end, std::vector<Sample>& samples) const;

  /// The place of a record in an epoch; absent if that epoch drops it, or is too late for its
  /// batches to have numbers. Requires 0 <= record < records, and 0 <= epoch < epochs.
  std::optional<BatchRow> step_of(std::int64_t record, std::int64_t epoch) const;

 private:
  std::int64_t records_, batch_size_;
  RecordOrder order_;
  LastBatch last_batch_;
  std::uint64_t seed_;
  std::int64_t batches_per_epoch_ = 0, samples_per_epoch_ = 0, end_batch_ = 0;
  std::int64_t end_number_ = 0;
};

}  // namespace shardwise::detail
