#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "python_source.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/stages/convert.h"
#include "shardwise/loader/stages/filter.h"
#include "shardwise/loader/stages/pack.h"
#include "shardwise/loader/stages/region.h"
#include "shardwise/loader/stages/select.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

using SourcePtr = std::shared_ptr<const shardwise::Source>;

std::vector<SourcePtr> pointers(const std::vector<Records>& records) {
  std::vector<SourcePtr> sources;
  sources.reserve(records.size());
  for (const Records& one : records) sources.push_back(one.source);
  return sources;
}

/// A source made of others, which calls their functions.
Records made_of(const std::vector<Records>& records, SourcePtr source) {
  Records made{std::move(source)};
  for (const Records& one : records) {
    made.functions.insert(made.functions.end(), one.functions.begin(), one.functions.end());
  }
  return made;
}

Records made_of(const Records& records, SourcePtr source) {
  return {std::move(source), records.functions};
}

/// The stages count records, which take the place of bytes here.
template <class Options>
void set_progress(Options& options, Work& work) {
  options.progress = [told = work.progress()](std::int64_t done, std::int64_t total) {
    told({.done_bytes = static_cast<std::size_t>(done),
          .total_bytes = static_cast<std::size_t>(total)});
  };
}

Records filtered(const Records& self, const RecordPredicate& predicate, const std::string& cache,
                 nb::object progress) {
  Work work(std::move(progress));
  FilterOptions options{.cache = cache};
  set_progress(options, work);
  return made_of(self, work.run([&] { return filter(self.source, predicate, options); }));
}

Records filter_text(const Records& self, const std::string& text, const std::string& cache,
                    nb::object progress) {
  return filtered(self, parse_filter(text, self.source->fields()), cache, std::move(progress));
}

/// Filters by a Python function of a list of (bytes, length), one per field.
Records filter_function(const Records& self, nb::object function, const std::string& name,
                        const std::string& cache, nb::object progress) {
  RecordPredicate predicate;
  predicate.name = name;
  for (const Field& field : self.source->fields()) predicate.fields.push_back(field.name);
  predicate.keep = [held = held(std::move(function))](std::span<const FieldValue> values) {
    return with_gil([&] {
      nb::list list;
      for (const FieldValue& value : values) {
        list.append(nb::make_tuple(nb::bytes(value.data.data(), value.data.size()), value.length));
      }
      try {
        return nb::cast<bool>((*held)(list));
      } catch (const nb::python_error& error) {
        throw PythonRaised(error);
      }
    });
  };
  return filtered(self, predicate, cache, std::move(progress));
}

CropPosition position_of(const std::string& kind, const Ints& begin, const std::string& stream) {
  if (kind == "at") return CropPosition::at(Index{std::span(begin)});
  if (kind == "centre") return CropPosition::centre();
  if (kind == "random") return CropPosition::random(stream);
  throw Error(ErrorCode::invalid_argument,
              "crop: found position \"" + kind + "\", needed an index, \"centre\" or \"random\"");
}

Shape extents_of(const Ints& extents) { return Shape{std::span(extents)}; }

Records packed(const Records& self, const std::string& field, std::int64_t window,
               std::int64_t documents, std::optional<std::int64_t> eos) {
  Work work{nb::none()};
  PackOptions options{.field = field, .window = window, .documents = documents, .eos = eos};
  set_progress(options, work);
  return made_of(self, work.run([&] { return pack(self.source, options); }));
}

using Changes = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;

Records mixed(const std::vector<Records>& records, const std::vector<std::int64_t>& weights,
              const Changes& changes) {
  std::vector<MixChange> found;
  found.reserve(changes.size());
  for (const auto& [first, later] : changes) found.push_back({first, later});
  return made_of(records, mix(pointers(records), weights, std::move(found)));
}

}  // namespace

void bind_stages(nb::class_<Records>& records) {
  records
      .def_static(
          "zip", [](const std::vector<Records>& all) { return made_of(all, zip(pointers(all))); },
          nb::arg("records"))
      .def_static(
          "concat",
          [](const std::vector<Records>& all) { return made_of(all, concat(pointers(all))); },
          nb::arg("records"))
      .def_static("mix", &mixed, nb::arg("records"), nb::arg("weights"), nb::arg("changes"))
      .def(
          "shuffle",
          [](const Records& self, std::uint64_t salt) {
            return made_of(self, shuffle(self.source, salt));
          },
          nb::arg("salt"))
      .def(
          "take",
          [](const Records& self, std::int64_t begin, std::int64_t end) {
            return made_of(self, take(self.source, begin, end));
          },
          nb::arg("begin"), nb::arg("end"))
      .def(
          "repeat",
          [](const Records& self, std::int64_t times) {
            return made_of(self, repeat(self.source, times));
          },
          nb::arg("times"))
      .def("filter_text", &filter_text, nb::arg("text"), nb::arg("cache"),
           nb::arg("progress") = nb::none())
      .def("filter_function", &filter_function, nb::arg("function"), nb::arg("name"),
           nb::arg("cache"), nb::arg("progress") = nb::none())
      .def("pack", &packed, nb::arg("field"), nb::arg("window"), nb::arg("documents"),
           nb::arg("eos") = nb::none())
      .def(
          "crop",
          [](const Records& self, const std::string& field, const Ints& shape,
             const std::string& position, const Ints& begin, const std::string& stream) {
            return made_of(self, crop(self.source, field, extents_of(shape),
                                      position_of(position, begin, stream)));
          },
          nb::arg("field"), nb::arg("shape"), nb::arg("position"), nb::arg("begin"),
          nb::arg("stream"))
      .def(
          "flip",
          [](const Records& self, const std::string& field, std::size_t dim, double probability,
             const std::string& stream) {
            return made_of(self, flip(self.source, field, dim, probability, stream));
          },
          nb::arg("field"), nb::arg("dim"), nb::arg("probability"), nb::arg("stream"))
      .def(
          "pad",
          [](const Records& self, const std::string& field, const Ints& before, const Ints& after,
             double value) {
            return made_of(self,
                           pad(self.source, field, extents_of(before), extents_of(after), value));
          },
          nb::arg("field"), nb::arg("before"), nb::arg("after"), nb::arg("value"))
      .def(
          "cast",
          [](const Records& self, const std::string& field, const std::string& dtype) {
            return made_of(self, cast(self.source, field, parse_dtype(dtype)));
          },
          nb::arg("field"), nb::arg("dtype"))
      .def(
          "normalise",
          [](const Records& self, const std::string& field, const std::vector<float>& mean,
             const std::vector<float>& stddev) {
            return made_of(self, normalise(self.source, field, mean, stddev));
          },
          nb::arg("field"), nb::arg("mean"), nb::arg("stddev"));
}

}  // namespace shardwise::python
