#include "shardwise/loader/detail/engine/run_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/loader/detail/engine/delivery_digest.h"
#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/detail/sample_numbers.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// The product, or the largest number if it overflows.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

}  // namespace

RunOrder::RunOrder(std::int64_t records, const LoaderOptions& options, std::uint64_t seed)
    : records_(records),
      batch_size_(options.batch_size),
      order_(options.order),
      last_batch_(options.last_batch),
      seed_(seed) {
  const std::int64_t full = records / batch_size_;
  batches_per_epoch_ = full;
  if (last_batch_ != LastBatch::drop && records % batch_size_ != 0) ++batches_per_epoch_;
  if (batches_per_epoch_ == 0) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("loader: a source of {} records makes no batch of {}", records, batch_size_));
  }
  samples_per_epoch_ = last_batch_ == LastBatch::drop ? full * batch_size_ : records;
  end_number_ = times(samples_per_epoch_, options.epochs);
  end_batch_ = last_batch_ == LastBatch::wrap ? (end_number_ - 1) / batch_size_ + 1
                                              : times(batches_per_epoch_, options.epochs);
  // Rows beyond this could not be numbered.
  end_batch_ = std::min(end_batch_, std::numeric_limits<std::int64_t>::max() / batch_size_);
}

std::int64_t RunOrder::first_number(std::int64_t batch) const {
  if (last_batch_ != LastBatch::pad) return std::min(batch * batch_size_, end_number_);
  return batch / batches_per_epoch_ * records_ + batch % batches_per_epoch_ * batch_size_;
}

std::int64_t RunOrder::valid_rows(std::int64_t batch) const {
  if (last_batch_ == LastBatch::pad) {
    return std::min(batch_size_, records_ - batch % batches_per_epoch_ * batch_size_);
  }
  return std::min(batch_size_, end_number_ - first_number(batch));
}

std::int64_t RunOrder::samples_before(std::int64_t number) const {
  const std::int64_t samples =
      sample_number(epoch_of(number), records_, number % samples_per_epoch_);
  return order_ == RecordOrder::shuffled ? whole_epochs(samples, records_) : samples;
}

void RunOrder::samples(std::int64_t begin, std::int64_t end, std::vector<Sample>& samples) const {
  samples.clear();
  samples.reserve(static_cast<std::size_t>(end - begin));
  for (std::int64_t number = begin; number < end;) {
    const std::int64_t epoch = epoch_of(number);
    const std::int64_t first = number - epoch * samples_per_epoch_;
    const std::int64_t last = std::min(samples_per_epoch_, first + (end - number));
    const Shuffle shuffle(records_, seed_, static_cast<std::uint64_t>(epoch));
    for (std::int64_t place = first; place < last; ++place) {
      const std::int64_t record = order_ == RecordOrder::shuffled ? shuffle.at(place) : place;
      samples.push_back({record, epoch, seed_});
    }
    number += last - first;
  }
}

std::optional<BatchRow> RunOrder::step_of(std::int64_t record, std::int64_t epoch) const {
  std::int64_t place = record;
  if (order_ == RecordOrder::shuffled) {
    place = Shuffle(records_, seed_, static_cast<std::uint64_t>(epoch)).position_of(record);
  }
  if (place >= samples_per_epoch_) return std::nullopt;
  // If epochs never end, some are beyond the last batch that can be numbered.
  const auto rows = static_cast<Wide>(
      last_batch_ == LastBatch::wrap ? samples_per_epoch_ : batches_per_epoch_ * batch_size_);
  const Wide row = static_cast<Wide>(epoch) * rows + static_cast<Wide>(place);
  const Wide batch = row / static_cast<Wide>(batch_size_);
  if (batch >= static_cast<Wide>(end_batch_)) return std::nullopt;
  return BatchRow{static_cast<std::int64_t>(batch),
                  static_cast<std::int64_t>(row % static_cast<Wide>(batch_size_))};
}

}  // namespace shardwise::detail
