#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
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
#include "value_class.h"
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

struct Kind : nb::tuple {
  NB_OBJECT(Kind, nb::tuple, "shardwise.Kind", PyTuple_Check)
};

std::optional<Kind> kind_of(const std::optional<DType>& dtype, const Shape& shape) {
  if (!dtype) return {};
  return nb::borrow<Kind>(
      nb::module_::import_("shardwise").attr("Kind")(std::string(name(*dtype)), int_tuple(shape)));
}

struct PythonTensorDiff {
  std::string name;
  bool equal = false;
  std::optional<Kind> first, second;
  std::optional<std::int64_t> elements, differing;
  std::optional<double> max_abs, max_rel;
  std::optional<std::uint64_t> max_ulp;
  std::optional<std::pair<std::int64_t, std::int64_t>> nan;
  std::optional<IntTuple> at;
  std::optional<std::pair<std::string, std::string>> values;

  explicit PythonTensorDiff(const TensorDiff& diff)
      : name(diff.name),
        equal(diff.equal()),
        first(kind_of(diff.first_dtype, diff.first_shape)),
        second(kind_of(diff.second_dtype, diff.second_shape)) {
    if (!diff.compared) return;
    elements = diff.elements;
    differing = diff.differing;
    max_abs = diff.max_abs;
    max_rel = diff.max_rel;
    max_ulp = diff.max_ulp;
    nan = {diff.first_nan, diff.second_nan};
    if (!diff.at) return;
    at = int_tuple(*diff.at);
    values = {diff.first_value, diff.second_value};
  }
  PythonTensorDiff() = default;
};

struct PythonDiffReport {
  bool equal;
  std::size_t compared_bytes, skipped_bytes;
  std::vector<PythonTensorDiff> tensors;
};

PythonDiffReport diff_places(const PlaceArgument& one, const PlaceArgument& other, double atol,
                             double rtol, std::size_t memory, int threads, nb::object progress) {
  const Place first(one), second(other);
  Work work(std::move(progress));
  // Each reader has a quarter, and the comparison has the rest.
  const ReadOptions reading{.memory_budget_bytes = memory / 4, .threads = threads};
  const DiffOptions options{.memory_budget_bytes = memory / 2,
                            .threads = threads,
                            .atol = atol,
                            .rtol = rtol,
                            .progress = work.progress()};
  const DiffReport report =
      work.run([&] { return diff(*first.open(reading), *second.open(reading), options); });
  return {report.equal(),
          report.compared_bytes,
          report.skipped_bytes,
          {report.tensors.begin(), report.tensors.end()}};
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

std::optional<double> number_of(long double value) {
  return std::isnan(value) ? std::nullopt : std::optional(static_cast<double>(value));
}

bool is_number_or_none(PyObject* object) {
  return PyLong_Check(object) || PyFloat_Check(object) || Py_IsNone(object);
}

struct Number : nb::object {
  NB_OBJECT_DEFAULT(Number, nb::object, "int | float | None", is_number_or_none)
};

/// Least and most: integers exactly.
Number end_of(long double value, DType dtype) {
  const bool is_float = std::isnan(value) || !is_computed(dtype) || is_floating(dtype);
  return nb::borrow<Number>(is_float    ? nb::cast(number_of(value))
                            : value < 0 ? nb::cast(static_cast<std::int64_t>(value))
                                        : nb::cast(static_cast<std::uint64_t>(value)));
}

struct Histogram {
  std::optional<double> low, high;
  std::vector<std::int64_t> counts;
};

struct PythonTensorStats {
  std::string name, dtype;
  IntTuple shape;
  std::int64_t elements;
  Number min, max;
  std::optional<double> mean, deviation;
  std::int64_t nan, infinities, zeros;
  std::optional<Histogram> histogram;
};

std::vector<PythonTensorStats> stats_of_place(const PlaceArgument& argument,
                                              const std::vector<std::string>& patterns,
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
  std::vector<PythonTensorStats> named;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const TensorInfo& info = reader->tensors()[numbers[i]];
    const TensorStats& one = all[i];
    const Number min = end_of(one.min, info.dtype), max = end_of(one.max, info.dtype);
    named.push_back({info.name,
                     std::string(name(info.dtype)),
                     int_tuple(info.shape),
                     one.elements,
                     min,
                     max,
                     number_of(one.mean),
                     number_of(one.deviation),
                     one.nan,
                     one.infinities,
                     one.zeros,
                     {}});
    if (one.histogram.empty()) continue;
    named.back().histogram = {number_of(one.low), number_of(one.high), one.histogram};
  }
  return named;
}

}  // namespace

void bind_compare(nb::module_& module) {
  using Diff = PythonTensorDiff;
  ValueClass<Diff>(module, "TensorDiff",
                   "The difference between the tensors of one name. A field that was not compared "
                   "is None: one side has no\nsuch tensor, or another shape.")
      .field("name", &Diff::name)
      .field("equal", &Diff::equal, "same dtype and shape, and no element differs")
      .field("first", &Diff::first, "None: it has no such tensor")
      .field("second", &Diff::second)
      .field("elements", &Diff::elements, "of the first")
      .field("differing", &Diff::differing, "of them; if dtypes differ, their numbers are compared")
      .field("max_abs", &Diff::max_abs, "largest |first - second|")
      .field("max_rel", &Diff::max_rel, "largest |first - second| / max(|first|, |second|)")
      .field("max_ulp", &Diff::max_ulp,
             "most floats of the dtype between the two; None for integers and if dtypes differ")
      .field("nan", &Diff::nan, "NaNs of the two among the elements that were read")
      .field("at", &Diff::at, "global index of the first that differs; None: none does")
      .field("values", &Diff::values, "the elements of the two at that index");
  ValueClass<PythonDiffReport>(module, "DiffReport", "The result of diff().")
      .field("equal", &PythonDiffReport::equal)
      .field("compared_bytes", &PythonDiffReport::compared_bytes, "of the first, read and compared")
      .field("skipped_bytes", &PythonDiffReport::skipped_bytes,
             "of the first; the hashes of chunks said that they are equal")
      .field("tensors", &PythonDiffReport::tensors, "of all names, sorted");
  ValueClass<Histogram>(module, "Histogram",
                        "Counts of bars of equal width from low to high; both ends are None if no "
                        "number is finite.")
      .field("low", &Histogram::low)
      .field("high", &Histogram::high)
      .field("counts", &Histogram::counts);
  using Stats = PythonTensorStats;
  ValueClass<Stats>(module, "TensorStats",
                    "Statistics of the elements of a tensor; a complex number counts by its "
                    "modulus. min, max, mean and std\ncover the numbers that are neither NaN nor "
                    "infinite, and are None without any. min and max of integers are\nexact.")
      .field("name", &Stats::name)
      .field("dtype", &Stats::dtype)
      .field("shape", &Stats::shape)
      .field("elements", &Stats::elements)
      .field("min", &Stats::min)
      .field("max", &Stats::max)
      .field("mean", &Stats::mean)
      .field("std", &Stats::deviation)
      .field("nan", &Stats::nan)
      .field("infinities", &Stats::infinities)
      .field("zeros", &Stats::zeros)
      .field("histogram", &Stats::histogram);
  module.def("diff", &diff_places, nb::arg("first"), nb::arg("second"), nb::arg("atol"),
             nb::arg("rtol"), nb::arg("memory"), nb::arg("threads"),
             nb::arg("progress") = nb::none());
  module.def("stats", &stats_of_place, nb::arg("place"), nb::arg("patterns"), nb::arg("bars"),
             nb::arg("threads"), nb::arg("progress") = nb::none());
}

}  // namespace shardwise::python
