#include <fmt/format.h>

#include "shardwise/shard/detail/jax_spec.h"
#include "shardwise/shard/notation/xla_text.h"

namespace shardwise {
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

PartitionSpec parse_jax_text(std::string_view text) { return detail::parse_jax_spec(text); }

}  // namespace shardwise
