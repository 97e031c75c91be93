#include "shardwise/shard/detail/jax_spec.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/detail/axis_ref.h"
#include "shardwise/shard/detail/scanner.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr const char* kPartitionSpec = "spec";

std::string axis(Scanner& in) {
  if (in.peek_number()) return std::to_string(in.number());
  if (!in.peek_quote()) in.fail("None, an axis name in quotes, an axis number or a tuple of these");
  const std::string_view name = in.quoted();
  parse_axis_ref(name, kPartitionSpec);
  return std::string(name);
}

/// One dim. A tuple in a tuple is refused, as everywhere.
PartitionSpec::Entry entry(Scanner& in) {
  if (in.accept("None")) return {};
  if (!in.accept("(")) return {axis(in)};
  PartitionSpec::Entry axes;
  while (!in.accept(")")) {
    axes.push_back(axis(in));
    if (!in.accept(",") && !in.peek(")")) in.fail("',' or ')'");
  }
  return axes;
}

void refuse_keywords(Scanner& in) {
  for (const char* word : {"UNCONSTRAINED", "P.UNCONSTRAINED", "unreduced", "reduced"}) {
    if (!in.peek(word)) continue;
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: {} says nothing about where a tensor is; needed is None, an axis or "
                    "a tuple of axes per dim",
                    kPartitionSpec, word));
  }
}

}  // namespace

PartitionSpec parse_jax_spec(std::string_view text) {
  Scanner in(kPartitionSpec, text);
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

}  // namespace shardwise::detail
