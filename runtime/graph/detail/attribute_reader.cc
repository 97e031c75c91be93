#include "shardwise/runtime/graph/detail/attribute_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

#include "shardwise/runtime/graph/detail/attribute_fields.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

/// Reads the fields of attribute_fields.h.
class FieldReader {
 public:
  FieldReader(LineReader& line, DType dtype, const LiteralsByHash& literals,
              std::span<const std::shared_ptr<const Graph>> bodies)
      : line_(line), dtype_(dtype), literals_(literals), bodies_(bodies) {}

  void list(std::string_view name, Dims& dims) {
    dims = {};
    if (line_.take(fmt::format("{}=[", name))) dims = line_.list();
  }

  void numbers(std::string_view name, std::same_as<std::int64_t> auto&... values) {
    line_.need(fmt::format("{}=[", name));
    const Dims found = line_.list();
    if (found.size() != sizeof...(values)) {
      throw Error(ErrorCode::invalid_argument, fmt::format("found {}={}, needed a list of {}", name,
                                                           to_string(found), sizeof...(values)));
    }
    std::size_t i = 0;
    ((values = found[i++]), ...);
  }

  void number(Scalar& number) {
    const std::string_view word = line_.word();
    const std::optional<Scalar> read = Scalar::parse(word, dtype_);
    if (!read) LineReader(word).fail(fmt::format("a number of {}", name(dtype_)));
    number = *read;
  }

  void number_but_zero(Scalar& zero) {
    zero = {};
    if (!line_.is_done()) number(zero);
  }

  void literal(LiteralAttributes& a) {
    const std::string_view word = line_.word();
    std::uint64_t hash = 0;
    const char* const end = word.data() + word.size();
    if (word.size() != 16 || std::from_chars(word.data(), end, hash, 16).ptr != end) {
      LineReader(word).fail("the hash of a literal, 16 hexadecimal digits");
    }
    const auto found = literals_.find(hash);
    if (found == literals_.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("found the literal {}, needed one of the {} that are given", word,
                              literals_.size()));
    }
    a = found->second;
  }

  void text(Equation& equation) { equation = Equation::parse(line_.quoted_text()); }
  void text(PartitionSpec& spec) { spec = PartitionSpec::parse(line_.quoted_text()); }
  void text(std::vector<std::string>& axes) {
    axes.clear();
    const std::string joined = line_.quoted_text();
    if (joined.empty()) return;
    for (const std::string_view axis : split(joined, '+')) axes.emplace_back(axis);
  }

  void dtype(std::string_view word, std::optional<DType>& dtype) {
    dtype.reset();
    if (take_word(word)) dtype = parse_dtype(line_.word());
  }

  void count(std::string_view name, std::int64_t& number) {
    number = line_.take(fmt::format("{}=", name)) ? line_.number() : 1;
  }

  template <class Enumerator>
  void word(Enumerator& enumerator, std::span<const std::string_view> words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!words[i].empty() && !take_word(words[i])) continue;
      enumerator = static_cast<Enumerator>(i);
      if (!words[i].empty()) return;  // the empty word is the fallback
    }
    const bool may_lack = std::ranges::find(words, "") != words.end();
    if (!may_lack) line_.fail(fmt::format("one of {}", fmt::join(words, ", ")));
  }

  void flag(std::string_view word, bool& is_set) { is_set = take_word(word); }

  void body(std::shared_ptr<const Graph>& graph) {
    if (bodies_.empty()) {
      throw Error(ErrorCode::invalid_argument, "found no body, needed one in braces");
    }
    graph = bodies_.front();
    bodies_ = bodies_.subspan(1);
  }

  /// Throws invalid_argument if not all bodies were used.
  void end() const {
    if (bodies_.empty()) return;
    throw Error(ErrorCode::invalid_argument, "found a body, needed none");
  }

 private:
  bool take_word(std::string_view word) {
    LineReader ahead = line_;
    if (ahead.word() != word) return false;
    line_ = ahead;
    return true;
  }

  LineReader& line_;
  const DType dtype_;
  const LiteralsByHash& literals_;
  std::span<const std::shared_ptr<const Graph>> bodies_;
};

}  // namespace

void read_attributes(LineReader& line, DType dtype, const LiteralsByHash& literals,
                     std::span<const std::shared_ptr<const Graph>> bodies, Attributes& attributes) {
  FieldReader fields(line, dtype, literals, bodies);
  std::visit([&](auto& a) { visit(fields, a); }, attributes);
  fields.end();
}

}  // namespace shardwise::detail
