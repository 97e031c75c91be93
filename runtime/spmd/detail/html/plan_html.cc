#include <string>
#include <string_view>
#include <utility>

#include "shardwise/runtime/spmd/detail/html/json_writer.h"
#include "shardwise/runtime/spmd/detail/html/page_data.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise {

std::string plan_html(const Executable& executable, const StepReport& report,
                      const PageOptions& options, const LineOf& line_of) {
  const detail::PageParts parts = detail::page_parts();
  const std::string title = detail::html_text(options.program),
                    text = detail::html_text(page(executable, report, options)),
                    data = detail::page_data(executable, report, options, line_of);
  const std::pair<std::string_view, std::string_view> fields[] = {{"{{style}}", parts.style},
                                                                  {"{{script}}", parts.script},
                                                                  {"{{title}}", title},
                                                                  {"{{text}}", text},
                                                                  {"{{data}}", data}};
  // In one pass: inserted text is not searched again, whatever names it holds.
  std::string html;
  std::string_view rest = parts.html;
  while (!rest.empty()) {
    std::size_t first = rest.size();
    std::pair<std::string_view, std::string_view> field;
    for (const auto& one : fields) {
      const std::size_t at = rest.find(one.first);
      if (at >= first) continue;
      first = at;
      field = one;
    }
    html += rest.substr(0, first);
    html += field.second;
    rest.remove_prefix(first + field.first.size());
  }
  return html;
}

}  // namespace shardwise
