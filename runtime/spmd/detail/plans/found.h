#pragma once

#include <string>

#include "shardwise/runtime/spmd/detail/html/json_writer.h"
#include "shardwise/runtime/spmd/executable.h"

// Findings next to a plan: marks that a search chose, and changes that would make it fit.
namespace shardwise::detail {

/// Shown above the page: the marks, and the plans that they beat. "" without a search.
std::string search_text(const StepReport& report, const PageOptions& options);

/// Shown below the page: a row for each change. "" unless changes were searched for.
std::string changes_text(const PageOptions& options);

/// Writes "search", "changes" and "batch_refused" of an open object, as far as they exist.
void put_found(JsonWriter& json, const PageOptions& options);

}  // namespace shardwise::detail
