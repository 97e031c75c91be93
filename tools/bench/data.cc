#include "bench/data.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/random.h"

namespace shardwise::tools {
namespace {

constexpr std::array<DataKind, 3> kKinds = {DataKind::gaussian, DataKind::index, DataKind::zeros};
constexpr std::int64_t kIndexEnd = std::int64_t{1} << 20;
constexpr std::size_t kBlockNumbers = 4096;  // of one conversion; stays in the nearest cache
constexpr std::size_t kTableSize = std::size_t{1} << 16;

std::uint64_t seed(std::int64_t tensor) { return splitmix64(~static_cast<std::uint64_t>(tensor)); }

// Sums of twelve numbers of [0, 1) less 6: normal enough for compression, and computed by integers
// alone, so every machine has the same.
std::vector<std::int64_t> normal_table() {
  std::vector<std::int64_t> table(kTableSize);
  for (std::size_t i = 0; i < kTableSize; ++i) {
    std::int64_t sum = -6 * (std::int64_t{1} << 32);
    for (std::size_t j = 0; j < 12; ++j)
      sum += static_cast<std::int64_t>(splitmix64(i * 12 + j) >> 32);
    table[i] = sum;
  }
  return table;
}

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// Stands in for dtypes that are not computed with: a complex element is two numbers, and a one-byte
// float gets the bits of an integer.
DType made_dtype(DType dtype) {
  if (is_computed(dtype)) return dtype;
  if (dtype == DType::c128) return DType::f64;
  return dtype == DType::c64 ? DType::f32 : DType::i8;
}

// One of 512 scales, from 1/64 to 3/64 of a unit; integers get theirs in whole numbers. Powers of
// two and small integers, so that multiplying by it gives the same bits everywhere.
double row_scale(std::uint64_t tensor_seed, std::int64_t row, DType dtype) {
  const std::uint64_t step = splitmix64(tensor_seed ^ static_cast<std::uint64_t>(row)) & 511;
  return static_cast<double>(256 + step) * 0x1p-14 * (is_float(dtype) ? 1 : 1024);
}

}  // namespace

std::string_view name(DataKind kind) {
  switch (kind) {
    case DataKind::gaussian:
      return "gaussian";
    case DataKind::index:
      return "index";
    case DataKind::zeros:
      return "zeros";
  }
  return "";
}

DataKind parse_data_kind(std::string_view text) {
  for (const DataKind kind : kKinds) {
    if (text == name(kind)) return kind;
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("data \"{}\": it is not known; needed is gaussian, index or zeros", text));
}

std::string bench_tensor_name(std::int64_t tensor) { return fmt::format("tensor_{:05}", tensor); }

BenchData::BenchData(DataKind kind, DType dtype, const Shape& shape)
    : kind_(kind),
      made_(made_dtype(dtype)),
      element_numbers_(size_bytes(dtype) / size_bytes(made_)),
      shape_(shape) {
  if (kind == DataKind::gaussian) normal_ = normal_table();
}

void BenchData::make(std::int64_t, std::int64_t index, std::span<std::int32_t> out) const {
  for (std::int32_t& value : out) {
    value = kind_ == DataKind::index ? static_cast<std::int32_t>(index % kIndexEnd) : 0;
    ++index;
  }
}

// Two numbers of the table, added, with 20 bits of their own below: 53 in all, as many as f64 has.
void BenchData::make(std::int64_t tensor, std::int64_t index, std::span<double> out) const {
  const std::uint64_t tensor_seed = seed(tensor);
  const std::int64_t columns = (shape_.empty() ? 1 : shape_[shape_.size() - 1]) *
                               static_cast<std::int64_t>(element_numbers_);
  for (std::size_t i = 0; i < out.size();) {
    const std::int64_t row = index / columns;
    const auto left = static_cast<std::size_t>((row + 1) * columns - index);
    const std::size_t end = std::min(out.size(), i + left);
    const double scale = row_scale(tensor_seed, row, made_) * 0x1p-52;
    for (; i < end; ++i, ++index) {
      const std::uint64_t bits = splitmix64(tensor_seed + static_cast<std::uint64_t>(index));
      const std::int64_t sum = normal_[bits % kTableSize] + normal_[bits / kTableSize % kTableSize];
      const auto low = static_cast<std::int64_t>(bits >> 44);
      out[i] = static_cast<double>(sum * (std::int64_t{1} << 20) + low) * scale;
    }
  }
}

// Calls body(offset in the box, bytes) for consecutive pieces of the box's bytes.
template <class Number, class Body>
void BenchData::each_block(std::int64_t tensor, const Box& box, Body&& body) const {
  std::array<Number, kBlockNumbers> numbers;
  std::array<std::byte, kBlockNumbers * sizeof(std::int64_t)> bytes;
  const std::size_t element_bytes = this->element_bytes();
  constexpr DType kFrom = std::is_same_v<Number, double> ? DType::f64 : DType::i32;
  for_each_run(walk_runs(box, Box::whole(shape_), box), [&](std::int64_t index, std::int64_t at,
                                                            std::int64_t count) {
    for (const std::int64_t end = index + count; index < end;) {
      const std::size_t size =
          std::min(kBlockNumbers / element_numbers_, static_cast<std::size_t>(end - index));
      const std::size_t made = size * element_numbers_;
      make(tensor, index * static_cast<std::int64_t>(element_numbers_),
           std::span(numbers).first(made));
      convert(kFrom, reinterpret_cast<const std::byte*>(numbers.data()), made_, bytes.data(), made);
      body(static_cast<std::size_t>(at) * element_bytes,
           std::span<const std::byte>(bytes).first(size * element_bytes));
      index += static_cast<std::int64_t>(size);
      at += static_cast<std::int64_t>(size);
    }
  });
}

template <class Body>
void BenchData::each_block(std::int64_t tensor, const Box& box, Body&& body) const {
  if (kind_ == DataKind::gaussian) {
    each_block<double>(tensor, box, body);
  } else {
    each_block<std::int32_t>(tensor, box, body);
  }
}

void BenchData::fill(std::int64_t tensor, const BoxView& view) const {
  each_block(tensor, view.box, [&](std::size_t offset, std::span<const std::byte> bytes) {
    std::memcpy(view.data + offset, bytes.data(), bytes.size());
  });
}

std::string BenchData::difference(std::int64_t tensor, const ConstBoxView& view) const {
  std::string found;
  const std::size_t element_bytes = this->element_bytes();
  each_block(tensor, view.box, [&](std::size_t offset, std::span<const std::byte> bytes) {
    const std::byte* const there = view.data + offset;
    if (!found.empty() || std::memcmp(there, bytes.data(), bytes.size()) == 0) return;
    const auto at = std::mismatch(bytes.begin(), bytes.end(), there).first - bytes.begin();
    found = fmt::format(
        "{}: element {} of box {} is not what bench save wrote", bench_tensor_name(tensor),
        (offset + static_cast<std::size_t>(at)) / element_bytes, to_string(view.box));
  });
  return found;
}

}  // namespace shardwise::tools
