#include "shardwise/loader/stages/filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "shardwise/loader/detail/order/bitmap.h"
#include "shardwise/loader/stages/detail/filter_cache.h"
#include "shardwise/loader/stages/detail/parallel_chunks.h"
#include "shardwise/loader/stages/detail/stage.h"
#include "shardwise/loader/stages/detail/whole_fields.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

constexpr std::int64_t kWordRecords = 64;
constexpr std::int64_t kFilterChunkRecords = 16 * kWordRecords;  // threads write different words

[[noreturn]] void refuse_filter(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "filter: " + found);
}

class FilterStage final : public detail::SelectStage {
 public:
  FilterStage(std::shared_ptr<const Source> source, const RecordPredicate& predicate,
              const FilterOptions& options)
      : SelectStage(std::move(source), "filter"), name_(predicate.name) {
    check(predicate);
    kept_ = RankedBits(inner().size(), evaluated(predicate, options));
    if (kept_.count() == 0) {
      refuse_filter(fmt::format("\"{}\" keeps none of {} records, needed is one or more", name_,
                                inner().size()));
    }
  }

  std::int64_t size() const override { return kept_.count(); }
  std::uint64_t fingerprint() const override {
    const std::span<const std::byte> bits = std::as_bytes(kept_.words());
    return detail::Facts("filter")
        .add(inner().fingerprint())
        .add(name_)
        .add(std::string_view(reinterpret_cast<const char*>(bits.data()), bits.size()))
        .hash();
  }
  std::string describe(std::int64_t) const override {
    return fmt::format("filter({:?}, {})", name_, inner().describe(inner().size()));
  }

 private:
  Sample inner_sample(const Sample& sample) const override {
    return {kept_.select(sample.record), sample.epoch, sample.seed};
  }

  void check(const RecordPredicate& predicate) const {
    if (name_.empty())
      refuse_filter("the predicate's name is empty, needed is one for fingerprints");
    if (!predicate.keep) refuse_filter(fmt::format("the function of \"{}\" is null", name_));
    if (changes_with_epoch()) {
      refuse_filter(fmt::format(
          "the order of the source of \"{}\" changes with the epoch, needed is one that "
          "is filtered before it is shuffled or mixed",
          name_));
    }
  }
  std::vector<std::uint64_t> evaluated(const RecordPredicate& predicate,
                                       const FilterOptions& options) const;
  std::vector<std::uint64_t> evaluate(const RecordPredicate& predicate,
                                      const FilterOptions& options) const;

  std::string name_;
  RankedBits kept_;
};

// Takes the result from the cache if it has one that fits.
std::vector<std::uint64_t> FilterStage::evaluated(const RecordPredicate& predicate,
                                                  const FilterOptions& options) const {
  if (options.cache.empty()) return evaluate(predicate, options);
  const detail::FilterKey key{inner().fingerprint(), detail::Facts(name_).hash(), inner().size()};
  if (auto words = detail::read_filter_cache(options.cache, key)) return *std::move(words);
  detail::FilterCacheWriter writer(options.cache);
  std::vector<std::uint64_t> words = evaluate(predicate, options);
  writer.write(key, words);
  return words;
}

std::vector<std::uint64_t> FilterStage::evaluate(const RecordPredicate& predicate,
                                                 const FilterOptions& options) const {
  std::vector<std::size_t> fields, lengths;
  fields.reserve(predicate.fields.size());
  lengths.reserve(predicate.lengths.size());
  for (const std::string& field : predicate.fields) fields.push_back(inner().field_index(field));
  for (const std::string& field : predicate.lengths) lengths.push_back(inner().field_index(field));
  const detail::WholeFields whole(inner().fields(), std::move(fields));

  std::vector<std::uint64_t> words(
      as_size(inner().size() / kWordRecords + (inner().size() % kWordRecords != 0 ? 1 : 0)));
  const auto evaluate_chunk = [&](std::int64_t begin, std::int64_t end) {
    const auto memory = whole.allocate();
    std::vector<FieldBox> reads;
    whole.add_reads(memory.get(), reads);
    std::vector<FieldValue> values;
    values.reserve(whole.which().size() + lengths.size());
    for (std::size_t i = 0; i < whole.which().size(); ++i) {
      values.push_back({&inner().fields()[whole.which()[i]], whole.place(memory.get(), i), 0});
    }
    for (const std::size_t field : lengths) values.push_back({&inner().fields()[field], {}, 0});
    for (std::int64_t record = begin; record < end; ++record) {
      if ((record - begin) % kWordRecords == 0) {
        detail::will_read_together(inner(), record, std::min(record + kWordRecords, end));
      }
      const Sample sample{record, 0, 0};
      try {
        if (!reads.empty()) inner().read(sample, reads);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const bool is_whole = i < whole.which().size();
          values[i].length = detail::checked_length(
              inner(), sample, is_whole ? whole.which()[i] : lengths[i - whole.which().size()]);
        }
      } catch (const Error& e) {
        std::throw_with_nested(
            Error(e, fmt::format("filter \"{}\": record {}: {}", name_, record, e.what())));
      }
      if (!predicate.keep(values)) continue;
      words[as_size(record / kWordRecords)] |= std::uint64_t{1} << (record % kWordRecords);
    }
  };
  detail::for_each_chunk(inner().size(), kFilterChunkRecords, options.threads, options.progress,
                         evaluate_chunk);
  return words;
}

}  // namespace

std::shared_ptr<const Source> filter(std::shared_ptr<const Source> source,
                                     const RecordPredicate& predicate,
                                     const FilterOptions& options) {
  return std::make_shared<FilterStage>(std::move(source), predicate, options);
}

}  // namespace shardwise
