#pragma once

#include <string>
#include <string_view>

#include "shardwise/reshape/edits.h"

// The rules of edits as a user writes them, and as messages show them.
namespace shardwise::reshape_detail {

/// Quoted, and cut if it is long.
std::string clipped(std::string_view text);

std::string rule_text(const TensorEdits::Rename& rule);
std::string rule_text(const TensorEdits::Cast& rule);
std::string rule_text(const TensorEdits::Transpose& rule);
std::string rule_text(const TensorEdits::Resize& rule);
std::string rule_text(const TensorEdits::Split& rule);
std::string rule_text(const TensorEdits::Join& rule);

}  // namespace shardwise::reshape_detail
