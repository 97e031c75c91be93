#include <algorithm>
#include <utility>

#include "shardwise/loader/detail/common_fields.h"
#include "shardwise/loader/detail/sample_numbers.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

class ConcatSource final : public Source, public detail::Tagged {
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
  void will_read(const Sample& sample) const override {
    const auto [source, own] = find(sample);
    sources_[source]->will_read(own);
  }
  bool reads_together() const override {
    return std::ranges::any_of(sources_,
                               [](const auto& source) { return source->reads_together(); });
  }
  bool changes_with_epoch() const override {
    return std::ranges::any_of(sources_,
                               [](const auto& source) { return source->changes_with_epoch(); });
  }
  std::uint64_t tag() const override { return detail::tag_of(sources_); }
  std::uint64_t fingerprint() const override;
  std::string describe(std::int64_t samples) const override;

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

// The fingerprint of one local file with the same records. If the records have no fixed order, it
// is made of the sources' fingerprints: it must not depend on the order, since weights of mix() may
// change.
std::uint64_t ConcatSource::fingerprint() const {
  if (!changes_with_epoch()) return detail::tagged_fingerprint(Source::fingerprint(), tag());
  std::vector<std::uint64_t> facts;
  facts.reserve(sources_.size());
  for (const auto& source : sources_) facts.push_back(source->fingerprint());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(facts));
  return hash64(bytes.data(), bytes.size());
}

// Equal records may be divided into files differently, so neighbours with equal descriptions count
// once.
std::string ConcatSource::describe(std::int64_t samples) const {
  const std::int64_t epoch = size() == 0 ? 0 : samples / size();
  const std::int64_t records = size() == 0 ? 0 : samples % size();
  std::string all, last;
  bool is_one = true;
  std::int64_t begin = 0;
  for (const auto& source : sources_) {
    const std::int64_t own = std::clamp<std::int64_t>(records - begin, 0, source->size());
    const std::string part = source->describe(detail::sample_number(epoch, source->size(), own));
    begin += source->size();
    if (part == last) continue;
    is_one = all.empty();
    all += (all.empty() ? "" : ", ") + part;
    last = part;
  }
  return is_one ? all : "concat(" + all + ")";
}

}  // namespace

std::shared_ptr<const Source> concat(std::vector<std::shared_ptr<const Source>> sources) {
  if (sources.empty()) {
    throw Error(ErrorCode::invalid_argument, "concat: got no source, needed is at least one");
  }
  if (sources.size() == 1 && sources[0]) return sources[0];
  return std::make_shared<ConcatSource>(std::move(sources));
}

}  // namespace shardwise
