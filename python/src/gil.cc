#include "gil.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

// How long the end of Python waits for work that does not ask whether it is to end.
constexpr std::chrono::seconds kLongestEnd{5};

// Changed with the GIL only.
struct Ending {
  std::atomic<unsigned long> thread = 0;  // the one that ends Python; 0: it does not end
  int outside = 0;                        // threads in a GilRelease, but for that one
  std::vector<Work*> works;
};
Ending ending;

// How many with_gil() this thread is in: if any, C++ waits for it to come back.
thread_local int called_by_cpp = 0;

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// True if this thread must stop, because another one ends Python.
bool is_to_stay() { return called_by_cpp == 0 && python_ends_elsewhere(); }

// PyEval_RestoreThread may end the thread by pthread_exit, which must not unwind a destructor.
void restore(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    stay();
  }
}

void end_with_python() {
  ending.thread = PyThread_get_thread_ident();
  // Threads that do not end keep their references: nanobind need not warn of those.
  if (PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != nullptr) {
    nb::set_leak_warnings(false);
  }
  for (Work* const work : ending.works) work->cancel();
  const auto last = std::chrono::steady_clock::now() + kLongestEnd;
  while (ending.outside > 0 && std::chrono::steady_clock::now() < last) {
    PyThreadState* const state = PyEval_SaveThread();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
  }
}

}  // namespace

bool python_ends_elsewhere() {
  const unsigned long thread = ending.thread;
  return thread != 0 && thread != PyThread_get_thread_ident();
}

void stay() {
  for (;;) ::pause();
}

GilRelease::GilRelease() {
  if (is_to_stay()) {
    PyEval_SaveThread();
    stay();
  }
  ++ending.outside;
  state_ = PyEval_SaveThread();
}

GilRelease::~GilRelease() {
  restore(state_);
  --ending.outside;
  if (is_to_stay()) {
    PyEval_SaveThread();
    stay();
  }
}

GilAcquire::GilAcquire() {
  if (Py_IsInitialized() == 0 || (is_finalizing() && python_ends_elsewhere())) {
    throw Error(ErrorCode::cancelled, "call Python: it has ended");
  }
  try {
    state_ = PyGILState_Ensure();
  } catch (abi::__forced_unwind&) {
    stay();
  }
  ++called_by_cpp;
}

GilAcquire::~GilAcquire() {
  --called_by_cpp;
  PyGILState_Release(state_);
}

Listed::Listed(Work& work) : work_(work) { ending.works.push_back(&work); }
Listed::~Listed() { std::erase(ending.works, &work_); }

void bind_gil(nb::module_& module) {
  // In a child that fork() makes there is one thread: others do not let go of the objects that they
  // refer to.
  ::pthread_atfork(nullptr, nullptr, [] {
    ending.outside = 0;
    ending.works.clear();
    nb::set_leak_warnings(false);
  });
  module.def("end", &end_with_python);
}

}  // namespace shardwise::python
