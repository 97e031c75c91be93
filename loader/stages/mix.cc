#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "shardwise/loader/detail/common_fields.h"
#include "shardwise/loader/stages/detail/stage.h"
#include "shardwise/loader/stages/select.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

[[noreturn]] void refuse_sources(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "mix: " + found);
}

class MixStage final : public Source {
 public:
  MixStage(std::vector<std::shared_ptr<const Source>> sources, std::vector<Field> fields,
           std::vector<std::int64_t> weights, std::vector<MixChange> changes)
      : sources_(std::move(sources)),
        fields_(std::move(fields)),
        weights_(std::move(weights)),
        changes_(std::move(changes)),
        order_(weights_, changes_) {
    std::int64_t periods = 0, sum = 0;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      sum += weights_[i];
      if (weights_[i] == 0) continue;
      const std::int64_t records = sources_[i]->size();
      periods = std::max(periods, records / weights_[i] + (records % weights_[i] != 0 ? 1 : 0));
    }
    size_ = detail::multiply_add(periods, sum, 0, "mix: the size");
  }

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    const Drawn drawn = draw(sample);
    detail::read_common(drawn.source, drawn.sample, boxes);
  }
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    const Drawn drawn = draw(sample);
    return drawn.source.length(drawn.sample, field);
  }

  void will_read(const Sample& sample) const override {
    const Drawn drawn = draw(sample);
    drawn.source.will_read(drawn.sample);
  }
  bool reads_together() const override {
    return std::ranges::any_of(sources_,
                               [](const auto& source) { return source->reads_together(); });
  }

  // Without weights, since changes may be added during a run.
  std::uint64_t fingerprint() const override {
    detail::Facts facts("mix");
    for (const auto& source : sources_) facts.add(source->fingerprint());
    return facts.hash();
  }
  bool changes_with_epoch() const override { return true; }
  std::string describe(std::int64_t samples) const override;

 private:
  struct Drawn {
    const Source& source;
    Sample sample;
  };
  Drawn draw(const Sample& sample) const {
    const MixOrder::Draw draw =
        order_.at(detail::multiply_add(sample.epoch, size_, sample.record, "mix: the sample"));
    const Source& source = *sources_[static_cast<std::size_t>(draw.source)];
    const std::int64_t records = source.size();
    return {source, {draw.count % records, draw.count / records, sample.seed}};
  }

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Field> fields_;
  std::vector<std::int64_t> weights_;
  std::vector<MixChange> changes_;
  MixOrder order_;
  std::int64_t size_ = 0;
};

std::string MixStage::describe(std::int64_t samples) const {
  std::string text = fmt::format("mix(weights {}", fmt::join(weights_, " "));
  for (const MixChange& change : changes_) {
    if (change.first_sample >= samples) break;
    text += fmt::format(", from sample {} {}", change.first_sample, fmt::join(change.weights, " "));
  }
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    text +=
        ", " + sources_[i]->describe(order_.drawn_before(samples, static_cast<std::int64_t>(i)));
  }
  return text + ")";
}

std::vector<Field> checked_fields(std::span<const std::shared_ptr<const Source>> sources) {
  std::vector<Field> fields = detail::common_fields(sources, "mix");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i]->size() == 0) {
      refuse_sources(fmt::format("source {} has no records, needed is one or more", i));
    }
  }
  return fields;
}

}  // namespace

std::shared_ptr<const Source> mix(std::vector<std::shared_ptr<const Source>> sources,
                                  std::vector<std::int64_t> weights,
                                  std::vector<MixChange> changes) {
  if (sources.empty() || weights.size() != sources.size()) {
    refuse_sources(
        fmt::format("got {} weights for {} sources, needed is one for each of one or more",
                    weights.size(), sources.size()));
  }
  std::vector<Field> fields = checked_fields(sources);
  return std::make_shared<MixStage>(std::move(sources), std::move(fields), std::move(weights),
                                    std::move(changes));
}

}  // namespace shardwise
