#include "work.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <future>

#include "gil.h"
#include "shardwise/shard/error.h"

namespace shardwise::python {

ProgressFunction Work::progress() {
  return [this](const Progress& progress) {
    done_ = progress.done_bytes;
    total_ = progress.total_bytes;
    // However short the work is, the function is called before it ends; look() calls it once the
    // total is known.
    if (!progress_.is_none() && total_ > 0) looked_.wait(false);
    if (cancelled_) throw Error(ErrorCode::cancelled, "it was interrupted");
  };
}

void Work::cancel() {
  cancelled_ = true;
  if (told_ != nullptr) *told_ = true;
  go_on();
}

void Work::look() {
  if (python_ends_elsewhere()) return;  // and end() has cancelled it
  with_gil([&] {
    if (PyErr_CheckSignals() != 0) {
      is_signal_ = true;
      throw nb::python_error();
    }
    if (progress_.is_none() || total_ == 0) return;
    progress_(done_.load(), total_.load());
    go_on();
  });
}

void Work::go_on() {
  looked_ = true;
  looked_.notify_all();
}

void Work::run_body(const std::function<void()>& body) {
  std::exception_ptr raised, failed;
  const Listed listed(*this);
  {
    const GilRelease released;
    std::future<void> done = std::async(std::launch::async, body);
    while (done.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
      if (raised) continue;
      try {
        look();
      } catch (...) {
        raised = std::current_exception();
        cancel();
      }
    }
    try {
      done.get();
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (raised && (failed || is_signal_)) std::rethrow_exception(raised);
  if (failed) std::rethrow_exception(failed);
  // The work is done: an exception of the function comes too late to stop it.
  try {
    if (raised) std::rethrow_exception(raised);
    const std::size_t all = total_ > 0 ? total_.load() : done_.load();
    if (!progress_.is_none() && all > 0) progress_(all, all);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("progress of finished work");
  }
}

void OwnProcess::check(const char* what) const {
  if (::getpid() == pid_) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("{}: it was made in process {}, and this process is a fork of that one: make it "
                  "here, or start processes by \"spawn\"",
                  what, pid_));
}

}  // namespace shardwise::python
