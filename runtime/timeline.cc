#include "shardwise/runtime/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <new>
#include <utility>

namespace shardwise {
namespace {

using Kind = TimelineEvent::Kind;

constexpr std::array<std::string_view, 5> kKinds = {"compute", "collective", "compile", "read",
                                                    "wait"};

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

/// A thread's name: by work that no other kind of thread does.
std::string_view thread_kind(const std::vector<TimelineEvent>& events, int thread) {
  std::string_view found = "worker";
  for (const TimelineEvent& event : events) {
    if (event.thread != thread) continue;
    if (event.kind == Kind::wait || event.kind == Kind::compile) return "job";
    if (event.kind == Kind::read) found = "reader";
  }
  return found;
}

struct Interval {
  std::int64_t begin_ns, end_ns;
};

constexpr double kSecond = 1e9;

/// The part of an event that is within an interval; of length 0 if it does not overlap.
Interval within(const TimelineEvent& event, const Interval& bounds) {
  const std::int64_t begin = std::max(event.begin_ns, bounds.begin_ns);
  return {begin, std::max(begin, std::min(event.end_ns, bounds.end_ns))};
}

/// How long at least one of them lasts.
std::int64_t covered_ns(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin_ns);
  std::int64_t covered = 0, end = INT64_MIN;
  for (const Interval& interval : intervals) {
    if (interval.end_ns <= end) continue;
    covered += interval.end_ns - std::max(interval.begin_ns, end);
    end = interval.end_ns;
  }
  return covered;
}

}  // namespace

std::string_view name(TimelineEvent::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::int64_t Timeline::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              began_)
      .count();
}

void Timeline::add(TimelineEvent event) {
  const MutexLock lock(mutex_);
  if (events_.size() >= most_events_) {
    ++dropped_;
    return;
  }
  const auto next = static_cast<int>(threads_.size());
  event.thread = threads_.try_emplace(std::this_thread::get_id(), next).first->second;
  events_.push_back(std::move(event));
}

std::vector<TimelineEvent> Timeline::events() const {
  const MutexLock lock(mutex_);
  return events_;
}

std::int64_t Timeline::dropped() const {
  const MutexLock lock(mutex_);
  return dropped_;
}

TimelineScope::~TimelineScope() {
  if (timeline_ == nullptr) return;
  try {
    timeline_->add({.kind = kind_,
                    .name = std::string(name_),
                    .begin_ns = begin_ns_,
                    .end_ns = timeline_->now_ns(),
                    .device = device_});
  } catch (const std::bad_alloc&) {
    // The program goes on without this event.
  }
}

std::string to_trace_json(const Timeline& timeline) {
  const std::vector<TimelineEvent> events = timeline.events();
  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  int threads = 0;
  for (const TimelineEvent& event : events) threads = std::max(threads, event.thread + 1);
  for (int thread = 0; thread < threads; ++thread) {
    json += fmt::format(
        "{}\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":{},\"args\":{{\"name\":\"{} "
        "{}\"}}}}",
        thread == 0 ? "" : ",", thread, thread_kind(events, thread), thread);
  }
  for (const TimelineEvent& event : events) {
    // In microseconds.
    json += fmt::format(
        ",\n{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":0,\"tid\":{},\"ts\":{}.{:03},"
        "\"dur\":{}.{:03},\"args\":{{",
        quoted(event.name), name(event.kind), event.thread, event.begin_ns / 1000,
        event.begin_ns % 1000, (event.end_ns - event.begin_ns) / 1000,
        (event.end_ns - event.begin_ns) % 1000);
    if (event.device >= 0) json += fmt::format("\"device\":{}", event.device);
    if (event.device >= 0 && event.batch >= 0) json += ',';
    if (event.batch >= 0) json += fmt::format("\"batch\":{}", event.batch);
    json += "}}";
  }
  return json + "\n]}\n";
}

std::string_view StepTimes::bound() const {
  const std::array<std::pair<double, std::string_view>, 5> parts = {{
      {computed_seconds, "compute"},
      {waited_seconds, "loader"},
      {exchanged_seconds, "collective"},
      {compiled_seconds, "compile"},
      {other_seconds, "job"},
  }};
  return std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; })->second;
}

std::vector<StepTimes> step_times(const Timeline& timeline) {
  std::vector<TimelineEvent> waits, work;  // in order of their beginnings
  for (TimelineEvent& event : timeline.events()) {
    if (event.kind == Kind::read) continue;
    (event.kind == Kind::wait ? waits : work).push_back(std::move(event));
  }
  std::ranges::sort(waits, {}, &TimelineEvent::begin_ns);
  std::ranges::sort(work, {}, &TimelineEvent::begin_ns);
  std::vector<StepTimes> steps;
  std::size_t first = 0;  // of the events that may reach into the step
  for (std::size_t i = 1; i < waits.size(); ++i) {
    const TimelineEvent &start = waits[i - 1], &next = waits[i];
    const Interval rest = {start.end_ns, std::max(start.end_ns, next.begin_ns)};
    std::vector<Interval> busy;
    double computed = 0, exchanged = 0, compiled = 0;
    while (first < work.size() && work[first].end_ns <= rest.begin_ns) ++first;
    for (std::size_t w = first; w < work.size() && work[w].begin_ns < rest.end_ns; ++w) {
      const TimelineEvent& event = work[w];
      const Interval part = within(event, rest);
      const auto length = static_cast<double>(part.end_ns - part.begin_ns);
      if (event.kind == Kind::compile) compiled += length;
      if (event.kind == Kind::compute) computed += length;
      if (event.kind == Kind::collective) exchanged += length;
      if (event.kind != Kind::compile) busy.push_back(part);
    }
    StepTimes& step = steps.emplace_back();
    const auto covered = static_cast<double>(covered_ns(std::move(busy)));
    const double all = std::max(1.0, computed + exchanged);
    step.batch = start.batch;
    step.seconds = static_cast<double>(next.end_ns - start.end_ns) / kSecond;
    step.waited_seconds = static_cast<double>(next.end_ns - next.begin_ns) / kSecond;
    step.computed_seconds = covered * computed / all / kSecond;
    step.exchanged_seconds = covered * exchanged / all / kSecond;
    step.compiled_seconds = compiled / kSecond;
    const double known = step.waited_seconds + step.compiled_seconds + covered / kSecond;
    step.other_seconds = std::max(0.0, step.seconds - known);
  }
  return steps;
}

std::string to_string(const std::vector<StepTimes>& steps) {
  if (steps.empty()) return "0 steps";
  struct Part {
    std::string_view name;
    double seconds;
    std::int64_t bound;
  };
  std::array<Part, 5> parts = {{{"compute", 0, 0},
                                {"loader", 0, 0},
                                {"collective", 0, 0},
                                {"compile", 0, 0},
                                {"job", 0, 0}}};
  double all = 0;
  for (const StepTimes& step : steps) {
    all += step.seconds;
    const std::array<double, 5> seconds = {step.computed_seconds, step.waited_seconds,
                                           step.exchanged_seconds, step.compiled_seconds,
                                           step.other_seconds};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].seconds += seconds[i];
      if (parts[i].name == step.bound()) ++parts[i].bound;
    }
  }
  std::ranges::stable_sort(parts, std::greater(), &Part::seconds);
  std::string shares, bound;
  for (const Part& part : parts) {
    if (part.seconds > 0) {
      shares += fmt::format("{}{} {:.0f} %", shares.empty() ? "" : ", ", part.name,
                            100 * part.seconds / all);
    }
    if (part.bound > 0) {
      bound += fmt::format("{}{} by {}", bound.empty() ? "" : ", ", part.bound, part.name);
    }
  }
  return fmt::format("{} steps of {:.1f} ms: {}; bound: {}", steps.size(),
                     1e3 * all / static_cast<double>(steps.size()), shares, bound);
}

}  // namespace shardwise
