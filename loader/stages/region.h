#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/loader/source.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"

namespace shardwise {

// Stages that move a field's elements without changing them. A box of the result is made from one
// box of the source, and no byte outside that box is read.

/// The place of a crop in a record. Value type.
class CropPosition {
 public:
  enum class Kind { at, centre, random };

  /// The crop begins at this index in every record.
  static CropPosition at(const Index& begin) { return {Kind::at, begin, {}}; }

  /// The crop leaves out as many elements before as after it, or one more after.
  static CropPosition centre() { return {Kind::centre, {}, {}}; }

  /// The crop is anywhere, with each place equally likely, and moves with each record and epoch.
  /// Crops and flips of equal `stream` draw equal numbers, so an image and its mask are cut in the
  /// same way. An empty stream stands for the name of stage and field.
  static CropPosition random(std::string stream = {}) {
    return {Kind::random, {}, std::move(stream)};
  }

  Kind kind() const { return kind_; }
  const Index& begin() const { return begin_; }
  const std::string& stream() const { return stream_; }

 private:
  CropPosition(Kind kind, const Index& begin, std::string stream)
      : kind_(kind), begin_(begin), stream_(std::move(stream)) {}

  Kind kind_;
  Index begin_;
  std::string stream_;
};

/// A part of the field's records, of extents `shape`. A ragged field is cut within the record's own
/// length; a record shorter than shape[0] is kept whole in dim 0. Throws invalid_argument if the
/// shape is not within the field's, or the crop at this position is not; no_such_name for an
/// unknown field.
///
///   const auto small = crop(source, "image", {24, 24, 3}, CropPosition::random());
std::shared_ptr<const Source> crop(std::shared_ptr<const Source> source, std::string_view field,
                                   const Shape& shape, const CropPosition& position);

/// The records mirrored in one dim, each with this probability, drawn by `stream` as for
/// CropPosition::random(). Throws invalid_argument if the field has no such dim, it is dim 0 of a
/// ragged field, or the probability is not in 0 .. 1; no_such_name for an unknown field.
///
///   const auto mirrored = flip(source, "image", 1, 0.5);
std::shared_ptr<const Source> flip(std::shared_ptr<const Source> source, std::string_view field,
                                   std::size_t dim, double probability,
                                   const std::string& stream = {});

/// The records with elements of `value` before and after in each dim. The value is converted to the
/// field's type as by convert(). The padding of a ragged field's dim 0 counts towards the record's
/// length. Throws invalid_argument if before or after are not one count of 0 or more per dim;
/// unsupported if kernels cannot compute with the field's type and the value is not 0; no_such_name
/// for an unknown field.
///
///   const auto framed = pad(source, "image", {2, 2, 0}, {2, 2, 0}, 0);
std::shared_ptr<const Source> pad(std::shared_ptr<const Source> source, std::string_view field,
                                  const Shape& before, const Shape& after, double value = 0);

}  // namespace shardwise
