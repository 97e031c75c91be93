#include "commands/name_tree.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "parse.h"
#include "shardwise/shard/box.h"

namespace shardwise::tools {
namespace {

/// Takes a run of digits off the front, without zeros in front of it.
std::string_view take_digits(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

/// Numbers in names count as numbers.
struct NaturalLess {
  bool operator()(std::string_view a, std::string_view b) const {
    const std::string_view whole_a = a, whole_b = b;
    while (!a.empty() && !b.empty()) {
      const bool digits = std::isdigit(static_cast<unsigned char>(a[0])) != 0 &&
                          std::isdigit(static_cast<unsigned char>(b[0])) != 0;
      if (digits) {
        const std::string_view one = take_digits(a), other = take_digits(b);
        if (one.size() != other.size()) return one.size() < other.size();
        if (one != other) return one < other;
        continue;
      }
      if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]);
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
    if (a.empty() != b.empty()) return a.empty();
    return whole_a < whole_b;
  }
};

struct Node {
  const TensorInfo* tensor = nullptr;
  TensorTotals totals;
  std::map<std::string, Node, NaturalLess> parts;
};

void add(Node& root, const TensorInfo& tensor) {
  Node* at = &root;
  at->totals.add(tensor);
  std::string_view rest = tensor.name;
  while (!rest.empty()) {
    const std::size_t split = std::min(rest.find_first_of("./"), rest.size() - 1) + 1;
    at = &at->parts[std::string(rest.substr(0, split))];
    at->totals.add(tensor);
    rest.remove_prefix(split);
  }
  at->tensor = &tensor;
}

void list(const Node& node, int level, std::int64_t depth, std::vector<TreeLine>& lines) {
  if (level == depth) return;
  for (const auto& [part, first] : node.parts) {
    std::string name = part;
    const Node* child = &first;
    while (child->tensor == nullptr && child->parts.size() == 1) {
      name += child->parts.begin()->first;
      child = &child->parts.begin()->second;
    }
    if (child->tensor != nullptr) {
      TensorTotals totals;
      totals.add(*child->tensor);
      lines.push_back({level, name, child->tensor, totals});
    }
    if (child->parts.empty()) continue;
    lines.push_back({level, name, nullptr, child->totals});
    list(*child, level + 1, depth, lines);
  }
}

}  // namespace

void TensorTotals::add(const TensorInfo& tensor) {
  ++tensors;
  elements += Box::whole(tensor.shape).num_elements();
  logical_bytes += tensor.logical_bytes;
  if (!knows_pieces(tensor)) stored_bytes.reset();
  if (stored_bytes) *stored_bytes += tensor.stored_bytes;
}

std::vector<TreeLine> name_tree(std::span<const TensorInfo> tensors, std::int64_t depth) {
  Node root;
  for (const TensorInfo& tensor : tensors) add(root, tensor);
  std::vector<TreeLine> lines;
  list(root, 0, depth, lines);
  return lines;
}

}  // namespace shardwise::tools
