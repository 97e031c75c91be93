#pragma once

#include <string_view>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/diff.h"

namespace shardwise::tools {

/// Throws corrupt, naming the first difference, unless `written`, called `name`, has the tensors of
/// the source to the last bit.
void check_equal(const BoxReader& source, const BoxReader& written, std::string_view name,
                 const shardwise::DiffOptions& options = {});

}  // namespace shardwise::tools
