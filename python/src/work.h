#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "bindings.h"
#include "shardwise/checkpoint/box_reader.h"

namespace shardwise::python {

// Rules of lifetime, which python/tests/test_lifetimes.py tests for every binding:
//
// 1. A call that blocks or takes long runs in a GilRelease (gil.h), or by Work. One that blocks
//    only in Python functions (calls.cc) keeps the GIL, which they release. nanobind's own guards
//    are not used: they end the process if Python ends while they wait.
// 2. An object that can be closed holds its content by a shared_ptr. A call copies the pointer
//    with the GIL and uses the copy; close() drops the object's own. So a call during close() ends
//    well, and later ones throw invalid_argument.
// 3. A mutex of the binding guards each C++ object that is for one thread at a time. It is taken
//    without the GIL, for a moment at a time, and given back before the GIL is taken again.
// 4. C++ calls Python by with_gil(). Threads that do so are joined before Python ends, by the
//    atexit function of shardwise._loader and by end(), which ends all Work.
// 5. Objects of other threads are dropped with the GIL: held().
// 6. What another process has made says so: OwnProcess.

/// A blocking call of the library, made from Python: it runs on a thread of its own while the
/// caller, without the GIL, looks for signals every 20 ms and reports the progress to a Python
/// function. An exception of a signal handler or of that function ends the work
/// (ErrorCode::cancelled); the call waits for the work's end, then raises it. An exception of the
/// function after the work is done is not raised.
class Work {
 public:
  /// `progress`: None, or a function of two ints, bytes done and in total. `cancelled`, which may
  /// be null, is set if the work is to end, for work that does not ask this object's progress().
  explicit Work(nb::object progress, std::atomic<bool>* cancelled = nullptr)
      : progress_(std::move(progress)), told_(cancelled) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// For SaveOptions::progress or ReadOptions::progress.
  ProgressFunction progress();

  /// Runs and returns what body returns. Call with the GIL.
  template <class Body>
  auto run(const Body& body) {
    using Result = std::invoke_result_t<Body>;
    if constexpr (std::is_void_v<Result>) {
      run_body([&] { body(); });
    } else {
      std::optional<Result> result;
      run_body([&] { result.emplace(body()); });
      return std::move(*result);
    }
  }

  /// The body is to end. With the GIL, from any thread.
  void cancel();

  bool is_cancelled() const { return cancelled_; }

  /// The work no longer waits until the progress function has been called once.
  void go_on();

 private:
  void run_body(const std::function<void()>& body);
  void look();

  nb::object progress_;
  std::atomic<bool> cancelled_ = false, looked_ = false;
  bool is_signal_ = false;  // what look() threw
  std::atomic<bool>* told_;
  std::atomic<std::size_t> done_ = 0, total_ = 0;
};

/// Holds a work among those that end with Python. Made and dropped with the GIL.
class Listed {
 public:
  explicit Listed(Work& work);
  ~Listed();
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;

 private:
  Work& work_;
};

/// Which process has made an object. Throws unsupported in a child that fork() made of it: threads
/// and open files are its parent's.
class OwnProcess {
 public:
  void check(const char* what) const;
  bool is_own() const { return ::getpid() == pid_; }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace shardwise::python
