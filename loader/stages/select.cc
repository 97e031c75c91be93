#include "shardwise/loader/stages/select.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/detail/sample_numbers.h"
#include "shardwise/loader/stages/detail/stage.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

class ShuffleStage final : public detail::SelectStage {
 public:
  ShuffleStage(std::shared_ptr<const Source> source, std::uint64_t salt)
      : SelectStage(std::move(source), "shuffle"), salt_(salt) {}

  std::uint64_t fingerprint() const override {
    return detail::Facts("shuffle").add(inner().fingerprint()).add(salt_).hash();
  }
  bool changes_with_epoch() const override { return true; }
  std::string describe(std::int64_t samples) const override {
    return fmt::format("shuffle({}{})", salt_ == 0 ? "" : fmt::format("salt {}, ", salt_),
                       inner().describe(detail::whole_epochs(samples, size())));
  }

 private:
  // Making the cipher's keys takes some nanoseconds, less than sharing them between threads.
  Sample inner_sample(const Sample& sample) const override {
    const Shuffle order(size(), sample.seed ^ salt_, static_cast<std::uint64_t>(sample.epoch));
    return {order.at(sample.record), sample.epoch, sample.seed};
  }

  std::uint64_t salt_;
};

class TakeStage final : public detail::SelectStage {
 public:
  TakeStage(std::shared_ptr<const Source> source, std::int64_t begin, std::int64_t end)
      : SelectStage(std::move(source), "take"), begin_(begin), end_(end) {
    if (begin < 0 || begin > end || end > inner().size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("take: records {} to {} of {}, needed is 0 <= begin <= end <= {}",
                              begin, end, inner().size(), inner().size()));
    }
  }

  std::int64_t size() const override { return end_ - begin_; }
  std::uint64_t fingerprint() const override {
    return detail::Facts("take").add(inner().fingerprint()).add(begin_).add(end_).hash();
  }
  std::string describe(std::int64_t samples) const override {
    const std::int64_t epoch = size() == 0 ? 0 : samples / size();
    const std::int64_t records = size() == 0 ? 0 : samples % size();
    const std::int64_t before =
        detail::sample_number(epoch, inner().size(), records == 0 ? 0 : begin_ + records);
    return fmt::format("take({} to {}, {})", begin_, end_, inner().describe(before));
  }

 private:
  Sample inner_sample(const Sample& sample) const override {
    return {begin_ + sample.record, sample.epoch, sample.seed};
  }

  std::int64_t begin_, end_;
};

class RepeatStage final : public detail::SelectStage {
 public:
  RepeatStage(std::shared_ptr<const Source> source, std::int64_t times)
      : SelectStage(std::move(source), "repeat"), times_(times), records_(inner().size()) {
    if (times < 1) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("repeat: times is {}, needed is 1 or more", times));
    }
    size_ = detail::multiply_add(records_, times, 0, "repeat: the size");
  }

  std::int64_t size() const override { return size_; }
  std::uint64_t fingerprint() const override {
    return detail::Facts("repeat").add(inner().fingerprint()).add(times_).hash();
  }
  std::string describe(std::int64_t samples) const override {
    return fmt::format("repeat({} times, {})", times_, inner().describe(samples));
  }

 private:
  Sample inner_sample(const Sample& sample) const override {
    return {
        sample.record % records_,
        detail::multiply_add(sample.epoch, times_, sample.record / records_, "repeat: the epoch"),
        sample.seed};
  }

  std::int64_t times_, records_, size_;
};

}  // namespace

std::shared_ptr<const Source> shuffle(std::shared_ptr<const Source> source, std::uint64_t salt) {
  return std::make_shared<ShuffleStage>(std::move(source), salt);
}

std::shared_ptr<const Source> take(std::shared_ptr<const Source> source, std::int64_t begin,
                                   std::int64_t end) {
  return std::make_shared<TakeStage>(std::move(source), begin, end);
}

std::shared_ptr<const Source> repeat(std::shared_ptr<const Source> source, std::int64_t times) {
  return std::make_shared<RepeatStage>(std::move(source), times);
}

}  // namespace shardwise
