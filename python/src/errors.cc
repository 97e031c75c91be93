#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "bindings.h"
#include "python_source.h"
#include "shardwise/runtime/process/call_group.h"
#include "shardwise/shard/error.h"

namespace shardwise::python {
namespace {

// shardwise._errors makes an exception of the class that belongs to the code.
void raise(const Error& error) {
  // An exception of Python in a loader's thread comes out as it was, with a note of the place.
  const auto set = [](const PythonRaised& raised, const std::string& note) {
    raised.set_error(note == raised.what() ? "" : note);
  };
  if (if_python_raised(error, set)) return;
  const bool is_group = dynamic_cast<const GroupError*>(&error) != nullptr;
  const nb::object made = nb::module_::import_("shardwise._errors")
                              .attr("made")(is_group ? "group" : std::string(name(error.code())),
                                            error.what(), error.system_error());
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

}  // namespace

std::optional<ErrorCode> code_named(const std::string& word) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::cancelled); ++i) {
    if (name(static_cast<ErrorCode>(i)) == word) return static_cast<ErrorCode>(i);
  }
  return {};
}

bool is_error(nb::handle exception) {
  return nb::isinstance(exception, nb::module_::import_("shardwise._errors").attr("Error"));
}

std::optional<ErrorCode> code_of(nb::handle exception) {
  if (!is_error(exception)) return {};
  return code_named(str_of(nb::getattr(exception, "code", nb::none())));
}

std::string str_of(nb::handle object) {
  try {
    const nb::object encoded = nb::str(object).attr("encode")("utf-8", "backslashreplace");
    const nb::bytes bytes(encoded);
    return {static_cast<const char*>(bytes.data()), bytes.size()};
  } catch (const nb::python_error&) {
    return "(its text cannot be made)";
  }
}

std::string error_text(nb::handle exception) {
  return str_of(exception.type().attr("__name__")) + ": " + str_of(exception);
}

void bind_errors(nb::module_& /*module*/) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    } catch (const std::bad_alloc&) {  // shardwise._argument_types adds the operation
      raise(Error(ErrorCode::resource_exhausted, "there is too little memory"));
    } catch (const std::system_error& error) {  // of a thread that cannot start
      raise(Error(ErrorCode::io, std::string("start a thread: ") + error.what(),
                  error.code().value()));
    }
  });
}

}  // namespace shardwise::python
