#include "shardwise/shard/notation/jax_text.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "shardwise/shard/detail/axis_ref.h"
#include "shardwise/shard/detail/scanner.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

constexpr const char* kPartitionSpec = "PartitionSpec";

std::string axis(detail::Scanner& in) {
  if (in.peek_number()) return std::to_string(in.number());
  if (!in.peek_quote()) in.fail("None, an axis name in quotes, an axis number or a tuple of these");
  const std::string_view name = in.quoted();
  detail::parse_axis_ref(name, kPartitionSpec);
  return std::string(name);
}

/// One dim. A tuple in a tuple is refused, as everywhere.
PartitionSpec::Entry entry(detail::Scanner& in) {
  if (in.accept("None")) return {};
  if (!in.accept("(")) return {axis(in)};
  PartitionSpec::Entry axes;
  while (!in.accept(")")) {
    axes.push_back(axis(in));
    if (!in.accept(",") && !in.peek(")")) in.fail("',' or ')'");
  }
  return axes;
}

void refuse_keywords(detail::Scanner& in) {
  for (const char* word : {"UNCONSTRAINED", "P.UNCONSTRAINED", "unreduced", "reduced"}) {
    if (!in.peek(word)) continue;
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: {} says nothing of where a tensor lies; needed is None, an axis or "
                    "a tuple of axes per dim",
                    kPartitionSpec, word));
  }
}

}  // namespace

std::string to_jax_text(const PartitionSpec& spec) {
  std::string text = "P(";
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    if (dim > 0) text += ", ";
    const PartitionSpec::Entry& axes = spec[dim];
    if (axes.empty()) {
      text += "None";
    } else if (axes.size() == 1) {
      text += fmt::format("'{}'", axes[0]);
    } else {
      text += fmt::format("('{}')", fmt::join(axes, "', '"));
    }
  }
  return text + (spec.rank() == 1 ? ",)" : ")");
}

PartitionSpec parse_jax_text(std::string_view text) {
  detail::Scanner in(kPartitionSpec, text);
  if (!in.accept("PartitionSpec")) in.accept("P");
  in.expect("(");
  std::vector<PartitionSpec::Entry> entries;
  while (!in.accept(")")) {
    refuse_keywords(in);
    entries.push_back(entry(in));
    if (!in.accept(",") && !in.peek(")")) in.fail("',' or ')'");
  }
  in.expect_end();
  return PartitionSpec(std::move(entries));
}

}  // namespace shardwise
