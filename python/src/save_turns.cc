#include "shardwise/jobs/detail/save_turns.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "call_ranks.h"
#include "gil.h"
#include "shardwise/shard/error.h"

namespace shardwise::python {
namespace {

using jobs_detail::SaveTurns;
using Clock = std::chrono::steady_clock;

/// The error of a save, which Python has: Python's collector sees no reference that is here.
struct SaveFailed {
  std::int64_t number;
};

/// Returns when the save has ended, or after `seconds`; says whether it has. Looks for signals, so
/// it may throw the error of a handler. Call with the GIL.
bool wait(jobs_detail::Saving& saving, std::optional<double> seconds) {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  constexpr double kMost = 1e9;
  const bool is_endless = !seconds || *seconds < 0 || *seconds > kMost;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(is_endless ? kMost : *seconds));
  while (!saving.done && Clock::now() < end) {
    {
      const GilRelease released;
      const MutexLock lock(saving.mutex);
      if (!saving.done) {
        saving.changed.wait_until(saving.mutex, std::min(end, Clock::now() + kBetweenLooks));
      }
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return saving.done;
}

/// A save on a thread of Python's. `number` is one of its own.
class Saving {
 public:
  explicit Saving(std::int64_t number) : number_(number) {}

  void end(bool has_failed) {
    saving_->end(has_failed ? std::make_exception_ptr(SaveFailed{number_}) : nullptr);
  }
  bool done() const { return saving_->done; }
  bool wait(std::optional<double> seconds) { return python::wait(*saving_, seconds); }

  void see_error() {
    const MutexLock lock(saving_->mutex);
    saving_->error_seen = true;
  }

  std::int64_t number() const { return number_; }
  const std::shared_ptr<jobs_detail::Saving>& shared() const { return saving_; }

 private:
  const std::int64_t number_;
  std::shared_ptr<jobs_detail::Saving> saving_ = std::make_shared<jobs_detail::Saving>();
};

/// The turn of a save that comes when the one before has ended, unless a newer one replaces it.
class Turn {
 public:
  explicit Turn(std::shared_ptr<jobs_detail::Saving> before) : before_(std::move(before)) {}

  bool begins(nb::handle call) const {
    const CallRanks ranks(call);
    return without_gil([&] { return SaveTurns::may_begin(before_.get(), ranks); });
  }

 private:
  std::shared_ptr<jobs_detail::Saving> before_;
};

WhenBusy when_busy_of(const std::string& word) {
  if (word == "skip") return WhenBusy::skip;
  return word == "replace" ? WhenBusy::replace : WhenBusy::wait;
}

/// A SaveTurns. All of it runs with the GIL, but for what waits.
class Turns {
 public:
  Turns(const std::string& when_busy, bool is_shared)
      : turns_(when_busy_of(when_busy),
               is_shared ? SaveTurns::Errors::all : SaveTurns::Errors::unseen,
               [](jobs_detail::Saving& saving) { python::wait(saving, std::nullopt); }) {}

  /// The turn, or the number of a save whose error is to be raised.
  std::pair<std::string, std::optional<std::int64_t>> next(nb::handle call) {
    const char* const words[] = {"now", "later", "skipped"};
    SaveTurns::Turn turn{};
    const auto failed = number_of_failed([&] {
      try {
        turn = turns_.next(CallRanks(call));
      } catch (const jobs_detail::EarlierSaveFailed& e) {
        std::rethrow_exception(e.error);
      }
    });
    return {words[static_cast<int>(turn)], failed};
  }

  std::optional<std::int64_t> finish() {
    return number_of_failed([&] { turns_.finish(); });
  }

  void add(const Saving& saving) { turns_.add(saving.shared()); }
  bool has(const Saving& saving) const { return turns_.has(*saving.shared()); }
  Turn later() const { return Turn(turns_.current()); }

 private:
  template <class Body>
  static std::optional<std::int64_t> number_of_failed(const Body& body) {
    try {
      body();
    } catch (const SaveFailed& e) {
      return e.number;
    }
    return std::nullopt;
  }

  SaveTurns turns_;
};

}  // namespace

void bind_save_turns(nb::module_& module) {
  nb::class_<Saving>(module, "Saving")
      .def(nb::init<std::int64_t>(), nb::arg("number"))
      .def("end", &Saving::end, nb::arg("has_failed"))
      .def("done", &Saving::done)
      .def("wait", &Saving::wait, nb::arg("seconds").none() = nb::none())
      .def("see_error", &Saving::see_error)
      .def_prop_ro("number", &Saving::number);
  nb::class_<Turn>(module, "Turn").def("begins", &Turn::begins, nb::arg("call"));
  nb::class_<Turns>(module, "SaveTurns")
      .def(nb::init<const std::string&, bool>(), nb::arg("when_busy"), nb::arg("is_shared"))
      .def("next", &Turns::next, nb::arg("call"))
      .def("finish", &Turns::finish)
      .def("add", &Turns::add, nb::arg("saving"))
      .def("has", &Turns::has, nb::arg("saving"))
      .def("later", &Turns::later);
}

}  // namespace shardwise::python
