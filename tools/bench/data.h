#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::tools {

/// How a benchmark fills its tensors.
enum class DataKind {
  gaussian,  ///< as weights are: normal, about 0, with a scale for each tensor and row
  index,     ///< the element's global row-major index modulo 2^20
  zeros,
};

/// "gaussian", "index", "zeros"; parse_data_kind throws invalid_argument listing them.
std::string_view name(DataKind kind);
DataKind parse_data_kind(std::string_view text);

/// "tensor_00012"
std::string bench_tensor_name(std::int64_t tensor);

/// The values of a benchmark's tensors, which all have one dtype and shape. A value depends on the
/// tensor's number and the element's index alone, so any machine can make any box and compare it
/// with the result. Values are converted to the dtype as convert() does: an index that it
/// cannot hold is rounded, or wraps around. A complex element i is the two values 2i and 2i + 1; a
/// one-byte float has the bits of a value of i8. Immutable.
class BenchData {
 public:
  BenchData(DataKind kind, DType dtype, const Shape& shape);

  void fill(std::int64_t tensor, const BoxView& view) const;

  /// A message that names the first element that differs from fill()'s; empty if all are equal.
  std::string difference(std::int64_t tensor, const ConstBoxView& view) const;

 private:
  template <class Number, class Body>
  void each_block(std::int64_t tensor, const Box& box, Body&& body) const;
  template <class Body>
  void each_block(std::int64_t tensor, const Box& box, Body&& body) const;
  void make(std::int64_t tensor, std::int64_t index, std::span<std::int32_t> out) const;
  void make(std::int64_t tensor, std::int64_t index, std::span<double> out) const;

  std::size_t element_bytes() const { return element_numbers_ * size_bytes(made_); }

  DataKind kind_;
  DType made_;                   ///< of the numbers that elements are made of
  std::size_t element_numbers_;  ///< 2 of a complex element, else 1
  Shape shape_;
  std::vector<std::int64_t> normal_;  // of gaussian: a table of normal numbers, times 2^32
};

}  // namespace shardwise::tools
