#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardwise/runtime/graph/detail/attribute_reader.h"
#include "shardwise/runtime/graph/detail/line_reader.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

using detail::LineReader;

// A node takes a hundred times the memory of its text.
constexpr std::size_t kMostNodesRead = 1'000'000, kMostOperandsRead = 65'536;

// Of an error's message.
constexpr std::size_t kMostMessageBytes = 1000;

[[noreturn]] void refuse_text(const std::string& found_and_needed) {
  throw Error(ErrorCode::invalid_argument, found_and_needed);
}

Op op_of(std::string_view word) {
  static const auto all = [] {
    std::unordered_map<std::string_view, Op> ops;
    for (std::size_t i = 0; i < kOps; ++i) {
      ops.emplace(name(static_cast<Op>(i)), static_cast<Op>(i));
    }
    return ops;
  }();
  if (const auto found = all.find(word); found != all.end()) return found->second;
  std::vector<std::string_view> names;
  names.reserve(kOps);
  for (const auto& [known, op] : all) names.push_back(known);
  std::ranges::sort(names);
  const std::vector<std::string_view> nearest = nearest_names(names, word.substr(0, 64));
  LineReader(word).fail(nearest.empty() ? "an operation"
                                        : fmt::format("{}", fmt::join(nearest, " or ")));
}

MemoryKind kind_of(std::string_view word) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kMemoryKinds; ++i) {
    names.push_back(name(static_cast<MemoryKind>(i)));
    if (names.back() == word) return static_cast<MemoryKind>(i);
  }
  LineReader(word).fail(fmt::format("one of {}", fmt::join(names, ", ")));
}

/// "f32[8, 4]"
TensorType read_type(LineReader& line) {
  TensorType type{parse_dtype(line.before("[ ")), {}};
  line.need("[");
  type.shape = line.list();
  return type;
}

/// Where the type begins: behind the first " : " that is not in quotes.
std::size_t type_at(std::string_view line) {
  bool in_quotes = false;
  for (std::size_t i = 0; i + 2 < line.size(); ++i) {
    if (line[i] == '"') in_quotes = !in_quotes;
    if (in_quotes && line[i] == '\\') ++i;
    if (!in_quotes && line.substr(i, 3) == " : ") return i + 3;
  }
  refuse_text("found no type, needed \" : \" and one such as f32[8, 4]");
}

/// What stands after a node's operands and attributes.
struct NodeFacts {
  TensorType type;
  std::optional<PartitionSpec> mark = {};
  std::optional<MemoryKind> kind = {};
  bool backward = false, is_saved = false;
  std::int32_t block = 0;
  std::string scope = {};
};

PartitionSpec read_mark(LineReader& line, std::size_t rank) {
  const std::string_view word = line.word();
  PartitionSpec mark = PartitionSpec::parse(word == "\"\"" ? "" : word);
  if (mark.rank() != rank) {
    LineReader(word).fail(fmt::format("a mark of {} dims, those of the tensor", rank));
  }
  return mark;
}

NodeFacts read_facts(LineReader line) {
  NodeFacts facts{.type = read_type(line)};
  constexpr std::string_view kKind = "kind=", kBlock = "block=";
  while (!line.is_done()) {
    if (line.take("#")) {
      facts.scope = detail::unescaped(trim(line.rest()));
      break;
    }
    LineReader next = line;
    const std::string_view word = line.word();
    if (word == "marked" && !facts.mark) {
      facts.mark = read_mark(line, facts.type.shape.size());
    } else if (word.starts_with(kKind) && !facts.kind) {
      facts.kind = kind_of(word.substr(kKind.size()));
    } else if (word == "backward" && !facts.backward) {
      facts.backward = true;
    } else if (word == "saved" && !facts.is_saved) {
      facts.is_saved = true;
    } else if (word.starts_with(kBlock) && facts.block == 0) {
      LineReader number(word.substr(kBlock.size()));
      const std::int64_t block = number.number();
      if (block < 1 || block > std::numeric_limits<std::int32_t>::max() || !number.is_done()) {
        next.fail("a block from 1 on");
      }
      facts.block = static_cast<std::int32_t>(block);
    } else {
      next.fail("marked, kind=, backward, block=, saved, each once, or # and a scope");
    }
  }
  return facts;
}

/// Makes a graph of its text, line by line.
class GraphReader {
 public:
  explicit GraphReader(std::span<const LiteralAttributes> literals) {
    for (const LiteralAttributes& literal : literals) literals_.emplace(literal.hash(), literal);
    scopes_.emplace("", 0);
  }

  Graph read(std::string_view text) {
    std::size_t number = 0;
    while (!text.empty()) {
      ++number;
      const std::size_t end = text.find('\n');
      const std::string_view line = trim(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (line.empty() || line.starts_with('#')) continue;
      try {
        add(line);
      } catch (const Error& error) {
        throw Error(error, message(fmt::format("line {}: {}", number, error.what())));
      }
    }
    if (!has_returned_) {
      refuse_text(fmt::format("read a program: line {}: found the end, needed a line with return",
                              number + 1));
    }
    graph_.scope = 0;
    graph_.backward = false;
    return std::move(graph_);
  }

 private:
  /// One line of a length that can be shown, whatever texts from outside it holds.
  static std::string message(std::string_view what) {
    std::string text = "read a program: ";
    for (const char c : what.substr(0, kMostMessageBytes)) {
      text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
    return text;
  }

  void add(std::string_view text) {
    LineReader line(text);
    if (has_returned_) line.fail("nothing after the line with return");
    LineReader ahead = line;
    if (ahead.word() == "return") {
      line = ahead;
      while (!line.is_done()) graph_.outputs.push_back(node_before(line));
      has_returned_ = true;
      return;
    }
    if (graph_.nodes.size() == kMostNodesRead) {
      refuse_text(fmt::format("found more nodes, needed at most {}", kMostNodesRead));
    }
    const std::size_t at = type_at(text);
    NodeFacts facts = read_facts(LineReader(text.substr(at)));
    add_node(LineReader(text.substr(0, at - 3)), std::move(facts));
  }

  /// "%3", which must be there.
  NodeId node_before(LineReader& line) {
    LineReader start = line;
    line.need("%");
    const NodeId id = line.count("the number of a node");
    if (as_size(id) >= graph_.nodes.size()) start.fail("a node of a line before");
    return id;
  }

  void add_node(LineReader line, NodeFacts facts) {
    LineReader start = line;
    const std::string own = fmt::format("%{}", graph_.nodes.size());
    if (!line.take(own) || !line.take("=")) start.fail('"' + own + " =\" and an operation");
    const Op op = op_of(trim(line.before("( ")));
    line.need("(");
    std::vector<NodeRef> operands;
    while (!line.take(")")) {
      if (!operands.empty()) line.need(",");
      if (operands.size() == kMostOperandsRead)
        line.fail(fmt::format("{} operands at most", operands.size()));
      operands.push_back({&graph_, node_before(line)});
    }
    graph_.scope = scope_of(facts.scope);
    graph_.backward = facts.backward;
    if (op == Op::input) {
      append_input(graph_, facts.type, line.quoted_text(), facts.kind.value_or(MemoryKind::array));
    } else {
      Attributes attributes = row(op).empty_attributes();
      detail::read_attributes(line, facts.type.dtype, literals_, attributes);
      append({&graph_, 0}, op, operands, std::move(attributes), facts.type);
    }
    if (!line.is_done()) line.fail("no more before the type");
    if (op == Op::input && !operands.empty())
      refuse_text("found operands of an input, needed none");
    if (op != Op::input && facts.kind) {
      refuse_text(
          fmt::format("found kind={} of {}, needed it of an input", name(*facts.kind), name(op)));
    }
    Node& node = graph_.nodes.back();
    if (!(node.type == facts.type)) {
      refuse_text(fmt::format("found the type {}, needed {}, which the operands give",
                              to_string(facts.type), to_string(node.type)));
    }
    node.mark = std::move(facts.mark);
    node.block = facts.block;
    node.is_saved = facts.is_saved;
    graph_.blocks = std::max(graph_.blocks, facts.block);
  }

  std::int32_t scope_of(const std::string& path) {
    const auto [at, is_new] =
        scopes_.emplace(path, static_cast<std::int32_t>(graph_.scopes.size()));
    if (is_new) graph_.scopes.push_back(path);
    return at->second;
  }

  Graph graph_;
  detail::LiteralsByHash literals_;
  std::unordered_map<std::string, std::int32_t> scopes_;
  bool has_returned_ = false;
};

}  // namespace

Graph parse_graph(std::string_view text, std::span<const LiteralAttributes> literals) {
  return GraphReader(literals).read(text);
}

}  // namespace shardwise
