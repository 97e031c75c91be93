#include "shardwise/reshape/detail/reshard/new_shardings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include "shardwise/reshape/detail/edits/edit_text.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::reshape_detail {
namespace {

// Limits of a message about many faults: it ends up on a terminal.
constexpr std::size_t kMostGroups = 5;
constexpr std::size_t kMostNames = 2;
constexpr std::size_t kMessageBytes = 700;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

std::string without_prefix(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

std::string nearest(const std::vector<std::string_view>& names, std::string_view wrong) {
  const std::vector<std::string_view> found = nearest_names(names, wrong);
  return found.empty() ? "" : fmt::format(", nearest: {}", clipped(found.front()));
}

/// Throws if the spec names an axis that the mesh has not.
void check_axes(const PartitionSpec& spec, const Mesh& mesh) {
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    for (const std::string& part : spec[dim]) {
      const std::string axis = part.substr(0, part.find(':'));
      try {
        static_cast<void>(mesh.axis_index(axis));
      } catch (const Error&) {
        std::vector<std::string_view> names;
        for (const Axis& there : mesh.axes()) names.push_back(there.name);
        fail(fmt::format("no axis \"{}\" in mesh {}{}", axis, mesh.to_string(),
                         nearest(names, axis)));
      }
    }
  }
}

/// Throws errors that name neither the tensor nor its spec.
Sharding sharding_of(const TensorInfo& tensor, const Mesh& mesh, const SpecRules::Rule* rule) {
  const std::size_t rank = tensor.shape.size();
  PartitionSpec spec;
  if (rule != nullptr) {
    spec = rule->spec_of(rank);
  } else {
    spec = tensor.sharding ? tensor.sharding->spec() : PartitionSpec::replicated(rank);
  }
  if (spec.rank() != rank) {
    fail(fmt::format("needed is a spec of {} dims, found are {}", rank, spec.rank()));
  }
  check_axes(spec, mesh);
  const std::string text = spec.to_string();
  try {
    Sharding sharding(
        mesh, std::move(spec),
        rule != nullptr || !tensor.sharding ? UnevenPolicy() : tensor.sharding->policy());
    static_cast<void>(sharding.shard_shape(tensor.shape));
    return sharding;
  } catch (const Error& e) {
    fail(without_prefix(without_prefix(e.what(), fmt::format("sharding \"{}\": ", text)),
                        fmt::format("cut by the spec \"{}\": ", text)));
  }
}

/// Tensors with the same fault.
struct Group {
  std::string fault;
  std::size_t count = 0;
  std::vector<std::string_view> names;  ///< the first ones
};

class Faults {
 public:
  void add(const TensorInfo& tensor, const SpecRules::Rule* rule, const std::string& what) {
    // Tensors with different stored specs share a group, which shows the first spec.
    const auto [at, is_new] =
        group_of_.try_emplace(fmt::format("{} {}", fmt::ptr(rule), what), groups_.size());
    if (is_new) {
      groups_.push_back(
          {rule != nullptr
               ? fmt::format("{} (rule {})", what, clipped(rule->pattern + "=" + rule->spec))
               : fmt::format("{} (stored spec {}, as no rule matches)", what,
                             clipped(tensor.sharding ? tensor.sharding->spec().to_string() : "")),
           0,
           {}});
    }
    Group& group = groups_[at->second];
    if (group.names.size() < kMostNames) group.names.push_back(tensor.name);
    ++group.count;
    ++count_;
  }

  bool empty() const { return count_ == 0; }

  /// Up to `most` groups; the rest is counted.
  std::string text(std::size_t tensors, std::size_t most) {
    std::ranges::stable_sort(groups_, std::greater(), &Group::count);
    std::string text = fmt::format("{} of {} tensors do not fit", count_, tensors);
    const char* separator = ": ";
    std::size_t left = count_, shown = 0;
    for (; shown < std::min(most, groups_.size()) && text.size() < kMessageBytes; ++shown) {
      text += std::exchange(separator, "; ") + text_of(groups_[shown]);
      left -= groups_[shown].count;
    }
    if (left > 0) {
      text += fmt::format("; and {} more with {} other faults", left, groups_.size() - shown);
    }
    return text;
  }

 private:
  static std::string text_of(const Group& group) {
    std::string text = group.count == 1 ? "tensor " : "tensors ";
    for (const std::string_view name : group.names) {
      text += fmt::format("{}{}", name == group.names.front() ? "" : ", ", clipped(name));
    }
    if (group.count > group.names.size()) {
      text += fmt::format(" and {} more", group.count - group.names.size());
    }
    return text + ": " + group.fault;
  }

  std::vector<Group> groups_;
  std::unordered_map<std::string, std::size_t> group_of_;
  std::size_t count_ = 0;
};

std::string unmatched_text(const std::vector<std::string>& patterns,
                           const std::vector<std::string_view>& names) {
  const std::size_t shown = std::min<std::size_t>(patterns.size(), 3);
  std::string text = patterns.size() == 1 ? "rule " : "rules ";
  for (std::size_t i = 0; i < shown; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", clipped(patterns[i]));
  }
  if (patterns.size() > shown) text += fmt::format(" and {} more", patterns.size() - shown);
  text += fmt::format(" {} none of {} tensors", patterns.size() == 1 ? "matches" : "match",
                      names.size());
  return patterns.size() == 1 ? text + nearest(names, patterns[0]) : text;
}

}  // namespace

std::vector<Sharding> new_shardings(std::span<const TensorInfo> tensors, const Mesh& mesh,
                                    const SpecRules& rules, std::string_view operation) {
  std::vector<Sharding> shardings;
  std::vector<std::string_view> names;
  Faults faults;
  for (const TensorInfo& tensor : tensors) {
    names.push_back(tensor.name);
    const SpecRules::Rule* const rule = rules.match(tensor.name);
    try {
      shardings.push_back(sharding_of(tensor, mesh, rule));
    } catch (const Error& e) {
      faults.add(tensor, rule, e.what());
    }
  }
  const std::vector<std::string> unmatched = rules.unmatched(names);
  if (unmatched.empty() && faults.empty()) return shardings;
  std::string text;
  if (!unmatched.empty()) text = unmatched_text(unmatched, names);
  if (!faults.empty()) {
    text += text.empty() ? "" : "; ";
    text += faults.text(names.size(), kMostGroups - (unmatched.empty() ? 0 : 1));
  }
  fail(fmt::format("{} to mesh {}: {}", operation, mesh.to_string(), text));
}

}  // namespace shardwise::reshape_detail
