#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise::python {

/// An exception that Python raised in a reading thread. The call that would deliver the record
/// raises it again, unchanged. Its code is corrupt, as a record that cannot be made is a bad one;
/// or cancelled, if it is no Exception (KeyboardInterrupt, say).
class PythonRaised : public Error {
 public:
  /// Takes over Python's exception. Call with the GIL.
  /// A StopIteration becomes the cause of a RuntimeError.
  explicit PythonRaised(const nb::python_error& error);

  /// With another code: that of a shardwise.Error, whose text is then this one's.
  PythonRaised(const nb::python_error& error, ErrorCode code);

  /// Sets Python's error to the exception, with a note that says where it happened. Call with the
  /// GIL.
  void set_error(const std::string& note) const;

  const std::shared_ptr<nb::object>& value() const { return value_; }

 private:
  explicit PythonRaised(nb::object error);

  std::shared_ptr<nb::object> value_;  // dropped with the GIL
  mutable bool is_noted_ = false;
};

/// Calls `body` with Python's exception and its message if the error has come from one.
/// Returns whether it has.
bool if_python_raised(const Error& error,
                      const std::function<void(const PythonRaised&, const std::string&)>& body);

/// A source as Python holds it.
struct Records {
  std::shared_ptr<const shardwise::Source> source;

  /// The Python functions that the source calls. It holds no reference to them. What holds the
  /// source holds them, too, so that Python's garbage collector sees each reference.
  std::vector<nb::object> functions = {};
};

/// An object that threads without the GIL may drop.
std::shared_ptr<nb::object> held(nb::object object);

void bind_records(nb::module_& module);
void bind_stages(nb::class_<Records>& records);

}  // namespace shardwise::python
