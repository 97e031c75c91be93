#include "shardwise/shard/dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {

void Dims::fail_rank(std::size_t rank) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("shape or index: it has rank {}; needed is at most {}", rank, kMaxRank));
}

Dims::Dims(std::span<const std::int64_t> values) : size_(values.size()) {
  if (size_ > kMaxRank) fail_rank(size_);
  std::copy(values.begin(), values.end(), begin());
}

bool Dims::operator==(const Dims& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::int64_t num_elements(const Shape& shape) {
  // A zero anywhere makes the product zero, even if the other extents alone would overflow.
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {}: extent {} is negative; needed is at least 0",
                              to_string(shape), extent));
    }
    empty |= extent == 0;
  }
  if (empty) return 0;
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {}: it has more than 2^63 - 1 elements", to_string(shape)));
    }
  }
  return product;
}

std::size_t num_bytes(const Shape& shape, std::size_t element_bytes) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(num_elements(shape), element_bytes, &bytes)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape {}: at {} bytes per element it has more than 2^64 - 1 bytes",
                            to_string(shape), element_bytes));
  }
  return bytes;
}

Shape cut_to_bytes(Shape shape, std::size_t element_bytes, std::size_t most_bytes) {
  for (std::int64_t& extent : shape) {
    const std::size_t bytes = num_bytes(shape, element_bytes);
    if (bytes <= most_bytes) break;
    const std::size_t bytes_per_index = bytes / as_size(extent);
    extent = static_cast<std::int64_t>(std::max(most_bytes / bytes_per_index, std::size_t{1}));
  }
  return shape;
}

Dims row_major_strides(const Shape& shape) {
  // Without elements no stride is ever used; the products might overflow.
  if (num_elements(shape) == 0) return Dims::filled(shape.size(), 0);
  Dims strides = Dims::filled(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  return strides;
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) { return out << to_string(dims); }

Shape parse_shape(std::string_view text) {
  std::string_view list = trim(text);
  if (list.starts_with('[') && list.ends_with(']') && list.size() >= 2) {
    list = trim(list.substr(1, list.size() - 2));
  }
  Shape shape;
  if (list.empty()) return shape;
  for (const std::string_view part : split(list, ',')) {
    const auto extent = parse_count(trim(part));
    if (!extent) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape \"{}\": \"{}\" is not an extent; needed are numbers from 0 to "
                              "2^63 - 1, as in \"8,3\"",
                              text, part));
    }
    shape.push_back(*extent);
  }
  return shape;
}

}  // namespace shardwise
