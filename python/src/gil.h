#pragma once

#include <cxxabi.h>

#include <type_traits>

#include "bindings.h"

namespace shardwise::python {

/// Lets other threads of Python run while it exists. Made and dropped with the GIL.
///
/// Unlike nanobind's, it outlives Python: when the interpreter ends (end_with_python) or has ended,
/// a thread that would go on in Python stays here for good, as a daemon thread of Python's may,
/// unless C++ called it (with_gil). It does not unwind, so it must hold no lock that another thread
/// wants: locks are taken, and references that may be the last are dropped, in a scope inside this
/// one's.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

/// True if Python is ending and another thread than this one ends it. With or without the GIL.
bool python_ends_elsewhere();

/// Stays here, without the GIL, until the process has ended.
[[noreturn]] void stay();

/// Has the GIL, on any thread. Throws cancelled if Python has ended.
class GilAcquire {
 public:
  GilAcquire();
  ~GilAcquire();
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Calls `body`, which runs Python's code, with the GIL, from any thread. Throws as `body` does,
/// and cancelled if Python has ended.
template <class Body>
auto with_gil(const Body& body) {
  const GilAcquire gil;
  // A thread that waits for the GIL when Python ends is ended by pthread_exit, which unwinds.
  try {
    return body();
  } catch (abi::__forced_unwind&) {
    stay();
  }
}

void bind_gil(nb::module_& module);

}  // namespace shardwise::python
