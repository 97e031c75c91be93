#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "call_ranks.h"
#include "gil.h"
#include "parts.h"
#include "python_source.h"
#include "shardwise/checkpoint/attempt.h"
#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/jobs/save_together.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {
namespace {

nb::bytes write(const std::string& directory, std::int64_t writer, const Ints& starts,
                const std::vector<Source*>& sources, const std::string& codec, std::size_t memory,
                int threads, nb::object progress) {
  Work work(std::move(progress));
  const EncodeOptions options{.codec = parse_codec(codec),
                              .memory_budget_bytes = memory,
                              .threads = threads,
                              .progress = work.progress()};
  const ShardRecord record = work.run([&] {
    return jobs_detail::write_shards_at(directory, {writer, starts}, sources_of(sources), options);
  });
  return nb::bytes(record.data(), record.size());
}

/// How a checkpoint is saved, by all ranks of a call.
class SavedTogether {
 public:
  SavedTogether(nb::handle call, const Ints& starts, const std::vector<Source*>& sources,
                const std::string& codec, const std::string& existing, std::string user,
                const nb::bytes& described, nb::handle document, std::size_t memory, int threads,
                nb::object progress)
      : sources_(sources_of(sources)), work_(std::move(progress)), ranks_(call, &work_) {
    job_.existing = parse_existing(existing);
    job_.starts = starts;
    if (ranks_.size() > 1) job_.describe = [said = bytes_in(described)] { return said; };
    job_.document = [document](const std::vector<Bytes>& all) {
      return with_gil([&] {
        nb::list said;
        for (const Bytes& one : all) said.append(nb::bytes(one.data(), one.size()));
        return nb::cast<std::string>(document(said));
      });
    };
    encode_ = {.codec = parse_codec(codec),
               .memory_budget_bytes = memory,
               .threads = threads,
               .progress = work_.progress()};
    publish_ = {.user_json = std::move(user), .process = "rank"};
  }

  // As a checkpoint of any name.
  Dict as(const std::string& path, nb::handle find_earlier) {
    job_.unchanged_since = [find_earlier] {
      return with_gil([&] { return std::filesystem::path(nb::cast<std::string>(find_earlier())); });
    };
    return dict_of(without_gil(
        [&] { return save_together(ranks_, path, std::move(sources_), job_, encode_, publish_); }));
  }

  // As a step.
  Dict as(const JobStep& step, const jobs_detail::CallersPart& caller) {
    return dict_of(without_gil([&] {
      return jobs_detail::save_together(ranks_, step, caller, std::move(sources_), job_, encode_,
                                        publish_);
    }));
  }

 private:
  std::vector<TensorSource> sources_;
  Work work_;
  const CallRanks ranks_;
  JobSave job_;
  EncodeOptions encode_;
  PublishOptions publish_;
};

Dict save_together(nb::handle call, const std::string& path, const Ints& starts,
                   const std::vector<Source*>& sources, const std::string& codec,
                   const std::string& existing, std::string user, const nb::bytes& described,
                   nb::handle document, nb::handle find_earlier, std::size_t memory, int threads,
                   nb::object progress) {
  return SavedTogether(call, starts, sources, codec, existing, std::move(user), described, document,
                       memory, threads, std::move(progress))
      .as(path, find_earlier);
}

/// A CheckpointAttempt, which Python may publish or abandon.
class Attempt {
 public:
  Attempt(const std::string& path, const std::string& existing) {
    const GilRelease released;
    attempt_ = jobs_detail::attempt_at(path, parse_existing(existing));
  }

  std::string directory() const { return get()->directory().string(); }

  Dict publish(const std::vector<nb::bytes>& records, std::string user, std::string objects) {
    std::vector<ShardRecord> list;
    for (const nb::bytes& record : records) list.push_back(bytes_in(record));
    const PublishOptions options{
        .user_json = std::move(user), .objects_json = std::move(objects), .process = "rank"};
    SaveStats stats;
    {
      std::shared_ptr<CheckpointAttempt> kept = get();
      const GilRelease released;
      const std::shared_ptr<CheckpointAttempt> attempt = std::move(kept);
      const std::lock_guard lock(publishing_);
      stats = attempt->publish(list, options);
    }
    attempt_.reset();
    return dict_of(stats);
  }

  /// Does nothing once the attempt is published. If it is being published, that call decides
  /// whether it stays.
  void abandon() {
    std::shared_ptr<CheckpointAttempt> dropped = std::move(attempt_);
    const GilRelease released;
    dropped.reset();
  }

 private:
  const std::shared_ptr<CheckpointAttempt>& get() const {
    process_.check("an attempt");
    if (!attempt_) throw Error(ErrorCode::invalid_argument, "this attempt has ended");
    return attempt_;
  }

  OwnProcess process_;
  std::mutex publishing_;
  std::shared_ptr<CheckpointAttempt> attempt_;
};

/// The members of a CallersPart.
using CallerArgument = std::tuple<double, bool, std::size_t>;

jobs_detail::CallersPart part_of(const CallerArgument& caller) {
  const auto& [waited, is_waiting, copied] = caller;
  return {.waited_seconds = waited, .is_waiting = is_waiting, .copied_bytes = copied};
}

/// Its number, its path, and the paths and reasons of those that were passed over.
using FoundStep =
    std::tuple<std::int64_t, std::string, std::vector<std::pair<std::string, std::string>>>;

std::optional<FoundStep> found_of(const std::optional<LatestStep>& latest) {
  if (!latest) return std::nullopt;
  std::vector<std::pair<std::string, std::string>> rejected;
  for (const RejectedStep& step : latest->rejected) {
    rejected.emplace_back(step.directory.string(), step.reason);
  }
  return FoundStep(latest->step.step, latest->step.directory.string(), std::move(rejected));
}

/// A CheckpointManager of one process.
class Manager {
 public:
  // best: metric, whether the largest value is the best, how many. Intervals in seconds.
  Manager(const std::string& root, std::int64_t keep_last, std::int64_t keep_every,
          std::int64_t keep_interval,
          std::optional<std::tuple<std::string, bool, std::int64_t>> best, std::int64_t save_every,
          std::int64_t save_interval, std::vector<int> preemption_signals, double preemption_grace,
          int threads, bool collect_garbage, bool increments, int parity_blocks,
          const std::string& on_save_error, std::int64_t most_failed_saves, bool write_stats) {
    const GilRelease released;
    ManagerOptions options{.keep = {.last = keep_last,
                                    .every = keep_every,
                                    .interval = std::chrono::seconds(keep_interval)},
                           .when = {.every = save_every,
                                    .interval = std::chrono::seconds(save_interval),
                                    .preemption_signals = std::move(preemption_signals),
                                    .preemption_grace = std::chrono::milliseconds(
                                        static_cast<std::int64_t>(preemption_grace * 1000))},
                           .write = {.on_save_error = on_save_error_of(on_save_error),
                                     .most_failed_saves = most_failed_saves,
                                     .increments = increments,
                                     .parity_blocks = parity_blocks,
                                     .stats = write_stats,
                                     .threads = threads},
                           .collect_garbage = collect_garbage};
    if (best) {
      const auto& [metric, is_max, count] = *best;
      options.keep.best = {.metric = metric,
                           .order = is_max ? BestSteps::Order::max : BestSteps::Order::min,
                           .count = count};
    }
    options.warn = warnings_.teller();
    manager_ = std::make_unique<CheckpointManager>(root, options);
  }

  Dict save(std::int64_t step, const std::vector<Source*>& sources, const std::string& codec,
            const std::string& existing, std::string user, std::string objects, std::size_t memory,
            const CallerArgument& caller, nb::object progress) {
    CheckpointManager& manager = get();
    Work work(std::move(progress));
    const Active active(saves_, work);
    SaveOptions options{.codec = parse_codec(codec),
                        .user_json = std::move(user),
                        .objects_json = std::move(objects),
                        .existing = parse_existing(existing),
                        .memory_budget_bytes = memory};
    options.progress = work.progress();
    return dict_of(work.run([&] {
      return jobs_detail::save_for_caller(manager, step, sources_of(sources), options,
                                          part_of(caller));
    }));
  }

  std::vector<std::string> take_warnings() { return warnings_.take(); }

  /// By all ranks of `call`; `ends` is one by which they agree how it has ended.
  Dict save_together(nb::handle call, nb::handle ends, std::int64_t step, const Ints& starts,
                     const std::vector<Source*>& sources, const std::string& codec,
                     const std::string& existing, std::string user, const nb::bytes& described,
                     nb::handle document, std::size_t memory, const CallerArgument& caller,
                     nb::object progress) {
    const CallRanks of_ends(ends);
    return SavedTogether(call, starts, sources, codec, existing, std::move(user), described,
                         document, memory, 0, std::move(progress))
        .as({.manager = get(), .step = step, .ends = of_ends}, part_of(caller));
  }

  /// Numbers, paths, and whether a save replaces them, as they are damaged or set aside.
  std::vector<std::tuple<std::int64_t, std::string, bool>> steps() const {
    const GilRelease released;
    std::vector<std::tuple<std::int64_t, std::string, bool>> steps;
    for (const Step& step : get().steps()) {
      steps.emplace_back(step.step, step.directory.string(), step.is_set_aside || step.is_damaged);
    }
    return steps;
  }

  std::optional<FoundStep> latest(nb::handle call) const {
    const CallRanks ranks(call);
    return found_of(without_gil([&] { return latest_together(ranks, get()); }));
  }

  /// read(path) reads a step on this rank.
  std::optional<FoundStep> restore(nb::handle call, nb::handle read,
                                   std::optional<std::int64_t> step) const {
    const CallRanks ranks(call);
    const auto reading = [&](const Step& found) {
      with_gil([&] {
        try {
          read(found.directory.string());
        } catch (const nb::python_error& error) {
          const auto code = code_of(error.value());
          if (code) throw PythonRaised(error, *code);
          throw;
        }
      });
    };
    return found_of(without_gil([&] { return restore_together(ranks, get(), reading, step); }));
  }

  std::string step(std::int64_t step) const {
    const GilRelease released;
    return get().step(step).directory.string();
  }

  void close() {
    CheckpointManager& manager = get();
    const GilRelease released;
    manager.close();
  }

  void remove(std::int64_t step) {
    const GilRelease released;
    get().remove(step);
  }

  bool should_save(nb::handle call, std::int64_t step, bool is_told) {
    const CallRanks ranks(call);
    return without_gil(
        [&] { return jobs_detail::should_save_together(ranks, get(), step, is_told); });
  }
  void request_save() { get().request_save(); }
  bool reached_preemption() const { return get().preemption().is_reached; }

  std::optional<double> time_left() const {
    const std::optional<std::chrono::nanoseconds> left = get().preemption().time_left;
    if (!left) return std::nullopt;
    return std::chrono::duration<double>(*left).count();
  }

  std::optional<std::int64_t> best() const {
    const GilRelease released;
    const std::optional<Step> best = best_step(get());
    return best ? std::optional(best->step) : std::nullopt;
  }

  void pin(std::int64_t step, const std::string& name) {
    const GilRelease released;
    get().pins().add(step, name);
  }

  void unpin(const std::string& name) {
    const GilRelease released;
    get().pins().remove(name);
  }

  std::vector<std::pair<std::string, std::int64_t>> pinned() const {
    const GilRelease released;
    std::vector<std::pair<std::string, std::int64_t>> named;
    for (const NamedStep& one : get().pins().list()) named.emplace_back(one.name, one.step);
    return named;
  }

  void refuse_existing(std::int64_t step) const {
    const GilRelease released;
    jobs_detail::refuse_existing(get(), step);
  }
  void begin_later(std::int64_t step) { jobs_detail::begin_later(get(), step); }

  ManagerStatsTuple stats() const { return members_of(get().stats()); }

  std::pair<std::vector<std::string>, std::vector<std::string>> collect_garbage(
      std::vector<std::string> dead_hosts) {
    const GilRelease released;
    const GarbageReport report = get().collect_garbage({.dead_hosts = std::move(dead_hosts)});
    return {report.removed, report.kept};
  }

 private:
  // A signal's handler, which runs inside a save, may call save, too. It then waits for the first
  // one, which must not wait for its progress function: that is called when the handler is done.
  class Active {
   public:
    Active(std::vector<Work*>& all, Work& work) : all_(all), work_(&work) {
      for (Work* const other : all_) other->go_on();
      all_.push_back(work_);
    }
    ~Active() { std::erase(all_, work_); }
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;

   private:
    std::vector<Work*>& all_;
    Work* work_;
  };

  CheckpointManager& get() const {
    process_.check("a CheckpointManager");
    return *manager_;
  }

  OwnProcess process_;
  Warnings warnings_;
  std::unique_ptr<CheckpointManager> manager_;
  std::vector<Work*> saves_;  // under way; with the GIL
};

}  // namespace

void bind_save(nb::module_& module) {
  module.def("write_shards", &write, nb::arg("directory"), nb::arg("writer"), nb::arg("starts"),
             nb::arg("sources"), nb::arg("codec"), nb::arg("memory"), nb::arg("threads"),
             nb::arg("progress") = nb::none());
  module.def("save_together", &save_together, nb::arg("call"), nb::arg("path"), nb::arg("starts"),
             nb::arg("sources"), nb::arg("codec"), nb::arg("existing"), nb::arg("user"),
             nb::arg("described"), nb::arg("document"), nb::arg("find_earlier"), nb::arg("memory"),
             nb::arg("threads"), nb::arg("progress") = nb::none());
  module.def(
      "is_saved",
      [](const std::string& path) {
        const GilRelease released;
        return jobs_detail::is_saved_at(path);
      },
      nb::arg("path"));
  nb::class_<Attempt>(module, "Attempt")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("path"),
           nb::arg("existing") = "fail")
      .def_prop_ro("directory", &Attempt::directory)
      .def("publish", &Attempt::publish, nb::arg("records"), nb::arg("user") = "{}",
           nb::arg("objects") = "")
      .def("abandon", &Attempt::abandon);
  nb::class_<Manager>(module, "Manager")
      .def(nb::init<const std::string&, std::int64_t, std::int64_t, std::int64_t,
                    std::optional<std::tuple<std::string, bool, std::int64_t>>, std::int64_t,
                    std::int64_t, std::vector<int>, double, int, bool, bool, int,
                    const std::string&, std::int64_t, bool>(),
           nb::arg("root"), nb::arg("keep_last") = 0, nb::arg("keep_every") = 0,
           nb::arg("keep_interval") = 0, nb::arg("best") = nb::none(), nb::arg("save_every") = 1,
           nb::arg("save_interval") = 0, nb::arg("preemption_signals") = std::vector<int>(),
           nb::arg("preemption_grace") = 0.0, nb::arg("threads") = 0,
           nb::arg("collect_garbage") = true, nb::arg("increments") = true,
           nb::arg("parity_blocks") = 0, nb::arg("on_save_error") = "raise",
           nb::arg("most_failed_saves") = 3, nb::arg("write_stats") = false)
      .def("save", &Manager::save, nb::arg("step"), nb::arg("sources"), nb::arg("codec"),
           nb::arg("existing"), nb::arg("user"), nb::arg("objects"), nb::arg("memory"),
           nb::arg("caller"), nb::arg("progress") = nb::none())
      .def("save_together", &Manager::save_together, nb::arg("call"), nb::arg("ends"),
           nb::arg("step"), nb::arg("starts"), nb::arg("sources"), nb::arg("codec"),
           nb::arg("existing"), nb::arg("user"), nb::arg("described"), nb::arg("document"),
           nb::arg("memory"), nb::arg("caller"), nb::arg("progress") = nb::none())
      .def("steps", &Manager::steps)
      .def("latest", &Manager::latest, nb::arg("call"))
      .def("restore", &Manager::restore, nb::arg("call"), nb::arg("read"),
           nb::arg("step").none() = nb::none())
      .def("step", &Manager::step, nb::arg("step"))
      .def("take_warnings", &Manager::take_warnings)
      .def("close", &Manager::close)
      .def("remove", &Manager::remove, nb::arg("step"))
      .def("should_save", &Manager::should_save, nb::arg("call"), nb::arg("step"),
           nb::arg("is_told"))
      .def("request_save", &Manager::request_save)
      .def("reached_preemption", &Manager::reached_preemption)
      .def("time_left", &Manager::time_left)
      .def("best", &Manager::best)
      .def("pin", &Manager::pin, nb::arg("step"), nb::arg("name"))
      .def("unpin", &Manager::unpin, nb::arg("name"))
      .def("pinned", &Manager::pinned)
      .def("refuse_existing", &Manager::refuse_existing, nb::arg("step"))
      .def("begin_later", &Manager::begin_later, nb::arg("step"))
      .def("stats", &Manager::stats)
      .def("collect_garbage", &Manager::collect_garbage, nb::arg("dead_hosts"));
}

}  // namespace shardwise::python
