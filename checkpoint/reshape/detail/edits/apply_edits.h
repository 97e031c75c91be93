#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "shardwise/reshape/detail/edits/edited_tensor.h"
#include "shardwise/reshape/edits.h"

namespace shardwise::reshape_detail {

/// The tensors that edits make of others, sorted by name. Throws as EditedTensors.
std::vector<EditedTensor> apply_edits(std::span<const TensorInfo> tensors, const TensorEdits& edits,
                                      std::string_view operation);

}  // namespace shardwise::reshape_detail
