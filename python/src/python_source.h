#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bindings.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise::python {

/// What Python raised in a reading thread, to be raised again, as it is, in the call that would
/// deliver the record. Code corrupt: a record that cannot be made is a bad one.
class PythonRaised : public Error {
 public:
  /// Takes over Python's exception. Call with the GIL.
  explicit PythonRaised(const nb::python_error& error);

  /// Sets Python's error to the exception, with a note that says where it happened. Call with the
  /// GIL.
  void set_error(const std::string& note) const;

 private:
  std::shared_ptr<nb::object> value_;  // dropped with the GIL
  mutable bool is_noted_ = false;
};

/// A source for Python: holds what the C++ takes.
struct Records {
  std::shared_ptr<const shardwise::Source> source;
};

/// An object that threads without the GIL may drop.
std::shared_ptr<nb::object> held(nb::object object);

void bind_records(nb::module_& module);
void bind_stages(nb::class_<Records>& records);

}  // namespace shardwise::python
