#include "shardwise/reshape/detail/edits/edit_faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/reshape/detail/edits/edit_text.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::reshape_detail {
namespace {

// The most faults in a message: it ends up on a terminal.
constexpr std::size_t kMostFaults = 20;

}  // namespace

bool EditFaults::has_wildcards_of(const char* what, const std::string& rule,
                                  std::string_view pattern, std::string_view name, bool needs_all) {
  for (const char wildcard : {'*', '?'}) {
    const auto found = std::count(name.begin(), name.end(), wildcard);
    const auto there = std::count(pattern.begin(), pattern.end(), wildcard);
    if (found == there || (found == 0 && !needs_all)) continue;
    add(fmt::format("{} {}: found {} \"{}\" in the new name, needed {} as in the pattern{}", what,
                    clipped(rule), found, wildcard, there, needs_all ? "" : ", or none"));
    return false;
  }
  return true;
}

void EditFaults::check_used(const char* what, const std::string& rule, const std::string& pattern,
                            const RuleUse& use, std::string_view passed_over, bool shows_pattern) {
  if (use.used) return;
  std::string said = fmt::format("{} {} ", what, clipped(rule));
  if (use.shadowed) {
    said += "is not used: earlier rules take all that it matches";
  } else if (use.passed_over) {
    said += passed_over;
  } else {
    said += fmt::format("matches none of {}{} tensors{}{}", selected_,
                        selected_ == names_.size() ? "" : " selected",
                        shows_pattern ? " with " + clipped(pattern) : "", nearest(pattern));
  }
  add(std::move(said));
}

std::string EditFaults::nearest(std::string_view pattern) const {
  const std::vector<std::string_view> found =
      nearest_names({names_.begin(), names_.end()}, pattern);
  return found.empty() ? std::string() : ", nearest: " + clipped(found.front());
}

void EditFaults::throw_if_any(std::string_view operation) const {
  if (faults_.empty()) return;
  std::string text = fmt::format("{}: {} edit{} not fit: ", operation, faults_.size(),
                                 faults_.size() == 1 ? " does" : "s do");
  const std::size_t shown = std::min(faults_.size(), kMostFaults);
  text +=
      fmt::format("{}", fmt::join(faults_.begin(), faults_.begin() + std::ptrdiff_t(shown), "; "));
  if (shown < faults_.size()) text += fmt::format("; and {} more", faults_.size() - shown);
  throw Error(ErrorCode::invalid_argument, text);
}

}  // namespace shardwise::reshape_detail
