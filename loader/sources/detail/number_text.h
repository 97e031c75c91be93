#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Reads the text of a number, such as "-12" or "3.5e-2" (with neither blanks nor a "+"), into one
/// element at `out`. False if the type has no such number: out of range, a fraction for an integer,
/// other characters. Floats are rounded to nearest, so that the smallest become 0; one that would
/// become infinite is out of range. "nan" and "inf" are floats; bool takes 0, 1, true and false.
/// Requires is_computed(dtype).
bool read_number(std::string_view text, DType dtype, std::byte* out);

/// The numbers of a column so far, to find a type that holds them all. Value type.
class NumberTypes {
 public:
  /// False, without adding it, unless it is a number that an f64 holds, rounded or not.
  bool add(std::string_view number);

  /// As add(), but also false for a number that is not whole.
  bool add_whole(std::string_view number);

  /// Adds a number that is not whole, such as the NaN of a missing value.
  void add_real() { all_i64_ = all_u64_ = false; }

  void add(const NumberTypes& others);

  /// i64 or u64 if that holds them all, else f64; absent if an f64 would round a whole number.
  std::optional<DType> type() const;

 private:
  bool all_i64_ = true, all_u64_ = true, has_inexact_ = false;
};

/// The error text for a field whose NumberTypes::type() is absent.
std::string no_number_type(std::string_view field);

}  // namespace shardwise::detail
