#include "shardwise/runtime/spmd/detail/plans/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A number of a layer in a label: "layers.3.wq", "layer3/wq", "h_3_wq"; not that of "w1".
struct Number {
  std::size_t begin, end;
};

/// The numbers of a label that are followed by more text.
std::vector<Number> layer_numbers(std::string_view label) {
  std::vector<Number> numbers;
  for (std::size_t i = 0; i < label.size(); ++i) {
    if (!is_digit(label[i])) continue;
    std::size_t end = i;
    while (end < label.size() && is_digit(label[end])) ++end;
    if (end < label.size() && !is_letter(label[end])) numbers.push_back({i, end});
    i = end;
  }
  return numbers;
}

std::string with_star(std::string_view label, const Number& number) {
  return std::string(label.substr(0, number.begin)) + '*' + std::string(label.substr(number.end));
}

/// The label up to and including a number: one layer.
std::string_view layer_of(std::string_view label, const Number& number) {
  return label.substr(0, number.end);
}

/// Layers that hold at least two matrices: a chain of single ones is not cut uniformly.
std::set<std::string_view> blocks_of(const Graph& graph) {
  std::map<std::string_view, int> matrices;
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != MemoryKind::parameter || graph.node(input.node).type.shape.size() < 2) {
      continue;
    }
    for (const Number& number : layer_numbers(input.label)) {
      ++matrices[layer_of(input.label, number)];
    }
  }
  std::set<std::string_view> blocks;
  for (const auto& [layer, count] : matrices) {
    if (count >= 2) blocks.insert(layer);
  }
  return blocks;
}

/// The label with the numbers of its layers left out.
std::string layers_name(std::string_view label, const std::set<std::string_view>& blocks) {
  std::string name(label);
  const std::vector<Number> numbers = layer_numbers(label);
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (blocks.contains(layer_of(label, *number))) name = with_star(name, *number);
  }
  return name;
}

/// The same with all numbers left out.
std::string without_layers(std::string_view label) {
  std::string name(label);
  const std::vector<Number> numbers = layer_numbers(label);
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    name = with_star(name, *number);
  }
  return name;
}

std::size_t common_end(std::string_view a, std::string_view b) {
  std::size_t count = 0;
  while (count < std::min(a.size(), b.size()) &&
         a[a.size() - 1 - count] == b[b.size() - 1 - count]) {
    ++count;
  }
  return count;
}

/// The parameter of the same shape whose label has the longest common ending, of at least a name.
std::optional<std::size_t> parameter_of(const Graph& graph, std::size_t state) {
  const GraphInput& input = graph.inputs[state];
  std::size_t most = 0;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& other = graph.inputs[i];
    if (other.kind != MemoryKind::parameter ||
        graph.node(other.node).type.shape != graph.node(input.node).type.shape) {
      continue;
    }
    const std::size_t common = common_end(input.label, other.label);
    if (common > most) {
      most = common;
      best = i;
    }
  }
  return best;
}

/// A simple pattern that matches these inputs and no others; absent if there is no such pattern.
std::optional<std::string> pattern_of(const Graph& graph, const std::vector<std::size_t>& inputs) {
  const std::string& first = graph.inputs[inputs.front()].label;
  std::vector<std::string> patterns{first};
  for (const Number& number : layer_numbers(first)) patterns.push_back(with_star(first, number));
  patterns.push_back(without_layers(first));
  for (std::size_t i = 0, count = patterns.size(); i < count; ++i) {
    patterns.push_back('*' + patterns[i]);
  }
  for (const std::string& pattern : patterns) {
    std::size_t next = 0;
    bool is_it = true;
    for (std::size_t i = 0; i < graph.inputs.size() && is_it; ++i) {
      const bool wanted = next < inputs.size() && inputs[next] == i;
      next += wanted ? 1 : 0;
      is_it = match_pattern(pattern, graph.inputs[i].label).has_value() == wanted;
    }
    if (is_it) return pattern;
  }
  return std::nullopt;
}

void add_specs(const Shape& shape, const std::vector<std::size_t>& dims, const Mesh& mesh,
               std::size_t axis, std::vector<PartitionSpec::Entry>& entries,
               std::vector<std::int64_t>& parts, std::size_t most,
               std::vector<PartitionSpec>& specs) {
  if (specs.size() == most) return;
  if (axis == mesh.rank()) {
    specs.emplace_back(entries);
    return;
  }
  add_specs(shape, dims, mesh, axis + 1, entries, parts, most, specs);
  const Axis& one = mesh.axes()[axis];
  if (one.size == 1) return;
  for (const std::size_t dim : dims) {
    if (shape[dim] == 0 || shape[dim] % (parts[dim] * one.size) != 0) continue;
    entries[dim].push_back(one.name);
    parts[dim] *= one.size;
    add_specs(shape, dims, mesh, axis + 1, entries, parts, most, specs);
    entries[dim].pop_back();
    parts[dim] /= one.size;
  }
}

}  // namespace

std::vector<InputGroup> input_groups(const Graph& graph, Layers layers) {
  const std::set<std::string_view> blocks =
      layers == Layers::together ? blocks_of(graph) : std::set<std::string_view>();
  std::vector<InputGroup> groups;
  std::map<std::string, std::size_t> known;
  std::vector<std::size_t> group_of(graph.inputs.size(), SIZE_MAX);
  const auto add = [&](std::size_t i, const std::string& name) {
    const TensorType& type = graph.node(graph.inputs[i].node).type;
    const auto [at, is_new] = known.emplace(name + to_string(type.shape), groups.size());
    if (is_new) groups.push_back({{}, type, graph.inputs[i].kind == MemoryKind::loader});
    groups[at->second].inputs.push_back(i);
    group_of[i] = at->second;
  };
  const auto is_cut = [&](std::size_t i) {
    return !graph.node(graph.inputs[i].node).type.shape.empty();
  };
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const MemoryKind kind = graph.inputs[i].kind;
    if (!is_cut(i) || (kind != MemoryKind::parameter && kind != MemoryKind::loader)) continue;
    add(i, layers_name(graph.inputs[i].label, blocks));
  }
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    if (!is_cut(i) || graph.inputs[i].kind != MemoryKind::optimizer) continue;
    if (const auto parameter = parameter_of(graph, i)) {
      groups[group_of[*parameter]].inputs.push_back(i);
    } else {
      add(i, layers_name(graph.inputs[i].label, blocks));
    }
  }
  return groups;
}

std::vector<std::string> mark_texts(const Graph& graph, const std::vector<std::size_t>& inputs,
                                    const PartitionSpec& spec) {
  std::vector<std::size_t> sorted = inputs;
  std::ranges::sort(sorted);
  if (const auto pattern = pattern_of(graph, sorted)) {
    return {*pattern + '=' + spec.to_string()};
  }
  // Inputs of a kind, and those with one beginning, which a pattern may match.
  std::map<std::tuple<MemoryKind, std::string>, std::vector<std::size_t>> parts;
  for (const std::size_t i : sorted) {
    parts[{graph.inputs[i].kind, without_layers(graph.inputs[i].label)}].push_back(i);
  }
  std::vector<std::string> texts;
  for (const auto& [key, part] : parts) {
    if (const auto pattern = pattern_of(graph, part)) {
      texts.push_back(*pattern + '=' + spec.to_string());
      continue;
    }
    for (const std::size_t i : part) {
      texts.push_back(graph.inputs[i].label + '=' + spec.to_string());
    }
  }
  return texts;
}

std::shared_ptr<const Graph> with_marks(const Graph& graph, const std::vector<InputGroup>& groups,
                                        const Marks& marks) {
  auto marked = std::make_shared<Graph>(graph);
  std::vector<std::optional<PartitionSpec>> specs(graph.inputs.size());
  for (const GroupMark& mark : marks) {
    for (const std::size_t input : groups[mark.group].inputs) specs[input] = mark.spec;
  }
  mark_inputs(*marked, specs);
  return marked;
}

std::vector<std::string> mark_texts(const Graph& graph, const std::vector<InputGroup>& groups,
                                    const Marks& marks) {
  std::vector<std::string> all;
  for (const GroupMark& mark : marks) {
    for (std::string& text : mark_texts(graph, groups[mark.group].inputs, mark.spec)) {
      all.push_back(std::move(text));
    }
  }
  return all;
}

std::vector<PartitionSpec> even_specs(const Shape& shape, const Mesh& mesh, std::size_t most) {
  std::vector<std::size_t> dims(shape.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::ranges::stable_sort(dims, [&](std::size_t a, std::size_t b) { return shape[a] > shape[b]; });
  const auto choices = [&] {
    std::size_t count = 1;
    for (const Axis& axis : mesh.axes()) count *= axis.size > 1 ? dims.size() + 1 : 1;
    return count;
  };
  while (dims.size() > 1 && choices() > most) dims.pop_back();
  std::ranges::sort(dims);
  std::vector<PartitionSpec> specs;
  std::vector<PartitionSpec::Entry> entries(shape.size());
  std::vector<std::int64_t> parts(shape.size(), 1);
  add_specs(shape, dims, mesh, 0, entries, parts, most, specs);
  return specs;
}

}  // namespace shardwise::detail
