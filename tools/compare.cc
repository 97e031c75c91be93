#include "compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

std::string difference(const TensorDiff& tensor) {
  if (!tensor.first_dtype) return "the source has no such tensor";
  if (!tensor.second_dtype) return "it was not written";
  if (tensor.first_shape != tensor.second_shape || tensor.first_dtype != tensor.second_dtype) {
    return fmt::format("found {} {}, needed {} {}", name(*tensor.second_dtype),
                       to_string(tensor.second_shape), name(*tensor.first_dtype),
                       to_string(tensor.first_shape));
  }
  return fmt::format("{} of {} elements differ, first at {}: found {}, needed {}", tensor.differing,
                     tensor.elements, tensor.at ? to_string(*tensor.at) : "?", tensor.second_value,
                     tensor.first_value);
}

}  // namespace

void check_equal(const BoxReader& source, const BoxReader& written, std::string_view name,
                 const shardwise::DiffOptions& options) {
  const DiffReport report = diff(source, written, options);
  const auto first = std::find_if(report.tensors.begin(), report.tensors.end(),
                                  [](const TensorDiff& tensor) { return !tensor.equal(); });
  if (first == report.tensors.end()) return;
  const auto differing = std::count_if(report.tensors.begin(), report.tensors.end(),
                                       [](const TensorDiff& tensor) { return !tensor.equal(); });
  throw Error(ErrorCode::corrupt,
              fmt::format("verify {}: {} of {} tensors are not as in the source; tensor {:?}: {}",
                          name, differing, report.tensors.size(), first->name, difference(*first)));
}

}  // namespace shardwise::tools
