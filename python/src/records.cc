#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "python_source.h"
#include "shardwise/loader/open_source.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

using SourcePtr = std::shared_ptr<const shardwise::Source>;

/// name, dtype, shape, whether it is ragged.
using FieldArgument = std::tuple<std::string, std::string, Ints, bool>;

std::vector<Field> fields_of(const std::vector<FieldArgument>& arguments) {
  std::vector<Field> fields;
  fields.reserve(arguments.size());
  for (const auto& [name, dtype, shape, ragged] : arguments) {
    fields.push_back({name, parse_dtype(dtype), Shape{std::span(shape)}, ragged});
  }
  return fields;
}

std::vector<FieldArgument> described(const shardwise::Source& source) {
  std::vector<FieldArgument> fields;
  for (const Field& field : source.fields()) {
    fields.emplace_back(field.name, std::string(name(field.dtype)), ints(field.shape),
                        field.ragged);
  }
  return fields;
}

/// Whole records side by side in memory that Python keeps.
class ArraysSource final : public shardwise::Source {
 public:
  ArraysSource(std::vector<Field> fields, std::int64_t size,
               const std::vector<std::uintptr_t>& addresses, nb::object keeper)
      : fields_(std::move(fields)), size_(size), keeper_(held(std::move(keeper))) {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      columns_.push_back({reinterpret_cast<const std::byte*>(addresses.at(i)),
                          num_bytes(fields_[i].shape, size_bytes(fields_[i].dtype)),
                          Box::whole(fields_[i].shape)});
    }
  }

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes) {
      const Column& column = columns_[box.field];
      const std::byte* const record =
          column.data + static_cast<std::size_t>(sample.record) * column.record_bytes;
      copy_box(box.to.box, size_bytes(fields_[box.field].dtype), {record, column.whole}, box.to);
    }
  }

 private:
  struct Column {
    const std::byte* data;
    std::size_t record_bytes;
    Box whole;
  };
  std::vector<Field> fields_;
  std::int64_t size_;
  std::vector<Column> columns_;
  std::shared_ptr<nb::object> keeper_;
};

/// Records that a Python function makes: it gets record, epoch and seed, and returns a list of
/// (address, length), one per field, and an object that keeps them. `inner`: the source that it
/// makes them from, if that has equal numbers; `name` is then the function's. `together`, if set,
/// gets a list of records, and returns a list of (address of the first, bytes from one to the next,
/// lengths if it is ragged), one per field, and an object that keeps them. The functions are not
/// kept: see Records::functions.
class FunctionSource final : public shardwise::Source {
 public:
  FunctionSource(std::vector<Field> fields, std::int64_t size, nb::handle function,
                 nb::handle together, std::optional<std::uint64_t> fingerprint, std::string name,
                 SourcePtr inner)
      : fields_(std::move(fields)),
        size_(size),
        function_(function),
        together_(together),
        fingerprint_(fingerprint),
        name_(std::move(name)),
        inner_(std::move(inner)) {
    for (const Field& field : fields_) wholes_.push_back(Box::whole(field.shape));
  }

  std::int64_t size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  std::uint64_t fingerprint() const override {
    return fingerprint_ ? *fingerprint_ : shardwise::Source::fingerprint();
  }
  bool changes_with_epoch() const override { return inner_ && inner_->changes_with_epoch(); }
  std::string describe(std::int64_t samples) const override {
    if (!inner_) return shardwise::Source::describe(samples);
    const std::string name = name_.empty() ? std::string() : fmt::format("{:?}, ", name_);
    return fmt::format("map({}{})", name, inner_->describe(samples));
  }

  void will_read(const Sample& sample) const override {
    if (inner_) inner_->will_read(sample);
    if (!together_.is_valid()) return;
    Named& named = named_of_thread()[id_];
    if (named.is_made) named = {};
    named.records.push_back(sample.record);
  }
  bool reads_together() const override {
    return together_.is_valid() || (inner_ && inner_->reads_together());
  }

  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    with_record(sample, [&](const Places& places) {
      for (const FieldBox& box : boxes) {
        const auto* const from = reinterpret_cast<const std::byte*>(places[box.field].first);
        const Box& whole = wholes_[box.field];
        const std::size_t element_bytes = size_bytes(fields_[box.field].dtype);
        if (box.to.box == whole) {
          std::memcpy(box.to.data, from, num_bytes(whole.shape(), element_bytes));
        } else {
          copy_box(box.to.box, element_bytes, {from, whole}, box.to);
        }
      }
    });
    drop_if_read(sample.record);
  }

  std::int64_t length(const Sample& sample, std::size_t field) const override {
    if (!fields_[field].ragged) return shardwise::Source::length(sample, field);
    std::int64_t length = 0;
    with_record(sample, [&](const Places& places) { length = places[field].second; });
    return length;
  }

 private:
  using Places = std::vector<std::pair<std::uintptr_t, std::int64_t>>;
  using Column = std::tuple<std::uintptr_t, std::size_t, Ints>;

  /// Records that a thread has named and not yet read, or made at once.
  struct Named {
    Ints records;
    std::size_t next = 0;  ///< records are read in about the order of `records`
    bool is_made = false;
    std::vector<Column> columns;
    std::shared_ptr<nb::object> keeper;
    std::exception_ptr error;  ///< of making them at once: they are then made one by one
    bool is_error_found = false;
    Places places;  ///< of the record that is read
  };

  /// By id of the source, as a thread may outlive it.
  static std::map<std::uint64_t, Named>& named_of_thread() {
    thread_local std::map<std::uint64_t, Named> named;
    return named;
  }
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last = 0;
    return ++last;
  }

  template <class Body>
  void with_record(const Sample& sample, Body&& body) const {
    if (!together_.is_valid()) {
      return with_gil([&] {
        const nb::tuple made = call(function_, sample.record, sample.epoch, sample.seed);
        body(nb::cast<Places>(made[0]));
      });
    }
    auto& named_of = named_of_thread();
    const auto known = named_of.find(id_);
    Named alone;
    alone.records.push_back(sample.record);
    Named* named = &alone;
    if (known != named_of.end() && find(known->second, sample.record)) {
      named = &known->second;
      make_named(*named);
      if (named->error) {
        const bool is_last = named->next + 1 == named->records.size();
        try {
          make(alone);
        } catch (...) {
          named->is_error_found = true;
          throw;
        }
        if (is_last && !named->is_error_found) std::rethrow_exception(named->error);
        named = &alone;
      }
    } else {
      make(alone);
    }
    Places& places = named->places;
    places.clear();
    for (const auto& [address, step, lengths] : named->columns) {
      places.emplace_back(address + named->next * step,
                          lengths.empty() ? 0 : lengths.at(named->next));
    }
    body(places);
  }

  /// Drops the records that the thread has named, once the last of them is read.
  void drop_if_read(std::int64_t record) const {
    auto& named_of = named_of_thread();
    const auto known = named_of.find(id_);
    if (known == named_of.end()) return;
    const Named& named = known->second;
    if (named.is_made && named.next + 1 == named.records.size() && named.records.back() == record) {
      named_of.erase(known);
    }
  }

  /// True if the record is named; `next` is then its place.
  static bool find(Named& named, std::int64_t record) {
    const auto begin = named.records.begin(), end = named.records.end();
    const auto from = begin + static_cast<std::ptrdiff_t>(named.next);
    auto found = std::find(from, end, record);
    if (found == end) found = std::find(begin, from, record);
    if (found == end) return false;
    named.next = static_cast<std::size_t>(found - begin);
    return true;
  }

  void make_named(Named& named) const {
    if (named.is_made) return;
    try {
      make(named);
    } catch (const PythonRaised& raised) {
      if (raised.code() == ErrorCode::cancelled) throw;
      named.error = std::current_exception();
    }
    named.is_made = true;
  }

  void make(Named& named) const {
    with_gil([&] {
      const nb::tuple made = call(together_, named.records);
      named.columns = nb::cast<std::vector<Column>>(made[0]);
      named.keeper = held(made[1]);
    });
  }

  template <class... Arguments>
  static nb::tuple call(nb::handle function, const Arguments&... arguments) {
    try {
      return nb::cast<nb::tuple>(function(arguments...));
    } catch (const nb::python_error& error) {
      throw PythonRaised(error);
    }
  }

  std::vector<Field> fields_;
  std::vector<Box> wholes_;
  std::int64_t size_;
  nb::handle function_, together_;
  const std::uint64_t id_ = next_id();
  std::optional<std::uint64_t> fingerprint_;
  std::string name_;
  SourcePtr inner_;
};

/// One whole record, to memory of Python's: addresses per field.
void read_record(const Records& self, std::int64_t record, std::int64_t epoch, std::uint64_t seed,
                 const std::vector<std::uintptr_t>& addresses) {
  const GilRelease released;
  const std::span<const Field> fields = self.source->fields();
  if (record < 0 || record >= self.source->size()) {
    throw Error(ErrorCode::not_found, "record " + std::to_string(record) + ": there are " +
                                          std::to_string(self.source->size()));
  }
  std::vector<FieldBox> boxes;
  boxes.reserve(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    boxes.push_back(
        {i, {reinterpret_cast<std::byte*>(addresses.at(i)), Box::whole(fields[i].shape)}});
  }
  self.source->read({record, epoch, seed}, boxes);
}

std::int64_t length_of(const Records& self, std::int64_t record, std::int64_t epoch,
                       std::uint64_t seed, std::size_t field) {
  const GilRelease released;
  return self.source->length({record, epoch, seed}, field);
}

// Visits the references that the garbage collector has to know (Python's C API, "Supporting Cyclic
// Garbage Collection").
int traverse_records(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  for (const nb::object& function : nb::inst_ptr<Records>(self)->functions) {
    Py_VISIT(function.ptr());
  }
  return 0;
}

int clear_records(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  const Records dropped = std::move(*nb::inst_ptr<Records>(self));
  return 0;
}

PyType_Slot kRecordsSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse_records)},
                               {Py_tp_clear, reinterpret_cast<void*>(&clear_records)},
                               {0, nullptr}};

}  // namespace

std::shared_ptr<nb::object> held(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* kept) {
            try {
              with_gil([&] { delete kept; });
            } catch (const Error&) {
              // Python has ended, and dropped it.
            }
          }};
}

namespace {

/// The exception as it may leave a loop: a StopIteration would end the caller's loop in silence, so
/// it is the cause of a RuntimeError, as in generators (PEP 479).
nb::object escaping(nb::handle raised) {
  const bool ends_loops = PyErr_GivenExceptionMatches(raised.ptr(), PyExc_StopIteration) != 0 ||
                          PyErr_GivenExceptionMatches(raised.ptr(), PyExc_StopAsyncIteration) != 0;
  if (!ends_loops) return nb::borrow(raised);
  nb::object error = nb::borrow(PyExc_RuntimeError)("a function of the source raised " +
                                                    str_of(raised.type().attr("__name__")));
  PyException_SetCause(error.ptr(), nb::borrow(raised).release().ptr());
  PyException_SetContext(error.ptr(), nb::borrow(raised).release().ptr());
  return error;
}

}  // namespace

PythonRaised::PythonRaised(const nb::python_error& error) : PythonRaised(escaping(error.value())) {}

PythonRaised::PythonRaised(const nb::python_error& error, ErrorCode code)
    : Error(code, str_of(error.value())), value_(held(nb::borrow(error.value()))) {}

PythonRaised::PythonRaised(nb::object error)
    : Error(PyErr_GivenExceptionMatches(error.ptr(), PyExc_Exception) != 0 ? ErrorCode::corrupt
                                                                           : ErrorCode::cancelled,
            error_text(error)),
      value_(held(std::move(error))) {}

void PythonRaised::set_error(const std::string& note) const {
  if (!note.empty() && !is_noted_ && nb::hasattr(*value_, "add_note")) {
    is_noted_ = true;
    try {
      value_->attr("add_note")(
          nb::bytes(note.data(), note.size()).attr("decode")("utf-8", "replace"));
    } catch (const nb::python_error&) {
      // An exception that takes no note comes out without one.
    }
  }
  PyErr_SetObject(value_->type().ptr(), value_->ptr());
}

bool if_python_raised(const Error& error,
                      const std::function<void(const PythonRaised&, const std::string&)>& body) {
  if (const auto* const raised = dynamic_cast<const PythonRaised*>(&error)) {
    body(*raised, "");
    return true;
  }
  try {
    std::rethrow_if_nested(error);
  } catch (const Error& cause) {
    return if_python_raised(
        cause, [&](const PythonRaised& raised, const std::string&) { body(raised, error.what()); });
  } catch (...) {
    // Its message is in that of `error`.
  }
  return false;
}

void bind_records(nb::module_& module) {
  module.def(
      "set_remote_cache",
      [](const std::string& folder, std::optional<std::uint64_t> most_bytes) {
        set_remote_cache({.folder = folder, .most_bytes = most_bytes});
      },
      nb::arg("folder"), nb::arg("most_bytes").none());
  nb::class_<Records> records(module, "Records", nb::type_slots(kRecordsSlots));
  records
      .def_static(
          "open",
          [](const std::string& text, nb::object progress) {
            Work work(std::move(progress));
            const auto told = [of_work = work.progress()](std::uint64_t done, std::uint64_t all) {
              of_work({.done_bytes = done, .total_bytes = all});
            };
            return Records{work.run([&] { return open_source(text, told); })};
          },
          nb::arg("text"), nb::arg("progress") = nb::none())
      .def_static(
          "of_arrays",
          [](const std::vector<FieldArgument>& fields, std::int64_t size,
             const std::vector<std::uintptr_t>& addresses, nb::object keeper) {
            return Records{std::make_shared<ArraysSource>(fields_of(fields), size, addresses,
                                                          std::move(keeper))};
          },
          nb::arg("fields"), nb::arg("size"), nb::arg("addresses"), nb::arg("keeper"))
      .def_static(
          "of_function",
          [](const std::vector<FieldArgument>& fields, std::int64_t size, nb::object function,
             std::optional<std::uint64_t> fingerprint, const std::string& name,
             const std::optional<Records>& inner, nb::object together) {
            Records made = inner ? *inner : Records{};
            made.source = std::make_shared<FunctionSource>(
                fields_of(fields), size, function, together.is_none() ? nb::handle() : together,
                fingerprint, name, made.source);
            made.functions.push_back(std::move(function));
            if (!together.is_none()) made.functions.push_back(std::move(together));
            return made;
          },
          nb::arg("fields"), nb::arg("size"), nb::arg("function"),
          nb::arg("fingerprint") = nb::none(), nb::arg("name") = "", nb::arg("inner") = nb::none(),
          nb::arg("together") = nb::none())
      .def_prop_ro("size", [](const Records& self) { return self.source->size(); })
      .def_prop_ro("fields", [](const Records& self) { return described(*self.source); })
      .def("read", &read_record, nb::arg("record"), nb::arg("epoch"), nb::arg("seed"),
           nb::arg("addresses"))
      .def("length", &length_of, nb::arg("record"), nb::arg("epoch"), nb::arg("seed"),
           nb::arg("field"))
      .def("fingerprint", [](const Records& self) {
        const GilRelease released;
        return self.source->fingerprint();
      });
  bind_stages(records);
}

}  // namespace shardwise::python
