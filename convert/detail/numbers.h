#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// How elements of a dtype are read one number at a time: a complex element is two numbers, the
/// real part first. This works for every dtype, also for those that kernels do not compute with.
struct Numbers {
  DType dtype;        ///< of a number
  std::size_t bytes;  ///< of a number
  std::size_t each;   ///< numbers per element
  bool is_floating;   ///< may be NaN
  long double (*number)(const std::byte* at);

  /// The bits as an integer that grows with the number, so that the difference of two is their
  /// distance in units in the last place. Requires is_floating.
  std::int64_t ordered(const std::byte* at) const;
};

/// long double holds every f64, i64 and u64 exactly if its mantissa has 64 bits, as on x86-64.
Numbers numbers_of(DType dtype);

/// A number of the dtype as text that reads back to the same: "1.5", "1+2i", "True".
std::string element_text(DType dtype, const std::byte* element);

/// The same as a JSON value, in quotes if JSON has no such number.
std::string element_json(DType dtype, const std::byte* element);

/// The index of the element with this row-major number in a box.
Index index_at(const Box& box, std::int64_t number);

}  // namespace shardwise::detail
