#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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

// A node takes a hundred times the memory of its text. Nodes are counted together with those of
// bodies, which are read recursively.
constexpr std::size_t kMostNodesRead = 1'000'000, kMostOperandsRead = 65'536,
                      kMostBodiesInBodies = 8;

/// Between two bodies of a node, and after the last.
constexpr std::string_view kOtherBody = "} else {", kBodyEnd = "}";

// Largest size of an error's message.
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

/// The place of the type: after the first " : " that is not in quotes.
std::size_t type_at(std::string_view line) {
  bool in_quotes = false;
  for (std::size_t i = 0; i + 2 < line.size(); ++i) {
    if (line[i] == '"') in_quotes = !in_quotes;
    if (in_quotes && line[i] == '\\') ++i;
    if (!in_quotes && line.substr(i, 3) == " : ") return i + 3;
  }
  refuse_text("found no type, needed \" : \" and one such as f32[8, 4]");
}

/// The text after a node's operands and attributes.
struct NodeFacts {
  TensorType type;
  std::optional<PartitionSpec> mark = {};
  std::optional<MemoryKind> kind = {};
  bool backward = false, is_saved = false, has_body = false;
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
    if (facts.has_body) next.fail("# and a scope, or no more before the body");
    const std::string_view word = line.word();
    if (word == "{") {
      facts.has_body = true;
    } else if (word == "marked" && !facts.mark) {
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
      next.fail("marked, kind=, backward, block=, saved, each once, { or # and a scope");
    }
  }
  return facts;
}

/// The lines of a text that are not empty or comments, and state shared by a graph and its bodies.
class Lines {
 public:
  Lines(std::string_view text, std::span<const LiteralAttributes> literals) : rest_(text) {
    for (const LiteralAttributes& literal : literals) literals_.emplace(literal.hash(), literal);
  }

  /// Absent at the end.
  std::optional<std::string_view> next() {
    while (!rest_.empty()) {
      ++number_;
      const std::size_t end = rest_.find('\n');
      const std::string_view line = trim(rest_.substr(0, end));
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
      if (!line.empty() && !line.starts_with('#')) return line;
    }
    ++number_;
    return std::nullopt;
  }

  /// Number of the current line, for messages.
  std::size_t number() const { return number_; }
  void go_back_to(std::size_t number) { message_number_ = number; }
  void go_on() { message_number_.reset(); }
  std::size_t message_number() const { return message_number_.value_or(number_); }

  void count_node() {
    if (++nodes_ > kMostNodesRead) {
      refuse_text(fmt::format("found more nodes, needed at most {}", kMostNodesRead));
    }
  }

  const detail::LiteralsByHash& literals() const { return literals_; }

 private:
  std::string_view rest_;
  std::size_t number_ = 0, nodes_ = 0;
  std::optional<std::size_t> message_number_;
  detail::LiteralsByHash literals_;
};

/// Makes a graph from its text, line by line.
class GraphReader {
 public:
  explicit GraphReader(Lines& lines, std::size_t depth = 0) : lines_(lines), depth_(depth) {
    scopes_.emplace("", 0);
  }

  /// Reads up to the end, which a body has in a line of its own.
  Graph read() {
    while (const std::optional<std::string_view> line = lines_.next()) {
      if (depth_ > 0 && has_returned_ && (line == kBodyEnd || line == kOtherBody)) {
        is_followed_ = line == kOtherBody;
        return take();
      }
      add(*line);
    }
    if (depth_ > 0 && has_returned_) refuse_text("found the end, needed a line with }");
    if (!has_returned_) refuse_text("found the end, needed a line with return");
    return take();
  }

  /// True if another body follows the one just read.
  bool is_followed() const { return is_followed_; }

 private:
  Graph take() { return std::move(static_cast<Graph&>(graph_)); }

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
    lines_.count_node();
    const std::size_t at = type_at(text);
    NodeFacts facts = read_facts(LineReader(text.substr(at)));
    if (facts.has_body) {
      const std::size_t number = lines_.number();
      read_bodies();
      lines_.go_back_to(number);
    }
    add_node(LineReader(text.substr(0, at - 3)), std::move(facts));
    lines_.go_on();
    bodies_.clear();
  }

  void read_bodies() {
    if (depth_ == kMostBodiesInBodies) {
      refuse_text(fmt::format("found a body in more bodies, needed at most {}", depth_));
    }
    bool is_next = true;
    while (is_next) {
      GraphReader body(lines_, depth_ + 1);
      bodies_.push_back(std::make_shared<const Graph>(body.read()));
      is_next = body.is_followed();
    }
  }

  /// "%3", which must exist already.
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
      detail::read_attributes(line, facts.type.dtype, lines_.literals(), bodies_, attributes);
      append({&graph_, 0}, op, operands, std::move(attributes), facts.type);
    }
    if (!line.is_done()) line.fail("no more before the type");
    if (op == Op::input && !operands.empty())
      refuse_text("found operands of an input, needed none");
    if (op == Op::input && !bodies_.empty()) refuse_text("found a body of an input, needed none");
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
  }

  std::int32_t scope_of(const std::string& path) {
    const auto [at, is_new] =
        scopes_.emplace(path, static_cast<std::int32_t>(graph_.scopes.size()));
    if (is_new) graph_.scopes.push_back(path);
    return at->second;
  }

  Lines& lines_;
  const std::size_t depth_;
  GraphBuilder graph_;
  std::vector<std::shared_ptr<const Graph>> bodies_;  ///< of the node that is read
  std::unordered_map<std::string, std::int32_t> scopes_;
  bool has_returned_ = false, is_followed_ = false;
};

/// One line of a length that can be shown, whatever text from outside it holds.
std::string message(std::string_view what) {
  std::string text = "read a program: ";
  for (const char c : what.substr(0, kMostMessageBytes)) {
    text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return text;
}

}  // namespace

Graph parse_graph(std::string_view text, std::span<const LiteralAttributes> literals) {
  Lines lines(text, literals);
  try {
    return GraphReader(lines).read();
  } catch (const Error& error) {
    throw Error(error, message(fmt::format("line {}: {}", lines.message_number(), error.what())));
  }
}

}  // namespace shardwise
