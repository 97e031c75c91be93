#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/stages/detail/stage.h"

namespace shardwise::detail {

/// A stage that changes one field and maps each box of the result to a box of the source, so only
/// the requested part is read. A record is still read by one call.
class FieldStage : public OneSourceStage {
 public:
  /// Throws invalid_argument if the source is null, no_such_name for an unknown field.
  FieldStage(std::shared_ptr<const Source> source, std::string_view stage,
             std::string_view field_name);

  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t of) const override;

 protected:
  /// The values that hold for all boxes of one record.
  struct State {
    Index offset;             ///< crop: where the part begins
    bool flipped = false;     ///< flip
    std::int64_t length = 0;  ///< the source record's own extent in dim 0
  };

  std::size_t field() const { return field_; }
  Field& changed() { return fields_[field_]; }
  const Field& changed() const { return fields_[field_]; }
  const Field& original() const { return inner().fields()[field_]; }

  /// The facts that every fingerprint of such a stage begins with.
  Facts facts(std::string_view stage) const;

  /// "<stage>(<field>, <parameters>, <the source>)".
  std::string described(std::string_view stage, std::string_view parameters,
                        std::int64_t samples) const;

 private:
  virtual State state(const Sample& sample) const = 0;

  /// The box of the source's field that makes up `output`; may be empty.
  virtual Box needed(const State& state, const Box& output) const = 0;

  /// Makes the output from the input, which was read. If both have the same type and shape, they
  /// are the same memory.
  virtual void finish(const State& state, const ConstBoxView& input,
                      const BoxView& output) const = 0;

  /// The length of a ragged field's record after the stage.
  virtual std::int64_t changed_length(const Sample& sample) const {
    return inner().length(sample, field_);
  }

  std::size_t field_;
  std::vector<Field> fields_;
};

/// Sets the rows of the output from `length` on to zero.
void zero_rows_from(std::int64_t length, std::size_t element_bytes, const BoxView& output);

}  // namespace shardwise::detail
