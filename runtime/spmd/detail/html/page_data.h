#pragma once

#include <string>

#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise::detail {

/// The content of the page of a plan, as a JSON object with plan_json() under "plan". Bounded,
/// whatever the size of the program.
std::string page_data(const Executable& executable, const StepReport& report,
                      const PageOptions& options, const LineOf& line_of);

/// The parts of the page, from the folder page: each the text of a file.
struct PageParts {
  const char* html;    ///< the frame, with "{{name}}" for the others
  const char* style;   ///< "{{style}}"
  const char* script;  ///< "{{script}}"
};
PageParts page_parts();

}  // namespace shardwise::detail
