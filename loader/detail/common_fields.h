#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// The fields of several sources that are read as one. They are equal in all sources, except for
/// shape[0] of ragged fields: the result has the largest. Throws invalid_argument ("concat: .." if
/// `stage` is "concat") if a source is null or fields differ. Requires at least one source.
std::vector<Field> common_fields(std::span<const std::shared_ptr<const Source>> sources,
                                 std::string_view stage);

/// Reads boxes of the common fields: rows past a source's own shape[0] are filled with zeros.
void read_common(const Source& source, const Sample& sample, std::span<const FieldBox> boxes);

}  // namespace shardwise::detail
