#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "python_source.h"
#include "shardwise/runtime/process/call_group.h"
#include "shardwise/shard/error.h"

// A CallGroup waits in the functions of its store only, which are Python's and let other threads
// run. So all of it runs with the GIL, on the caller's thread: signals are seen, and what Python
// raises comes out at once.
namespace shardwise::python {
namespace {

using std::chrono::milliseconds;

/// `what` names its giver, as "work". Throws invalid_argument for anything but bytes.
Bytes bytes_of(nb::handle object, const std::string& what) {
  if (!nb::isinstance<nb::bytes>(object)) {
    throw Error(ErrorCode::invalid_argument, what + ": found a value of type " +
                                                 str_of(object.type().attr("__name__")) +
                                                 ", needed bytes");
  }
  const auto bytes = nb::cast<nb::bytes>(object);
  const auto* const data = static_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

/// The errno that other processes are told; 0 if it is no positive int.
int errno_of(nb::handle exception) {
  const nb::object number = nb::getattr(exception, "errno", nb::none());
  int found = 0;
  return nb::isinstance<nb::int_>(number) && nb::try_cast(number, found) ? std::max(found, 0) : 0;
}

/// An exception of Python's as other processes hear of it. `cause` is nested in it.
[[noreturn]] void throw_told(nb::handle exception, const std::exception_ptr& cause) {
  std::string text = error_text(exception);
  std::optional<ErrorCode> code;
  int system_error = 0;
  if (is_error(exception)) {
    code = code_of(exception);
    system_error = errno_of(exception);
    text = str_of(exception);
  }
  try {
    std::rethrow_exception(cause);
  } catch (...) {
    if (code) std::throw_with_nested(Error(*code, text, system_error));
    std::throw_with_nested(GroupError(text));
  }
}

/// Returns the result of a Python function, for a call of all ranks: if it raises, they all throw.
/// `interrupt` gets an error that is no Exception.
template <class Function>
Bytes told(const char* what, std::exception_ptr& interrupt, const Function& function) {
  return with_gil([&] {
    try {
      return bytes_of(function(), what);
    } catch (const nb::python_error& error) {
      const PythonRaised raised(error);
      const std::exception_ptr cause = std::make_exception_ptr(raised);
      if (raised.code() == ErrorCode::cancelled) interrupt = cause;
      throw_told(error.value(), cause);
    }
  });
}

/// An exception that Python raised in a function of the store. It is raised unchanged; other
/// processes get it as one line.
class StoreRaised : public nb::python_error {
 public:
  explicit StoreRaised(nb::python_error error)
      : nb::python_error(std::move(error)), text_(error_text(value())) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

template <class Function>
auto of_store(const Function& function) {
  return with_gil([&] {
    try {
      return function();
    } catch (nb::python_error& error) {
      throw StoreRaised(std::move(error));
    }
  });
}

/// Holds no reference to Python's store: the Group and the Calls that Python sees do, so that its
/// garbage collector sees each.
KeyValueStore store_of(nb::handle store, int rank, int size, const std::string& name) {
  return {
      .rank = rank,
      .size = size,
      .set =
          [store](const std::string& key, std::span<const std::byte> value) {
            of_store([&] { store.attr("set")(key, python_bytes(value)); });
          },
      .get = [store](const std::string& key, milliseconds wait) -> std::optional<Bytes> {
        return of_store([&]() -> std::optional<Bytes> {
          const std::chrono::duration<double> seconds = wait;
          const nb::object value = store.attr("get")(key, seconds.count());
          if (value.is_none()) return {};
          return bytes_of(value, "read " + key + " from the store");
        });
      },
      .remove = [store](const std::string& key) { of_store([&] { store.attr("delete")(key); }); },
      .prefix = "shardwise/" + name + "/",
      .is_fresh = nb::cast<bool>(nb::bool_(nb::getattr(store, "is_fresh", nb::bool_(false))))};
}

milliseconds milliseconds_of(double seconds) {
  constexpr double kMost = 1e9;
  return milliseconds(std::llround(1000 * (seconds > 0 ? std::min(seconds, kMost) : 0)));
}

nb::bytes agree(const CallGroup::Call& call, nb::handle work, nb::handle merge) {
  std::exception_ptr interrupt;
  const auto made = [&] { return told("work", interrupt, [&] { return work(); }); };
  const auto merged = [&](const std::vector<Bytes>& values) {
    return told("merge", interrupt, [&] {
      nb::list list;
      for (const Bytes& value : values) list.append(python_bytes(value));
      return merge(list);
    });
  };
  try {
    return python_bytes(call.agree(made, merged));
  } catch (...) {
    // Ctrl-C on this rank comes out as itself, whatever else has failed.
    if (interrupt) std::rethrow_exception(interrupt);
    throw;
  }
}

void end(const CallGroup::Call& call, nb::handle error) {
  std::exception_ptr told_error;
  if (!error.is_none()) {
    try {
      throw_told(error, std::make_exception_ptr(std::exception()));
    } catch (...) {
      told_error = std::current_exception();
    }
  }
  call.end(told_error);
}

}  // namespace

void bind_calls(nb::module_& module) {
  nb::class_<CallGroup::Call>(module, "Call")
      .def("agree", &agree, nb::arg("work"), nb::arg("merge"),
           nb::sig("def agree(self, work: collections.abc.Callable[[], bytes], "
                   "merge: collections.abc.Callable[[list[bytes]], bytes]) -> bytes"))
      .def("end", &end, nb::arg("error").none(),
           nb::sig("def end(self, error: BaseException | None) -> None"));
  nb::class_<CallGroup>(module, "CallGroup")
      .def(
          "__init__",
          [](CallGroup* self, nb::handle store, int rank, int size, const std::string& name) {
            new (self) CallGroup(store_of(store, rank, size, name));
          },
          nb::arg("store"), nb::arg("rank"), nb::arg("size"), nb::arg("name"))
      .def("duplicate", &CallGroup::duplicate)
      .def(
          "call",
          [](const CallGroup& self, std::string name, std::vector<CallGroup::Fact> same,
             double deadline) {
            return self.call(std::move(name), std::move(same), milliseconds_of(deadline));
          },
          nb::arg("name"), nb::arg("same"), nb::arg("deadline"));
}

}  // namespace shardwise::python
