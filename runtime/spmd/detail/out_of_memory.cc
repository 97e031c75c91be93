#include "shardwise/runtime/spmd/detail/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace shardwise::detail {
namespace {

/// Values in a region have memory for some steps only; they are those of roots.
bool is_in_region(const MemoryPlan& plan, std::size_t value) {
  return plan.is_placed(value) && plan.lifetimes[value].first <= plan.lifetimes[value].last;
}

/// The first step where the regions hold most.
std::size_t fullest_step(const LoweredProgram& lowered, const MemoryPlan& plan) {
  std::vector<std::int64_t> change(lowered.program.steps().size() + 1, 0);
  for (std::size_t v = 0; v < plan.homes.size(); ++v) {
    if (!is_in_region(plan, v)) continue;
    const Lifetime& life = plan.lifetimes[v];
    change[as_size(life.first)] += static_cast<std::int64_t>(life.bytes);
    change[as_size(life.last) + 1] -= static_cast<std::int64_t>(life.bytes);
  }
  std::int64_t in_use = 0, most = 0;
  std::size_t fullest = 0;
  for (std::size_t step = 0; step < change.size(); ++step) {
    in_use += change[step];
    if (in_use <= most) continue;
    most = in_use;
    fullest = step;
  }
  return fullest;
}

/// The tensors of one kind that have memory at a step.
struct OfKind {
  std::size_t bytes = 0, tensors = 0;
  const Program::Value* largest = nullptr;
  std::size_t largest_bytes = 0;

  void add(const Program::Value& value, std::size_t size) {
    bytes += size;
    ++tensors;
    if (largest != nullptr && size <= largest_bytes) return;
    largest = &value;
    largest_bytes = size;
  }
};

}  // namespace

std::string mebibytes(std::size_t bytes) {
  constexpr double kMiB = 1 << 20;
  if (bytes < 1 << 20) return fmt::format("{} bytes", bytes);
  return fmt::format("{:.2f} MiB ({} bytes)", static_cast<double>(bytes) / kMiB, bytes);
}

Fullest fullest(const Graph& graph, const LoweredProgram& lowered, const MemoryPlan& plan) {
  Fullest result{fullest_step(lowered, plan), {}};
  const auto add = [&](MemoryKind kind, std::size_t value) {
    if (plan.bytes[value] == 0) return;
    result.held.push_back({static_cast<Program::ValueId>(value), kind, plan.bytes[value]});
  };
  for (const Program::ValueId input : lowered.inputs) {
    add(lowered.program.value(input).kind, as_size(input));
  }
  for (std::size_t o = 0; o < lowered.outputs.size(); ++o) {
    const bool takes_memory = plan.is_made[o] && plan.donated[o] < 0;
    if (takes_memory) add(output_kind(graph, plan, o), as_size(lowered.outputs[o]));
  }
  for (std::size_t v = 0; v < plan.homes.size(); ++v) {
    if (!is_in_region(plan, v)) continue;
    const Lifetime& life = plan.lifetimes[v];
    const bool is_live = as_size(life.first) <= result.step && result.step <= as_size(life.last);
    if (is_live) add(lowered.program.values()[v].kind, v);
  }
  return result;
}

std::string out_of_memory(const Graph& graph, const LoweredProgram& lowered, const MemoryPlan& plan,
                          DeviceId device, const MemoryStats& memory, std::size_t needed_bytes) {
  std::string text = fmt::format(
      "run a program: device {}: found {} free, needed {}\n  in use are {} of {}\n", device,
      mebibytes(memory.capacity_bytes - memory.in_use_bytes), mebibytes(needed_bytes),
      mebibytes(memory.in_use_bytes), mebibytes(memory.capacity_bytes));
  const Fullest at = fullest(graph, lowered, plan);
  if (at.step < lowered.program.steps().size()) {
    text += fmt::format("  fullest at \"{}\"\n", name(lowered.program.steps()[at.step]));
  }
  std::array<OfKind, kMemoryKinds> kinds;
  for (const Fullest::Held& held : at.held) {
    kinds[static_cast<std::size_t>(held.kind)].add(lowered.program.value(held.value), held.bytes);
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const OfKind& kind = kinds[k];
    if (kind.tensors == 0) continue;
    const Program::Value& largest = *kind.largest;
    text += fmt::format("  {}: {} in {} tensor{}, the largest \"{}\" ({}{} cut as {}, {})\n",
                        name(static_cast<MemoryKind>(k)), mebibytes(kind.bytes), kind.tensors,
                        kind.tensors == 1 ? "" : "s", largest.label, name(largest.dtype),
                        to_string(largest.shape), largest.layout.short_text(),
                        mebibytes(kind.largest_bytes));
  }
  return text;
}

}  // namespace shardwise::detail
