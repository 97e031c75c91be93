#include <fmt/core.h>

#include <algorithm>

#include "shardwise/reshape/reshard.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

constexpr std::string_view kWholeAnyRank = "-";

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

}  // namespace

SpecRules SpecRules::parse(std::string_view text) {
  SpecRules rules;
  for (const std::string_view line : split(text, '\n')) {
    for (const std::string_view part : split(line.substr(0, line.find('#')), ';')) {
      const std::string_view rule = trim(part);
      if (rule.empty()) continue;
      // The last one: a pattern may hold "=", a spec cannot.
      const std::size_t equals = rule.rfind('=');
      if (equals == std::string_view::npos) {
        fail(fmt::format("spec rules: rule {:?} has no \"=\", needed is pattern=spec", rule));
      }
      Rule parsed{std::string(trim(rule.substr(0, equals))),
                  std::string(trim(rule.substr(equals + 1)))};
      if (parsed.pattern.empty()) fail(fmt::format("spec rules: rule {:?} has no pattern", rule));
      try {
        PartitionSpec::parse(parsed.spec);
      } catch (const Error& e) {
        fail(fmt::format("spec rules: rule {:?}: {}", rule, e.what()));
      }
      rules.rules_.push_back(std::move(parsed));
    }
  }
  return rules;
}

std::vector<std::string> SpecRules::unmatched(std::span<const std::string_view> names) const {
  std::vector<std::string> patterns;
  if (names.empty()) return patterns;
  for (const Rule& rule : rules_) {
    const bool used = std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return match_pattern(rule.pattern, name).has_value();
    });
    if (!used) patterns.push_back(rule.pattern);
  }
  return patterns;
}

PartitionSpec SpecRules::Rule::spec_of(std::size_t rank) const {
  return spec == kWholeAnyRank ? PartitionSpec::replicated(rank) : PartitionSpec::parse(spec);
}

const SpecRules::Rule* SpecRules::match(std::string_view name) const {
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& r) {
    return match_pattern(r.pattern, name).has_value();
  });
  return rule == rules_.end() ? nullptr : &*rule;
}

std::optional<PartitionSpec> SpecRules::find(std::string_view name, std::size_t rank) const {
  const Rule* const rule = match(name);
  if (rule == nullptr) return std::nullopt;
  PartitionSpec spec = rule->spec_of(rank);
  if (spec.rank() != rank) {
    fail(fmt::format("rule \"{}={}\" has {} dims, tensor {:?} has {}", rule->pattern, rule->spec,
                     spec.rank(), name, rank));
  }
  return spec;
}

}  // namespace shardwise
