#include "shardwise/loader/sources/concat.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/loader/detail/read_frame.h"
#include "shardwise/loader/detail/sample_numbers.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

std::string shown_fields(std::span<const Field> fields) {
  std::string all;
  for (const Field& field : fields) {
    all += fmt::format("{}\"{}\" {} {}{}", all.empty() ? "" : ", ", field.name, name(field.dtype),
                       to_string(field.shape), field.ragged ? " ragged" : "");
  }
  return all;
}

class ConcatSource final : public Source {
 public:
  /// Requires at least one source, all with fields that go together.
  explicit ConcatSource(std::vector<std::shared_ptr<const Source>> sources);

  std::int64_t size() const override { return ends_.back(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    const auto [source, own] = find(sample);
    return sources_[source]->length(own, field);
  }
  void will_read(const Sample& sample) const override {
    const auto [source, own] = find(sample);
    sources_[source]->will_read(own);
  }
  bool changes_with_epoch() const override {
    return std::ranges::any_of(sources_,
                               [](const auto& source) { return source->changes_with_epoch(); });
  }
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
  std::vector<bool> is_shorter_;    // per source: a ragged field has less than the most
};

ConcatSource::ConcatSource(std::vector<std::shared_ptr<const Source>> sources)
    : sources_(std::move(sources)),
      fields_(sources_[0]->fields().begin(), sources_[0]->fields().end()) {
  std::int64_t end = 0;
  for (const auto& source : sources_) {
    if (__builtin_add_overflow(end, source->size(), &end)) {
      throw Error(ErrorCode::invalid_argument, "concat: the sources have over 2^63 records");
    }
    ends_.push_back(end);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (!fields_[i].ragged) continue;
      fields_[i].shape[0] = std::max(fields_[i].shape[0], source->fields()[i].shape[0]);
    }
  }
  is_shorter_.reserve(sources_.size());
  for (const auto& source : sources_) {
    is_shorter_.push_back(!std::equal(fields_.begin(), fields_.end(), source->fields().begin()));
  }
}

void ConcatSource::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  const auto [source, own] = find(sample);
  if (!is_shorter_[source]) {
    sources_[source]->read(own, boxes);
    return;
  }
  detail::ReadFrame frame;
  std::vector<FieldBox>& parts = frame.lists().boxes;
  parts.assign(boxes.begin(), boxes.end());
  for (FieldBox& part : parts) {
    if (!fields_[part.field].ragged) continue;
    const std::int64_t most = sources_[source]->fields()[part.field].shape[0];
    Box& box = part.to.box;
    const std::int64_t begin = std::min(box.begin(0), most), end = std::min(box.end(0), most);
    if (end == box.end(0)) continue;
    // Rows of dim 0 come one after the other: those that the source has, then zeros.
    const std::size_t element_bytes = size_bytes(fields_[part.field].dtype);
    const std::size_t bytes = num_bytes(box.shape(), element_bytes);
    box.set(0, begin, end);
    const std::size_t there = num_bytes(box.shape(), element_bytes);
    if (bytes > there) std::memset(part.to.data + there, 0, bytes - there);
  }
  sources_[source]->read(own, parts);
}

// As of one file with the same records; where they have no fixed order, which must not be asked
// for (weights of mix() may change), of the sources.
std::uint64_t ConcatSource::fingerprint() const {
  if (!changes_with_epoch()) return Source::fingerprint();
  std::vector<std::uint64_t> facts;
  facts.reserve(sources_.size());
  for (const auto& source : sources_) facts.push_back(source->fingerprint());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(facts));
  return hash64(bytes.data(), bytes.size());
}

// Files of equal records may be cut otherwise: neighbours that are alike count once.
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

void check_together(std::span<const Field> first, std::span<const Field> fields, std::size_t i) {
  const auto same = [](Field a, Field b) {
    if (a.ragged && b.ragged && !a.shape.empty() && !b.shape.empty()) a.shape[0] = b.shape[0];
    return a == b;
  };
  if (std::equal(first.begin(), first.end(), fields.begin(), fields.end(), same)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("concat: source {} has {}, needs {} as source 0 has", i,
                          shown_fields(fields), shown_fields(first)));
}

}  // namespace

std::shared_ptr<const Source> concat(std::vector<std::shared_ptr<const Source>> sources) {
  if (sources.empty()) {
    throw Error(ErrorCode::invalid_argument, "concat: got no source, needs at least one");
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i]) {
      throw Error(ErrorCode::invalid_argument, fmt::format("concat: source {} is null", i));
    }
    check_together(sources[0]->fields(), sources[i]->fields(), i);
  }
  if (sources.size() == 1) return sources[0];
  return std::make_shared<ConcatSource>(std::move(sources));
}

}  // namespace shardwise
