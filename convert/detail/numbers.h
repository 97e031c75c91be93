#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// How elements of a dtype are looked at one number at a time: a complex element is two numbers,
/// the real part first. Every dtype has it, those that are not computed with, too.
struct Numbers {
  DType dtype;        ///< of a number
  std::size_t bytes;  ///< of a number
  std::size_t each;   ///< numbers an element
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

/// The same as a value of JSON, in quotes if JSON has no such number.
std::string element_json(DType dtype, const std::byte* element);

/// The index of the element of a box that has this number in row-major order.
Index index_at(const Box& box, std::int64_t number);

}  // namespace shardwise::detail
