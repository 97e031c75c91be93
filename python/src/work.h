#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "bindings.h"
#include "shardwise/checkpoint/info.h"

namespace shardwise::python {

/// A call of the library that blocks, seen from Python: it runs on a thread of its own while the
/// caller, without the GIL, looks every 20 ms for signals and tells a Python function how far it
/// has come. What a signal handler or that function raises ends the work (ErrorCode::cancelled),
/// is waited for, and comes out of the call; of the function not where the work was done already.
class Work {
 public:
  /// `progress`: None, or a function of two ints, bytes done and in total. `cancelled`, which may
  /// be null, is set where the work is to end, for work that does not ask this object's progress().
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
