#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

// Stages that compute each element of a field from the same element of the source.

/// The field as another type, converted by shardwise::convert(): floats round to nearest, an
/// integer that the type cannot hold wraps around, a float that an integer type cannot hold becomes
/// the nearest value that it can hold. Throws unsupported if the types differ and kernels cannot
/// compute with one; no_such_name for an unknown field.
///
///   const auto wide = cast(source, "label", DType::i32);
std::shared_ptr<const Source> cast(std::shared_ptr<const Source> source, std::string_view field,
                                   DType dtype);

/// The field as f32, (x - mean) / stddev, with one pair for all elements, or one for each index of
/// the last dim (channels last). x is converted to f32 first. Elements past the end of a ragged
/// record stay zero. Throws invalid_argument if mean and stddev are not both of size 1 or the last
/// dim's, a mean is not finite, or a stddev is not finite or 0; unsupported for a type that kernels
/// cannot compute with; no_such_name for an unknown field.
///
///   const auto scaled = normalise(source, "image", {0, 0, 0}, {255, 255, 255});
std::shared_ptr<const Source> normalise(std::shared_ptr<const Source> source,
                                        std::string_view field, std::vector<float> mean,
                                        std::vector<float> stddev);

}  // namespace shardwise
