#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::reshape_detail {

/// The use of a rule.
struct RuleUse {
  void add(bool counts) { (counts ? used : shadowed) = true; }

  bool used = false;
  bool shadowed = false;     ///< an earlier rule was taken instead
  bool passed_over = false;  ///< it matches only tensors that a pattern of many leaves alone
};

/// All that does not fit of edits, to be one error.
///
/// Thread-compatible.
class EditFaults {
 public:
  /// Takes the names of the source's tensors, which outlive this.
  explicit EditFaults(std::span<const std::string_view> names)
      : names_(names), selected_(names.size()) {}

  void set_selected(std::size_t count) { selected_ = count; }

  void add(std::string fault) { faults_.push_back(std::move(fault)); }
  bool empty() const { return faults_.empty(); }

  /// True if the new name of a rule has as many wildcards as the pattern, or none unless it needs
  /// all. If not, that is a fault.
  bool has_wildcards_of(const char* what, const std::string& rule, std::string_view pattern,
                        std::string_view name, bool needs_all = false);

  /// A rule that was not used is a fault. `passed_over` says why, if its tensors were.
  void check_used(const char* what, const std::string& rule, const std::string& pattern,
                  const RuleUse& use, std::string_view passed_over = {},
                  bool shows_pattern = false);

  /// ", nearest: " and the name that is nearest to a pattern; nothing if none is near.
  std::string nearest(std::string_view pattern) const;

  /// Throws invalid_argument if there are faults.
  void throw_if_any(std::string_view operation) const;

 private:
  const std::span<const std::string_view> names_;
  std::size_t selected_;
  std::vector<std::string> faults_;
};

}  // namespace shardwise::reshape_detail
