#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// A stage over one source. It keeps the source's fields, records and lengths.
class OneSourceStage : public Source, public Tagged {
 public:
  /// Throws invalid_argument if `inner` is null; `stage` is the stage's name in the message.
  OneSourceStage(std::shared_ptr<const Source> inner, std::string_view stage);

  std::int64_t size() const override { return inner_->size(); }
  std::span<const Field> fields() const override { return inner_->fields(); }
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    return inner_->length(sample, field);
  }
  void will_read(const Sample& sample) const override { inner_->will_read(sample); }
  bool reads_together() const override { return inner_->reads_together(); }
  bool changes_with_epoch() const override { return inner_->changes_with_epoch(); }
  std::uint64_t tag() const override { return tag_of(*inner_); }

 protected:
  const Source& inner() const { return *inner_; }

 private:
  std::shared_ptr<const Source> inner_;
};

/// Other records of the same source, with the same fields.
class SelectStage : public OneSourceStage {
 public:
  using OneSourceStage::OneSourceStage;

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    inner().read(inner_sample(sample), boxes);
  }
  std::int64_t length(const Sample& sample, std::size_t field) const override {
    return inner().length(inner_sample(sample), field);
  }
  void will_read(const Sample& sample) const override { inner().will_read(inner_sample(sample)); }

 private:
  virtual Sample inner_sample(const Sample& sample) const = 0;
};

/// Names records begin .. end-1 of epoch 0 to a source that makes them together.
void will_read_together(const Source& source, std::int64_t begin, std::int64_t end);

/// A name as descriptions show it: in double quotes if it is no plain word.
std::string described_name(std::string_view name);

/// The facts that a stage's fingerprint is made of, in order.
class Facts {
 public:
  explicit Facts(std::string_view stage) { add(stage); }

  Facts& add(std::uint64_t fact);
  Facts& add(std::int64_t fact) { return add(static_cast<std::uint64_t>(fact)); }
  Facts& add(std::string_view text);
  Facts& add(double value);
  Facts& add(std::span<const std::int64_t> values);
  Facts& add(const Field& field);  // type and shape, not its name
  std::uint64_t hash() const;

 private:
  std::vector<std::uint64_t> facts_;
};

/// a * b + c, of numbers that are not negative. Throws invalid_argument beyond 2^63 - 1: "<what>
/// overflows".
std::int64_t multiply_add(std::int64_t a, std::int64_t b, std::int64_t c, std::string_view what);

/// The extent of dim 0; 1 for a scalar.
std::int64_t most_length(const Field& field);

/// The record's own extent in dim 0. Throws corrupt if the source gives a length that the field
/// cannot have.
std::int64_t checked_length(const Source& source, const Sample& sample, std::size_t field);

}  // namespace shardwise::detail
