#include "shardwise/loader/sources/tfrecord.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "shardwise/loader/detail/copy_row.h"
#include "shardwise/loader/detail/files/unpacked_file.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/detail/progress_steps.h"
#include "shardwise/loader/sources/detail/tf_example.h"
#include "shardwise/loader/sources/detail/tf_frames.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::ExampleFault;
using detail::ExampleFeature;
using detail::TfFrames;

constexpr std::uint32_t kUnreadLength = std::numeric_limits<std::uint32_t>::max();

/// Records as they are. Thread-safe.
class TfBytes final : public Source {
 public:
  explicit TfBytes(std::unique_ptr<const TfFrames> frames)
      : frames_(std::move(frames)), field_{"record", DType::u8, {0}} {
    for (std::int64_t record = 0; record < frames_->whole_size(); ++record) {
      field_.shape[0] = std::max(field_.shape[0], length({.record = record}, 0));
    }
    field_.ragged = true;
  }

  std::int64_t size() const override { return frames_->size(); }
  std::span<const Field> fields() const override { return {&field_, 1}; }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    std::vector<std::byte> scratch;
    const std::span<const std::byte> data = frames_->data(sample.record, scratch);
    for (const FieldBox& box : boxes) {
      detail::copy_row(data.data(), field_.shape, static_cast<std::int64_t>(data.size()), 1,
                       box.to);
    }
  }

  std::int64_t length(const Sample& sample, std::size_t) const override {
    return static_cast<std::int64_t>(frames_->data_bytes(sample.record));
  }

 private:
  std::unique_ptr<const TfFrames> frames_;
  Field field_;
};

/// Records that are examples. Fields are the features that the options name. Thread-safe.
class TfExamples final : public Source {
 public:
  TfExamples(std::unique_ptr<const TfFrames> frames, const TfrecordOptions& options);

  std::int64_t size() const override { return frames_->size(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override;

 private:
  void add_field(const TfFeature& feature);
  void find_lengths(const IndexProgress& progress);
  std::vector<ExampleFeature> features_of(std::int64_t record, std::span<const std::size_t> fields,
                                          std::vector<std::byte>& scratch) const;
  std::int64_t elements_of(std::int64_t record, std::size_t field, const ExampleFeature& feature,
                           std::vector<std::byte>& elements) const;

  std::unique_ptr<const TfFrames> frames_;
  std::vector<Field> fields_;
  std::vector<std::vector<std::uint32_t>> lengths_;  // per ragged field, per record
};

TfExamples::TfExamples(std::unique_ptr<const TfFrames> frames, const TfrecordOptions& options)
    : frames_(std::move(frames)) {
  for (const TfFeature& feature : options.features) add_field(feature);
  lengths_.resize(fields_.size());
  const bool has_ragged =
      std::any_of(fields_.begin(), fields_.end(), [](const Field& field) { return field.ragged; });
  if (has_ragged) find_lengths(options.progress);
}

void TfExamples::add_field(const TfFeature& feature) {
  const auto refuse = [&](const std::string& found) {
    throw Error(ErrorCode::invalid_argument, fmt::format("open tfrecord file {}: field \"{}\" {}",
                                                         frames_->path(), feature.name, found));
  };
  num_bytes(feature.shape, size_bytes(feature.dtype));
  if (feature.ragged && feature.shape.empty()) refuse("is ragged and a scalar, needed is a dim");
  for (const Field& other : fields_) {
    if (other.name == feature.name) refuse("is asked for twice");
  }
  fields_.push_back({feature.name, feature.dtype, feature.shape, feature.ragged});
}

// One record's features, in the order of `fields`.
std::vector<ExampleFeature> TfExamples::features_of(std::int64_t record,
                                                    std::span<const std::size_t> fields,
                                                    std::vector<std::byte>& scratch) const {
  std::vector<std::string_view> names;
  names.reserve(fields.size());
  for (const std::size_t field : fields) names.push_back(fields_[field].name);
  std::vector<ExampleFeature> features(fields.size());
  try {
    detail::read_example(frames_->data(record, scratch), names, features);
  } catch (const ExampleFault& fault) {
    frames_->fail(record, fmt::format("not a tf.train.Example: {}", fault.found));
  }
  return features;
}

// Returns the feature's own extent in dim 0.
std::int64_t TfExamples::elements_of(std::int64_t record, std::size_t field,
                                     const ExampleFeature& feature,
                                     std::vector<std::byte>& elements) const {
  const Field& needed = fields_[field];
  try {
    detail::feature_elements(feature, needed.dtype, elements);
  } catch (const ExampleFault& fault) {
    frames_->fail(record, fmt::format("feature \"{}\" has {}", needed.name, fault.found));
  }
  const std::size_t count = elements.size() / size_bytes(needed.dtype);
  std::size_t row = 1;  // elements for each index of dim 0
  for (std::size_t dim = needed.ragged ? 1 : 0; dim < needed.shape.size(); ++dim) {
    row *= as_size(needed.shape[dim]);
  }
  const bool fits = needed.ragged ? row != 0 && count % row == 0 : count == row;
  if (!fits) {
    frames_->fail(record, fmt::format("feature \"{}\" has {} values, needed is {}{}", needed.name,
                                      count, needed.ragged ? "a multiple of " : "", row));
  }
  if (!needed.ragged) return needed.shape.empty() ? 1 : needed.shape[0];
  return static_cast<std::int64_t>(count / row);
}

// Reads all records once. A record that cannot be read is an error of its own read() later.
void TfExamples::find_lengths(const IndexProgress& progress) {
  std::vector<std::size_t> ragged;
  for (std::size_t field = 0; field < fields_.size(); ++field) {
    if (fields_[field].ragged) ragged.push_back(field);
  }
  const bool none_given = std::any_of(ragged.begin(), ragged.end(), [&](std::size_t field) {
    return fields_[field].shape[0] == 0;
  });
  std::vector<std::int64_t> most(fields_.size(), 0);
  std::vector<std::byte> scratch, elements;
  const auto all = static_cast<std::uint64_t>(frames_->size());
  detail::ProgressSteps steps(progress, all == 0 ? 0 : frames_->offset(frames_->size() - 1));
  for (std::int64_t record = 0; record < frames_->size(); ++record) {
    for (const std::size_t field : ragged) lengths_[field].push_back(kUnreadLength);
    try {
      const std::vector<ExampleFeature> features = features_of(record, ragged, scratch);
      for (std::size_t i = 0; i < ragged.size(); ++i) {
        const std::int64_t length = elements_of(record, ragged[i], features[i], elements);
        const std::int64_t limit = fields_[ragged[i]].shape[0];
        if (limit != 0 && length > limit) continue;
        most[ragged[i]] = std::max(most[ragged[i]], length);
        lengths_[ragged[i]].back() = static_cast<std::uint32_t>(length);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt) throw;
    }
    steps.at(frames_->offset(record));
  }
  for (const std::size_t field : ragged) {
    if (none_given && fields_[field].shape[0] == 0) fields_[field].shape[0] = most[field];
  }
}

void TfExamples::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  std::vector<std::size_t> fields;
  fields.reserve(boxes.size());
  for (const FieldBox& box : boxes) {
    if (std::find(fields.begin(), fields.end(), box.field) == fields.end()) {
      fields.push_back(box.field);
    }
  }
  std::vector<std::byte> scratch, elements;
  const std::vector<ExampleFeature> features = features_of(sample.record, fields, scratch);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields_[fields[i]];
    const std::int64_t length = elements_of(sample.record, fields[i], features[i], elements);
    if (field.ragged && length > field.shape[0]) {
      frames_->fail(sample.record, fmt::format("feature \"{}\" has {} rows, needed is {} or fewer",
                                               field.name, length, field.shape[0]));
    }
    for (const FieldBox& box : boxes) {
      if (box.field != fields[i]) continue;
      detail::copy_row(elements.data(), field.shape, length, size_bytes(field.dtype), box.to);
    }
  }
}

std::int64_t TfExamples::length(const Sample& sample, std::size_t field) const {
  if (!fields_[field].ragged) return Source::length(sample, field);
  const std::uint32_t length = lengths_[field][as_size(sample.record)];
  if (length != kUnreadLength) return length;
  const Index origin = Index::filled(fields_[field].shape.size(), 0);
  const FieldBox nothing{field, {nullptr, Box(origin, origin)}};
  read(sample, {&nothing, 1});  // throws the record's error
  frames_->fail(sample.record, "it can be read, but could not when the file was opened");
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> open_tfrecord(std::shared_ptr<const InputFile> file,
                                            const TfrecordOptions& options) {
  const std::uint64_t tag = file->tag();
  auto frames = std::make_unique<const TfFrames>(unpacked(std::move(file)), options.hold_bytes,
                                                 options.progress);
  if (options.features.empty()) return with_tag(std::make_shared<TfBytes>(std::move(frames)), tag);
  return with_tag(std::make_shared<TfExamples>(std::move(frames), options), tag);
}

}  // namespace detail

std::shared_ptr<const Source> open_tfrecord(const std::vector<std::filesystem::path>& paths,
                                            const TfrecordOptions& options) {
  std::vector<std::shared_ptr<const Source>> sources;
  sources.reserve(paths.size());
  TfrecordOptions own = options;
  for (const std::filesystem::path& path : paths) {
    auto file = std::make_shared<const detail::InputFile>(path);
    const std::size_t bytes = file->size_bytes();
    sources.push_back(detail::open_tfrecord(std::move(file), own));
    if (bytes <= own.hold_bytes) own.hold_bytes -= bytes;
  }
  return concat(std::move(sources));
}

}  // namespace shardwise
