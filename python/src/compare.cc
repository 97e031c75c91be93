#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "parts.h"
#include "python_tensors.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/diff.h"
#include "shardwise/convert/elements.h"
#include "shardwise/convert/model.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "work.h"

namespace shardwise::python {
namespace {

/// A path, whether another format is there, not a checkpoint, and a _core.Reader of that format if
/// Python reads it, or None.
using PlaceArgument = std::tuple<std::string, bool, nb::object>;

struct Place {
  explicit Place(const PlaceArgument& argument)
      : path(std::get<0>(argument)), is_model(std::get<1>(argument)) {
    const nb::object& reader = std::get<2>(argument);
    if (!reader.is_none()) opened = tensors_of(reader);
  }

  std::shared_ptr<const BoxReader> open(const ReadOptions& options) const {
    if (opened) return opened;
    if (is_model) return std::make_shared<const ModelReader>(path);
    return std::make_shared<const CheckpointReader>(path, options);
  }

  std::string path;
  bool is_model;
  std::shared_ptr<const BoxReader> opened;
};

nb::tuple shape_of(const Shape& shape) { return nb::tuple(nb::cast(ints(shape))); }

nb::object kind_of(const std::optional<DType>& dtype, const Shape& shape) {
  if (!dtype) return nb::none();
  return nb::make_tuple(std::string(name(*dtype)), shape_of(shape));
}

/// As DiffReport of _checkpoint/compare.py has it.
using Report = nb::typed<nb::tuple, bool, std::size_t, std::size_t, List>;

/// Each tensor as TensorDiff of _compare.py has it.
nb::tuple tuple_of(const TensorDiff& diff) {
  const nb::object first = kind_of(diff.first_dtype, diff.first_shape);
  const nb::object second = kind_of(diff.second_dtype, diff.second_shape);
  if (!diff.compared) return nb::make_tuple(diff.name, diff.equal(), first, second);
  const nb::object at = diff.at ? nb::object(shape_of(*diff.at)) : nb::none();
  const nb::object values =
      diff.at ? nb::object(nb::make_tuple(diff.first_value, diff.second_value)) : nb::none();
  return nb::make_tuple(diff.name, diff.equal(), first, second, diff.elements, diff.differing,
                        diff.max_abs, diff.max_rel, diff.max_ulp,
                        nb::make_tuple(diff.first_nan, diff.second_nan), at, values);
}

Report diff_places(const PlaceArgument& one, const PlaceArgument& other, double atol, double rtol,
                   std::size_t memory, int threads, nb::object progress) {
  const Place first(one), second(other);
  Work work(std::move(progress));
  // A quarter for each reader, the rest for what is compared.
  const ReadOptions reading{.memory_budget_bytes = memory / 4, .threads = threads};
  const DiffOptions options{.memory_budget_bytes = memory / 2,
                            .threads = threads,
                            .atol = atol,
                            .rtol = rtol,
                            .progress = work.progress()};
  const DiffReport report =
      work.run([&] { return diff(*first.open(reading), *second.open(reading), options); });
  List tensors;
  for (const TensorDiff& tensor : report.tensors) tensors.append(tuple_of(tensor));
  return Report(
      nb::make_tuple(report.equal(), report.compared_bytes, report.skipped_bytes, tensors));
}

/// Numbers of the tensors that the patterns match.
std::vector<std::size_t> find(const BoxReader& reader, const Place& place,
                              const std::vector<std::string>& patterns) {
  return find_tensors(reader, patterns, [&](const std::string& pattern) {
    std::vector<std::string_view> names;
    for (const TensorInfo& info : reader.tensors()) names.push_back(info.name);
    const std::vector<std::string_view> nearest = nearest_names(names, pattern);
    throw Error(ErrorCode::no_such_name,
                fmt::format("{}: there is no tensor \"{}\"{}", place.path, pattern,
                            nearest.empty()
                                ? std::string()
                                : fmt::format(", nearest: \"{}\"", fmt::join(nearest, "\", \""))));
  });
}

/// None for NaN: there is no such number.
nb::object number_of(long double value) {
  if (std::isnan(value)) return nb::none();
  return nb::float_(static_cast<double>(value));
}

/// Least and most: integers exactly.
nb::object end_of(long double value, DType dtype) {
  if (std::isnan(value) || !is_computed(dtype) || is_floating(dtype)) return number_of(value);
  if (value < 0) return nb::int_(static_cast<std::int64_t>(value));
  return nb::int_(static_cast<std::uint64_t>(value));
}

/// As TensorStats of _compare.py has it.
nb::tuple tuple_of(const TensorInfo& info, const TensorStats& stats) {
  nb::object histogram = nb::none();
  if (!stats.histogram.empty()) {
    histogram =
        nb::make_tuple(number_of(stats.low), number_of(stats.high), nb::cast(stats.histogram));
  }
  return nb::make_tuple(
      info.name, std::string(name(info.dtype)), shape_of(info.shape), stats.elements,
      end_of(stats.min, info.dtype), end_of(stats.max, info.dtype), number_of(stats.mean),
      number_of(stats.deviation), stats.nan, stats.infinities, stats.zeros, histogram);
}

List stats_of_place(const PlaceArgument& argument, const std::vector<std::string>& patterns,
                    std::int64_t bars, int threads, nb::object progress) {
  const Place place(argument);
  Work work(std::move(progress));
  const StatsOptions options{.threads = threads, .bars = bars, .progress = work.progress()};
  std::shared_ptr<const BoxReader> reader;
  std::vector<std::size_t> numbers;
  const std::vector<TensorStats> all = work.run([&] {
    reader = place.open({.threads = threads});
    numbers = find(*reader, place, patterns);
    return tensor_stats(*reader, numbers, options);
  });
  List list;
  for (std::size_t i = 0; i < all.size(); ++i) {
    list.append(tuple_of(reader->tensors()[numbers[i]], all[i]));
  }
  return list;
}

}  // namespace

void bind_compare(nb::module_& module) {
  module.def("diff", &diff_places, nb::arg("first"), nb::arg("second"), nb::arg("atol"),
             nb::arg("rtol"), nb::arg("memory"), nb::arg("threads"),
             nb::arg("progress") = nb::none());
  module.def("stats", &stats_of_place, nb::arg("place"), nb::arg("patterns"), nb::arg("bars"),
             nb::arg("threads"), nb::arg("progress") = nb::none());
}

}  // namespace shardwise::python
