#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shardwise/mend/repair.h"

namespace shardwise {

// As the verification after the repairs, with the repairs after its first line.
std::string to_string(const RepairReport& repair) {
  const std::string left = to_string(repair.left);
  const std::size_t first_line = std::min(left.find('\n'), left.size());
  std::string text = repair.repaired.empty() ? std::string()
                                             : fmt::format("{} repaired, ", repair.repaired.size());
  text.append(left, 0, first_line);
  for (const auto& [damage, from] : repair.repaired) {
    text += fmt::format("\n  repaired from {}: {}{}{}", from, damage.file,
                        damage.file.empty() ? "" : ": ", damage.message);
  }
  text.append(left, first_line);
  for (const auto& [tensor, box] : repair.lost) {
    text += fmt::format("\n  lost: tensor {:?} {}", tensor, to_string(box));
  }
  return text;
}

}  // namespace shardwise
