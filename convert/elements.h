#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A box of a tensor, and the shape to show it in: the box's own, or that without dims of extent 1.
struct ShownBox {
  Box box;
  Shape shape;
};

/// How the elements of a box become text.
///
/// - summary: as numpy shows them, in brackets. If there are more than 1,000 elements, only the
///   first and last three of a long dim are read and shown, with "..." between. Lines are broken
///   after 100 columns.
/// - all: the same with all elements.
/// - json: nested lists without spaces. Numbers that JSON lacks (NaN, infinities, complex ones) are
///   texts.
enum class ElementText { summary, all, json };

/// Prints elements as numbers that read back to the same value: "0.1", "-0", "nan", "1+2i", "True".
/// Memory is bounded. Throws unsupported for a summary of more than 2^20 elements (a box of very
/// many dims); errors of the reader and of `print` pass through.
///
///   print_elements(reader, 0, {Box::whole({2, 2}), {2, 2}}, ElementText::summary,
///                  [](std::string_view text) { std::cout << text; });  // [[1, 2],\n [3, 4]]
void print_elements(const BoxReader& reader, std::size_t tensor, const ShownBox& shown,
                    ElementText style, const std::function<void(std::string_view)>& print);

/// Writes elements as an .npy file, version 1.0. Dtypes that numpy lacks are raw bytes, "<V2" for
/// bf16 and "|V1" for 8-bit floats: `numpy.load(..).view(ml_dtypes.bfloat16)` brings them back.
/// Memory is bounded. Errors of the reader and of `write` pass through.
void write_npy(const BoxReader& reader, std::size_t tensor, const ShownBox& shown,
               const std::function<void(std::span<const std::byte>)>& write);

struct StatsOptions {
  int threads = 0;  ///< worker threads; 0: as many as the machine has cores

  /// Bars of the histogram, of equal width; 0: no histogram. With bars everything is read twice,
  /// since the range has to be known first.
  std::int64_t bars = 0;

  /// Counts all logical bytes that are to be read.
  ProgressFunction progress = nullptr;
};

/// Statistics of a tensor's elements; for complex numbers, of their modulus.
struct TensorStats {
  std::int64_t elements = 0, nan = 0, infinities = 0, zeros = 0;
  std::optional<Index> first_not_finite = {};  ///< of the NaN and infinities, in row-major order

  // Over the finite numbers; NaN without one. i64 and u64 are exact.
  long double min, max, mean;
  long double deviation;  ///< the root of the mean of (x - mean)^2, as numpy.std

  /// The bars' counts; the first bar begins at `low`, the last one ends at `high` and includes it.
  /// As in numpy.histogram they span min to max, or half a unit to each side if these are equal.
  std::vector<std::int64_t> histogram;
  long double low, high;
};

/// Computes statistics of tensors, given by their numbers in tensors(): one result for each, the
/// same bits for any number of threads. Memory is bounded. Throws invalid_argument for a number of
/// bars that is negative or over 10,000; errors of the reader pass through.
///
///   const std::size_t first[] = {0};
///   const long double mean = tensor_stats(reader, first)[0].mean;
std::vector<TensorStats> tensor_stats(const BoxReader& reader, std::span<const std::size_t> tensors,
                                      const StatsOptions& options = {});

}  // namespace shardwise
