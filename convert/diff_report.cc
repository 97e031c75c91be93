#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shardwise/convert/diff.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

std::string kind(const std::optional<DType>& dtype, const Shape& shape) {
  return dtype ? fmt::format("{} {}", name(*dtype), to_string(shape)) : std::string();
}

/// The difference in a word or two.
std::string verdict(const TensorDiff& tensor) {
  if (!tensor.first_dtype) return "only in the second";
  if (!tensor.second_dtype) return "only in the first";
  if (tensor.first_shape != tensor.second_shape) return "other shape";
  if (!tensor.compared) return "other dtype";
  if (tensor.differing > 0) {
    return fmt::format("{} of {} differ", tensor.differing, tensor.elements);
  }
  return tensor.first_dtype == tensor.second_dtype ? "equal" : "other dtype, equal numbers";
}

}  // namespace

std::string to_string(const TensorDiff& tensor) {
  const std::string first = kind(tensor.first_dtype, tensor.first_shape);
  const std::string second = kind(tensor.second_dtype, tensor.second_shape);
  const bool is_one = first == second || first.empty() || second.empty();
  std::string text =
      fmt::format("{}  {}: {}", in_one_line(tensor.name),
                  is_one ? std::max(first, second) : first + " | " + second, verdict(tensor));
  if (tensor.differing == 0) return text;
  return text +
         fmt::format(
             "\n    first at {}: {} | {}; at most {:.6g} apart, relative {:.6g}{}; NaN {} | {}",
             tensor.at ? to_string(*tensor.at) : "?", tensor.first_value, tensor.second_value,
             tensor.max_abs, tensor.max_rel,
             tensor.max_ulp ? fmt::format(", ulp {}", *tensor.max_ulp) : "", tensor.first_nan,
             tensor.second_nan);
}

std::string to_string(const DiffReport& report) {
  std::string text;
  std::size_t equal = 0;
  for (const TensorDiff& tensor : report.tensors) {
    if (tensor.equal()) {
      ++equal;
    } else {
      text += to_string(tensor) + "\n";
    }
  }
  if (!text.empty()) text += "\n";
  return text + fmt::format(
                    "{} of {} tensors are equal; {} compared, {} not read, as the hashes of "
                    "their chunks are equal",
                    equal, report.tensors.size(), human_bytes(report.compared_bytes),
                    human_bytes(report.skipped_bytes));
}

}  // namespace shardwise
