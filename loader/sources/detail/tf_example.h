#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// An error in a tf.train.Example. Caught by callers that know its file and record.
struct ExampleFault {
  std::string found;
};

/// A feature of an example: the content of its list. Valid as long as the example's bytes.
struct ExampleFeature {
  enum class Kind { none, bytes, floats, integers };
  Kind kind = Kind::none;  ///< none: the feature or its list is missing

  std::size_t count = 0;                  ///< values in the list
  std::span<const std::byte> bytes = {};  ///< the last byte string

  std::vector<float> floats = {};
  std::vector<std::int64_t> integers = {};
};

/// Finds features in a serialized tf.train.Example; if one repeats, the last counts. Throws
/// ExampleFault if the bytes are not such a message.
void read_example(std::span<const std::byte> example, std::span<const std::string_view> names,
                  std::span<ExampleFeature> features);

/// The values as elements of dtype; little-endian bytes are taken as they are. Throws ExampleFault
/// if the values do not fit.
void feature_elements(const ExampleFeature& feature, DType dtype, std::vector<std::byte>& elements);

}  // namespace shardwise::detail
