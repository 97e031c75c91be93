#pragma once

#include <string>

#include "shardwise/runtime/spmd/detail/html/json_writer.h"
#include "shardwise/runtime/spmd/executable.h"

// What was found beside a plan: marks that a search chose, and changes that would make it fit.
namespace shardwise::detail {

/// Above the page: the marks, and what they are better than. "" without a search.
std::string search_text(const StepReport& report, const PageOptions& options);

/// Below the page: a row for each change. "" unless changes were looked for.
std::string changes_text(const PageOptions& options);

/// "search", "changes" and "batch_refused" of an open object, as far as they are there.
void put_found(JsonWriter& json, const PageOptions& options);

}  // namespace shardwise::detail
