#include "shardwise/shard/partition_spec.h"

#include <fmt/format.h>

#include <ostream>

#include "shardwise/shard/detail/axis_ref.h"
#include "shardwise/shard/detail/jax_spec.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {

PartitionSpec PartitionSpec::replicated(std::size_t rank) {
  return PartitionSpec(std::vector<Entry>(rank));
}

PartitionSpec PartitionSpec::padded(std::size_t rank) const {
  if (this->rank() > rank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("spec \"{}\": it has {} dims; needed are at most {}", to_string(),
                            this->rank(), rank));
  }
  std::vector<Entry> entries = entries_;
  entries.resize(rank);
  return PartitionSpec(std::move(entries));
}

PartitionSpec PartitionSpec::parse(std::string_view text) {
  std::vector<Entry> entries;
  const std::string_view trimmed = trim(text);
  if (trimmed.empty()) return PartitionSpec(entries);
  for (const char* start : {"P(", "(", "PartitionSpec("}) {
    if (trimmed.starts_with(start)) return detail::parse_jax_spec(trimmed);
  }
  for (const std::string_view part : split(text, ',')) {
    Entry& entry = entries.emplace_back();
    if (trim(part) == "-") continue;
    for (const std::string_view padded : split(part, '+')) {
      const std::string_view axis = trim(padded);
      const std::string_view name = axis.substr(0, axis.find(':'));
      const std::size_t bad = name.find_first_of(kReservedInAxisNames);
      if (axis.empty() || bad != std::string_view::npos) {
        const char* const at = axis.empty() ? padded.data() : axis.data() + bad;
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("spec \"{}\": it has {} at character {}; needed are axis "
                                "names or \"-\" for each dim, as in \"data,-,a+b\"",
                                text, axis.empty() ? "no axis" : fmt::format("'{}'", axis[bad]),
                                at - text.data()));
      }
      detail::parse_axis_ref(axis, fmt::format("spec \"{}\"", text));
      entry.emplace_back(axis);
    }
  }
  return PartitionSpec(std::move(entries));
}

PartitionSpec::Entry PartitionSpec::dim_of_text(std::string_view text) {
  const PartitionSpec spec = parse(text);
  if (spec.rank() == 1) return spec[0];
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("spec {{\"{}\"}}: found {} dims in the text of one, needed the text alone, "
                  "or each dim as a text of its own",
                  text, spec.rank()));
}

std::string PartitionSpec::to_string() const {
  std::string text;
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    const Entry& entry = entries_[dim];
    if (dim > 0) text += ',';
    text += entry.empty() ? "-" : fmt::format("{}", fmt::join(entry, "+"));
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const PartitionSpec& spec) {
  return out << spec.to_string();
}

}  // namespace shardwise
