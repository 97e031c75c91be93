#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/found.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

constexpr std::size_t kLargest = 10, kMostGroups = 20;
constexpr std::string_view kGradient = "gradient", kGaps = "gaps";

/// A label in one cell of a table.
std::string shown(std::string_view label) {
  std::string text;
  for (const char c : label) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text;
}

std::string memory_text(const Executable& executable, std::size_t peak_bytes,
                        const PageOptions& options) {
  const std::string peak = human_bytes(peak_bytes);
  std::string text;
  if (options.capacity_bytes == 0) {
    text = fmt::format("needs {} on the fullest device\n", peak);
  } else {
    const bool fits = peak_bytes <= options.capacity_bytes;
    text = fmt::format("{}: needs {} on the fullest device, which has {}\n",
                       fits ? "fits" : "does not fit", peak, human_bytes(options.capacity_bytes));
    if (!fits) text += "  " + suggest(executable, options.capacity_bytes) + '\n';
  }
  const std::string_view attention = planned_attention(executable.graph());
  if (attention == "fused") {
    text += "attention is planned as a fused kernel, without its scores: `written` counts them\n";
  } else if (attention == "written") {
    text += "attention is planned as written, with its scores: `fused` is a kernel without them\n";
  }
  const FullestStep fullest = fullest_step(executable);
  text += fmt::format("\nfullest at {}\n",
                      fullest.name.empty() ? "the start: nothing is computed" : fullest.name);
  TextTable kinds({"bytes", "kind"});
  for (const auto& [kind, bytes] : bytes_by_kind(fullest, peak_bytes)) {
    kinds.add({human_bytes(bytes), std::string(kind)});
  }
  text += kinds.to_string() + "\nthe largest tensors then\n";
  TextTable largest({"bytes", "kind", "type", "cut", "tensor"});
  for (std::size_t i = 0; i < std::min(fullest.held.size(), kLargest); ++i) {
    const FullestStep::Held& held = fullest.held[i];
    largest.add({human_bytes(held.bytes), std::string(held.kind_name()), to_string(held.type),
                 held.cut.empty() ? "whole" : held.cut, shown(held.label)});
  }
  return text + largest.to_string();
}

/// Repeated layers: "layer0/attention" and "layer11/attention" are "layer*/attention".
std::string without_numbers(const std::string& scope) {
  std::string text;
  for (const char c : scope) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) {
      text += c;
    } else if (!text.ends_with('*')) {
      text += '*';
    }
  }
  return text;
}

/// The traffic with scopes merged that differ only in their numbers, in the same order.
std::vector<Traffic> of_like_scopes(const std::vector<Traffic>& all) {
  std::vector<Traffic> groups;
  for (const Traffic& one : all) {
    const std::string scope = without_numbers(one.scope);
    const auto at = std::ranges::find_if(groups, [&](const Traffic& group) {
      return group.kind == one.kind && group.axes == one.axes &&
             group.is_asked_for == one.is_asked_for && without_numbers(group.scope) == scope;
    });
    if (at == groups.end()) {
      groups.push_back(one);
      continue;
    }
    at->scope = scope;
    at->tensors += one.tensors;
    at->bytes += one.bytes;
    at->wire_bytes += one.wire_bytes;
  }
  std::ranges::stable_sort(groups, [](const Traffic& a, const Traffic& b) {
    return a.is_asked_for == b.is_asked_for ? a.wire_bytes > b.wire_bytes : b.is_asked_for;
  });
  return groups;
}

std::string traffic_text(const std::vector<Traffic>& traffic) {
  std::size_t bytes = 0;
  for (const Traffic& one : traffic) bytes += one.wire_bytes;
  std::string text = fmt::format("\neach device sends {}\n", human_bytes(bytes));
  if (traffic.empty()) return text;
  const std::vector<Traffic> groups = of_like_scopes(traffic);
  const std::size_t listed = std::min(groups.size(), kMostGroups);
  TextTable table({"bytes", "asked for", "collective", "over", "tensors", "scope", "the largest"});
  for (const Traffic& one : std::span(groups).first(listed)) {
    table.add({human_bytes(one.wire_bytes), one.is_asked_for ? "yes" : "no",
               std::string(name(one.kind)), fmt::format("{}", fmt::join(one.axes, "+")),
               std::to_string(one.tensors), shown(one.scope), shown(one.largest)});
    bytes -= one.wire_bytes;
  }
  text += table.to_string();
  for (const Traffic& one : std::span(groups).first(listed)) {
    if (one.is_asked_for) continue;
    text += fmt::format("not asked for: {} for {}\n", name(one.kind), shown(one.needed_by));
  }
  if (listed < groups.size()) {
    text +=
        fmt::format("and {} more, of {} together\n", groups.size() - listed, human_bytes(bytes));
  }
  return text;
}

/// For a rate: "2.29 MB/s".
std::string megabytes(double bytes) { return fmt::format("{:.2f} MB", bytes * 1e-6); }

std::string storage_text(const StorageNeeds& needs, const StepReport& report,
                         const PageOptions& options) {
  const std::size_t state = needs.parameter_bytes + needs.optimizer_bytes;
  std::string text;
  if (state > 0) {
    text += fmt::format("checkpoint: {}", human_bytes(state));
    if (needs.optimizer_bytes > 0) {
      text += fmt::format(" ({} of parameters, {} of optimizer state)",
                          human_bytes(needs.parameter_bytes), human_bytes(needs.optimizer_bytes));
    }
    if (options.save_bytes_per_second > 0) {
      text += fmt::format(", saved in {:.1f} s at {}/s (modelled)",
                          static_cast<double>(state) / options.save_bytes_per_second,
                          megabytes(options.save_bytes_per_second));
    }
    text += fmt::format("; an asynchronous save holds {} on the host for each device\n",
                        human_bytes(needs.device_bytes));
  }
  if (needs.input_bytes > 0) {
    text += fmt::format("input: {} a step", human_bytes(needs.input_bytes));
    const double seconds = report.compute_seconds + report.collective_seconds;
    if (options.has_times && seconds > 0) {
      text += fmt::format(", {}/s at the modelled time",
                          megabytes(static_cast<double>(needs.input_bytes) / seconds));
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string_view FullestStep::Held::kind_name() const {
  return kind == MemoryKind::activation && is_backward ? kGradient : shardwise::name(kind);
}

std::vector<std::pair<std::string_view, std::size_t>> bytes_by_kind(const FullestStep& fullest,
                                                                    std::size_t peak_bytes) {
  std::vector<std::pair<std::string_view, std::size_t>> kinds;
  for (const MemoryKind kind :
       {MemoryKind::parameter, MemoryKind::optimizer, MemoryKind::loader, MemoryKind::array,
        MemoryKind::checkpoint, MemoryKind::activation}) {
    kinds.emplace_back(name(kind), 0);
  }
  for (const std::string_view other : {kGradient, name(MemoryKind::collective), kGaps}) {
    kinds.emplace_back(other, 0);
  }
  const auto of = [&](std::string_view kind) -> std::size_t& {
    return std::ranges::find(kinds, kind, &std::pair<std::string_view, std::size_t>::first)->second;
  };
  std::size_t sum = 0;
  for (const FullestStep::Held& held : fullest.held) {
    of(held.kind_name()) += held.bytes;
    sum += held.bytes;
  }
  of(kGaps) = peak_bytes - std::min(sum, peak_bytes);
  std::erase_if(kinds, [](const auto& kind) { return kind.second == 0; });
  return kinds;
}

std::string page(const Executable& executable, const StepReport& report,
                 const PageOptions& options) {
  const Mesh& mesh = executable.mesh();
  std::string text = detail::search_text(report, options);
  text += fmt::format("{}: {} operations on {} ({} devices)\n", shown(options.program),
                      executable.graph().nodes.size(), mesh.to_string(), mesh.size());
  text += memory_text(executable, report.memory.peak_bytes, options);
  text += traffic_text(traffic(executable));
  text += fmt::format("\n{:.3f} GFLOP in products, {:.3f} on one device\n",
                      report.model_flops * 1e-9, report.device_flops * 1e-9);
  if (options.has_times) {
    text += fmt::format("modelled on {}: {:.3f} ms computing, {:.3f} ms collectives ({})\n",
                        report.machine.name, report.compute_seconds * 1e3,
                        report.collective_seconds * 1e3, report.machine.source);
  }
  text += storage_text(storage_needs(executable), report, options);
  return text + detail::changes_text(options);
}

}  // namespace shardwise
