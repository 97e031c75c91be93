#include "shardwise/loader/sources/concat.h"

#include <algorithm>
#include <utility>

#include "shardwise/loader/detail/common_fields.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

class ConcatSource final : public Source {
 public:
  /// Requires at least one source.
  explicit ConcatSource(std::vector<std::shared_ptr<const Source>> sources);

  std::int64_t size() const override { return ends_.back(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    const auto [source, own] = find(sample);
    detail::read_common(*sources_[source], own, boxes);
  }
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    const auto [source, own] = find(sample);
    return sources_[source]->length(own, field);
  }

 private:
  std::pair<std::size_t, Sample> find(const Sample& sample) const {
    const auto found = std::upper_bound(ends_.begin(), ends_.end(), sample.record);
    const auto source = static_cast<std::size_t>(found - ends_.begin());
    Sample own = sample;
    if (source > 0) own.record -= ends_[source - 1];
    return {source, own};
  }

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Field> fields_;
  std::vector<std::int64_t> ends_;  // per source
};

ConcatSource::ConcatSource(std::vector<std::shared_ptr<const Source>> sources)
    : sources_(std::move(sources)), fields_(detail::common_fields(sources_, "concat")) {
  std::int64_t end = 0;
  for (const auto& source : sources_) {
    if (__builtin_add_overflow(end, source->size(), &end)) {
      throw Error(ErrorCode::invalid_argument, "concat: the sources have over 2^63 records");
    }
    ends_.push_back(end);
  }
}

}  // namespace

std::shared_ptr<const Source> concat(std::vector<std::shared_ptr<const Source>> sources) {
  if (sources.empty()) {
    throw Error(ErrorCode::invalid_argument, "concat: got no source, needs at least one");
  }
  if (sources.size() == 1 && sources[0]) return sources[0];
  return std::make_shared<ConcatSource>(std::move(sources));
}

}  // namespace shardwise
