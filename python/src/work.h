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
// 1. What blocks or takes long runs in a GilRelease (gil.h), or by Work; what blocks in functions
// of
//    Python's alone (calls.cc) keeps the GIL, which they give up. nanobind's own guards are not
//    used: they end the process if Python ends meanwhile.
// 2. An object that can be closed holds what it closes by a shared_ptr. A call copies the pointer
//    with the GIL and uses the copy; close() drops the object's own. So a call beside close() ends
//    well, and later ones throw invalid_argument.
// 3. What C++ says is for one thread at a time is guarded by a mutex of the binding. It is taken
//    without the GIL, for a moment at a time, and given back before the GIL is taken again.
// 4. C++ calls Python by with_gil(). Threads that do so are joined before Python ends, by the
//    atexit function of shardwise._loader and by end(), which ends all Work.
// 5. Objects of other threads are dropped with the GIL: held().
// 6. What another process has made says so: OwnProcess.

/// A call of the library that blocks, seen from Python: it runs on a thread of its own while the
/// caller, without the GIL, looks every 20 ms for signals and tells a Python function how far it
/// has come. What a signal handler or that function raises ends the work (ErrorCode::cancelled).
/// The call waits for the work's end, then raises it. What the function raises after the work is
/// done is not raised.
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
