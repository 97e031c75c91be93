#include "shardwise/loader/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/loader/detail/prefetch.h"
#include "shardwise/loader/detail/read_frame.h"
#include "shardwise/loader/detail/row_stretch.h"
#include "shardwise/loader/detail/store_error.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

constexpr std::int64_t kSampledRecords = 64;
constexpr std::size_t kSampledBytesPerRecord = std::size_t{16} << 10;

class MemorySource final : public Source {
 public:
  MemorySource(Field field, std::int64_t size, std::size_t record_bytes,
               std::vector<std::byte> data)
      : field_(std::move(field)),
        record_(Box::whole(field_.shape)),
        size_(size),
        record_bytes_(record_bytes),
        data_(std::move(data)) {}

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return {&field_, 1}; }

  void will_read(const Sample& sample) const override {
    detail::prefetch(data_.data() + static_cast<std::size_t>(sample.record) * record_bytes_,
                     record_bytes_);
  }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    const std::byte* from = data_.data() + static_cast<std::size_t>(sample.record) * record_bytes_;
    for (const FieldBox& box : boxes) {
      const std::size_t element_bytes = size_bytes(field_.dtype);
      if (const auto stretch = detail::one_stretch(field_.shape, box.to.box)) {
        std::copy_n(from + stretch->begin * element_bytes, stretch->count * element_bytes,
                    box.to.data);
      } else {
        copy_box(box.to.box, element_bytes, {from, record_}, box.to);
      }
    }
  }

 private:
  Field field_;
  Box record_;
  std::int64_t size_;
  std::size_t record_bytes_;
  std::vector<std::byte> data_;
};

class ZipSource final : public Source {
 public:
  explicit ZipSource(std::vector<std::shared_ptr<const Source>> sources)
      : sources_(std::move(sources)) {
    for (std::size_t source = 0; source < sources_.size(); ++source) {
      for (std::size_t i = 0; i < sources_[source]->fields().size(); ++i) {
        fields_.push_back(sources_[source]->fields()[i]);
        origins_.push_back({source, i});
      }
    }
  }

  std::int64_t size() const override { return sources_[0]->size(); }
  std::span<const Field> fields() const override { return fields_; }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    detail::ReadFrame frame;
    std::vector<FieldBox>& own = frame.lists().boxes;
    for (std::size_t source = 0; source < sources_.size(); ++source) {
      own.clear();
      for (const FieldBox& box : boxes) {
        const Origin& origin = origins_[box.field];
        if (origin.source == source) own.push_back({origin.field, box.to});
      }
      if (!own.empty()) sources_[source]->read(sample, own);
    }
  }

  void will_read(const Sample& sample) const override {
    for (const auto& source : sources_) source->will_read(sample);
  }
  bool reads_together() const override {
    return std::ranges::any_of(sources_,
                               [](const auto& source) { return source->reads_together(); });
  }

  std::uint64_t fingerprint() const override {
    if (sources_.size() == 1) return sources_[0]->fingerprint();
    std::vector<std::uint64_t> facts;
    facts.reserve(sources_.size());
    for (const auto& source : sources_) facts.push_back(source->fingerprint());
    const std::span<const std::byte> bytes = std::as_bytes(std::span(facts));
    return hash64(bytes.data(), bytes.size());
  }

  bool changes_with_epoch() const override {
    return std::ranges::any_of(sources_,
                               [](const auto& source) { return source->changes_with_epoch(); });
  }
  std::string describe(std::int64_t samples) const override {
    if (sources_.size() == 1) return sources_[0]->describe(samples);
    std::string all;
    for (const auto& source : sources_) {
      all += (all.empty() ? "" : ", ") + source->describe(samples);
    }
    return "zip(" + all + ")";
  }

  std::int64_t length(const Sample& sample, std::size_t field) const override {
    return sources_[origins_[field].source]->length(sample, origins_[field].field);
  }

 private:
  struct Origin {
    std::size_t source, field;
  };
  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Field> fields_;
  std::vector<Origin> origins_;  // per field
};

// The sampled part of a large record: it moves with `sample`, so that all samples together cover
// all parts of a record.
Box sampled_box(const Shape& shape, std::size_t element_bytes, std::int64_t sample) {
  const Shape part = cut_to_bytes(shape, element_bytes, kSampledBytesPerRecord);
  Box box;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const std::int64_t begin = (shape[dim] - part[dim]) / kSampledRecords * sample;
    box.push_back(begin, begin + part[dim]);
  }
  return box;
}

}  // namespace

bool is_bad_record(const Error& error) {
  const ErrorCode code = error.code();
  if (dynamic_cast<const detail::StoreError*>(&error) != nullptr) return false;
  return code == ErrorCode::corrupt || code == ErrorCode::io || code == ErrorCode::not_found;
}

std::size_t Source::field_index(std::string_view name) const {
  std::string known;
  const std::span<const Field> all = fields();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return i;
    known += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", all[i].name);
  }
  throw Error(ErrorCode::no_such_name,
              fmt::format("there is no field \"{}\"; the source has {}", name, known));
}

std::int64_t Source::length(const Sample&, std::size_t field) const {
  const Shape& shape = fields()[field].shape;
  return shape.empty() ? 1 : shape[0];
}

std::string Source::describe(std::int64_t) const { return "records"; }

void Source::read_box(std::size_t field, std::int64_t record, const BoxView& to) const {
  const FieldBox box{field, to};
  read({.record = record}, {&box, 1});
}

std::uint64_t Source::fingerprint() const {
  const std::span<const Field> all = fields();
  const std::int64_t samples = std::min(size(), kSampledRecords);
  std::vector<std::uint64_t> facts{static_cast<std::uint64_t>(size())};
  for (const Field& field : all) {
    const std::string_view type = name(field.dtype);
    facts.push_back(hash64(type));
    facts.push_back(field.shape.size());
    for (const std::int64_t extent : field.shape) {
      facts.push_back(static_cast<std::uint64_t>(extent));
    }
  }
  // Evenly spread, with the first and the last record among them.
  const auto sampled = [&](std::int64_t sample) {
    if (samples == 1) return std::int64_t{0};
    return (size() - 1) / (samples - 1) * sample +
           (size() - 1) % (samples - 1) * sample / (samples - 1);
  };
  for (std::int64_t sample = 0; reads_together() && sample < samples; ++sample) {
    will_read({sampled(sample), 0, 0});
  }
  std::vector<std::vector<std::byte>> contents(all.size());
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int64_t record = sampled(sample);
    std::vector<FieldBox> boxes;
    boxes.reserve(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t element_bytes = size_bytes(all[i].dtype);
      const Box box = sampled_box(all[i].shape, element_bytes, sample);
      contents[i].resize(num_bytes(box.shape(), element_bytes));
      boxes.push_back({i, {contents[i].data(), box}});
    }
    try {
      read({.record = record}, boxes);
    } catch (const Error& error) {
      if (!is_bad_record(error)) throw;
      facts.push_back(static_cast<std::uint64_t>(error.code()));
      continue;
    }
    for (const auto& content : contents) facts.push_back(hash64(content.data(), content.size()));
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(facts));
  return hash64(bytes.data(), bytes.size());
}

std::shared_ptr<const Source> zip(std::vector<std::shared_ptr<const Source>> sources) {
  if (sources.empty()) {
    throw Error(ErrorCode::invalid_argument, "zip: got no source, needed is at least one");
  }
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i]) {
      throw Error(ErrorCode::invalid_argument, fmt::format("zip: source {} is null", i));
    }
    if (sources[i]->size() != sources[0]->size()) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("zip: source {} has {} records, source 0 has {}, needed are equal sizes", i,
                      sources[i]->size(), sources[0]->size()));
    }
    for (const Field& field : sources[i]->fields()) {
      if (std::find(names.begin(), names.end(), field.name) != names.end()) {
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("zip: field \"{}\" of source {} comes twice, needed are distinct names",
                        field.name, i));
      }
      names.push_back(field.name);
    }
  }
  return std::make_shared<ZipSource>(std::move(sources));
}

std::shared_ptr<const Source> memory_source(Field field, std::int64_t size,
                                            std::vector<std::byte> data) {
  if (size < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("source in memory: size is {}, needed is 0 or more", size));
  }
  const std::size_t record_bytes = num_bytes(field.shape, size_bytes(field.dtype));
  std::size_t needed = 0;
  if (__builtin_mul_overflow(record_bytes, static_cast<std::size_t>(size), &needed) ||
      needed != data.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("source in memory: field \"{}\" got {} bytes, needed is {} records of {}",
                    field.name, data.size(), size, record_bytes));
  }
  return std::make_shared<MemorySource>(std::move(field), size, record_bytes, std::move(data));
}

}  // namespace shardwise
