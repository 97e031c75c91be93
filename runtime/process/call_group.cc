#include "shardwise/runtime/process/call_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <string_view>

#include "shardwise/runtime/process/detail/job_member.h"
#include "shardwise/runtime/process/detail/message.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {
namespace {

using detail::CommonTask;
using detail::Failure;
using detail::JobMember;
using detail::Wait;
using std::chrono::milliseconds;

// Rank 0 stays up to this time until the ranks that came have heard the verdict: its process may
// end next, and its store with it.
constexpr milliseconds kLongestStay{10'000};

// The last byte of a value tells a result of work() or merge() from their failure, and from a call
// that differs from rank 0's.
constexpr auto kDone = std::byte{'+'}, kFailed = std::byte{'-'}, kRefused = std::byte{'!'};

Bytes marked(Bytes bytes, std::byte mark) {
  bytes.push_back(mark);
  return bytes;
}

/// Returns the result of read() on a rank's message; its errors name the rank.
template <class Read>
auto readable(int rank, const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const Error& e) {
    throw Error(e, fmt::format("a message of rank {}: {}", rank, e.what()));
  }
}

/// Unseals a value that a rank put into the store.
Bytes opened(int rank, Bytes sealed) {
  readable(rank, [&] { detail::unseal(sealed); });
  return sealed;
}

/// Removes the mark from a value, and returns its failure, if any. Throws corrupt for an invalid
/// value.
std::optional<Failure> failure_in(Bytes& value, int rank) {
  const std::byte mark = value.empty() ? std::byte{} : value.back();
  return readable(rank, [&]() -> std::optional<Failure> {
    if (mark != kDone && mark != kFailed) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("found {} bytes without a mark, needed a whole value", value.size()));
    }
    value.pop_back();
    if (mark == kDone) return {};
    return detail::decode_failure(value);
  });
}

Failure described(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const GroupError& e) {
    return {{}, 0, e.what(), {}};
  } catch (const Error& e) {
    return {e.code(), e.system_error(), e.what(), {}};
  } catch (const std::exception& e) {
    return {{}, 0, e.what(), {}};
  } catch (...) {
    return {{}, 0, "an unknown error", {}};
  }
}

/// The bytes of work(), marked; if it throws, `error` is set.
Bytes outcome(const CallGroup::Call::Work& work, std::exception_ptr& error) {
  try {
    return marked(work(), kDone);
  } catch (...) {
    error = std::current_exception();
    return marked(encode(described(error)), kFailed);
  }
}

/// Called inside a catch clause: nests the caught exception.
[[noreturn]] void throw_with_cause(const Failure& failure) {
  if (!failure.code) std::throw_with_nested(GroupError(failure.text));
  std::throw_with_nested(Error(*failure.code, failure.text, failure.system_error));
}

[[noreturn]] void throw_failure(const Failure& failure) {
  if (!failure.code) throw GroupError(failure.text);
  throw Error(*failure.code, failure.text, failure.system_error);
}

}  // namespace

struct CallGroup::State {
  /// A call whose announcement has not come.
  struct Unplaced {
    std::weak_ptr<Call::State> call;
    std::optional<CommonTask> left = {};  // it has ended; rank 0 announces or announced it
  };

  std::shared_ptr<JobMember> member;
  std::string order;  // distinguishes the keys of duplicates

  Mutex mutex;
  int duplicates SHARDWISE_GUARDED_BY(mutex) = 0;
  std::uint64_t next SHARDWISE_GUARDED_BY(mutex) = 0;  // the number of the next call
  // On other ranks than 0, in the order of the calls.
  std::deque<Unplaced> unplaced SHARDWISE_GUARDED_BY(mutex);
  // A call of rank 0's that ended without this rank.
  std::string passed SHARDWISE_GUARDED_BY(mutex);

  void place(std::uint64_t number, const CommonTask& announced, std::optional<Failure> failure);
  void leave(Call::State& call);
};

struct CallGroup::Call::State {
  std::shared_ptr<CallGroup::State> group;
  CommonTask task;
  milliseconds deadline;

  // Guarded by the group's mutex.
  std::optional<std::uint64_t> number = {};
  bool is_over = false;
  std::string refusal = {};            // difference from rank 0's call
  std::optional<Failure> ending = {};  // if it had ended when this rank came

  std::uint64_t steps = 0;

  JobMember& member() const { return *group->member; }
  int rank() const { return member().store.rank; }

  std::string key(std::uint64_t of_number, std::string_view name) const {
    return member().key(fmt::format("{}/{}/{}", group->order, of_number, name));
  }
  std::string key(std::string_view name) const { return key(number.value(), name); }
  std::string step_key(std::string_view name) const {
    return key(fmt::format("{}/{}", steps, name));
  }
  std::string own_key(std::string_view name) const {
    return step_key(fmt::format("{}/{}", name, rank()));
  }

  bool has_ended() const {
    const MutexLock lock(group->mutex);
    return is_over;
  }
  void set_over() {
    const MutexLock lock(group->mutex);
    is_over = true;
  }

  Failure late(std::vector<int> ranks) const {
    std::string text = fmt::format("{}: {}: was it called on one rank only?", task.name,
                                   detail::missing_text(ranks, member().store.size, deadline));
    return {{}, 0, std::move(text), std::move(ranks)};
  }

  /// The failure if rank 0 did not come in time.
  Failure late_0() const {
    Failure failure = late({0});
    const MutexLock lock(group->mutex);
    failure.text += group->passed;
    return failure;
  }

  Failure failed_on_0(const std::exception_ptr& error) const {
    Failure failure = described(error);
    failure.text = fmt::format("{}: rank 0: {}", task.name, failure.text);
    failure.ranks = {0};
    return failure;
  }

  std::vector<int> others() const {
    std::vector<int> ranks(static_cast<std::size_t>(member().store.size - 1));
    std::iota(ranks.begin(), ranks.end(), 1);
    return ranks;
  }

  /// Rank 0 waits for the ranks that came, and returns whether all of them have heard.
  bool is_heard(std::vector<int> came) const {
    const std::string heard = step_key("heard");
    return member()
        .collect(heard, std::move(came), detail::after(std::min(deadline, kLongestStay)),
                 [&](int rank, const Bytes&) {
                   member().store.remove(fmt::format("{}/{}", heard, rank));
                   return true;
                 })
        .empty();
  }

  // The steps of rank 0 and of others.
  Bytes lead(const Work& work, const Merge& merge, std::exception_ptr& error);
  Bytes judge(const Work& work, const Merge& merge, std::exception_ptr& error,
              std::vector<int>& came) const;
  Bytes merged(std::vector<Bytes> values, const Merge& merge) const;
  Bytes follow(const Work& work, std::exception_ptr& error);
  bool find_place();
  void put(const std::string& at, Bytes value) const {
    detail::seal(value);
    member().store.set(at, value);
  }
  void announce() const { put(key("call"), encode(task)); }
  void tell(const Failure& failure) const noexcept;
  void give_up(const std::exception_ptr& error) const noexcept;
  void leave(const std::exception_ptr& error);
  void pass();
};

/// Gives an announcement to the first call that waits for one, unless another thread has done so.
/// `failure`: how that call of rank 0's ended, if it did.
void CallGroup::State::place(std::uint64_t number, const CommonTask& announced,
                             std::optional<Failure> failure) {
  std::shared_ptr<Call::State> call;  // dropped without the lock
  const MutexLock lock(mutex);
  if (next != number) return;
  ++next;
  for (; !unplaced.empty(); unplaced.pop_front()) {
    const Unplaced& first = unplaced.front();
    call = first.call.lock();
    if (first.left) {
      const bool is_it = *first.left == announced;
      if (is_it) unplaced.pop_front();
      if (is_it || failure) return;
    } else if (call && !call->is_over) {
      break;
    }
  }
  if (unplaced.empty()) return;
  const std::string differs = difference(call->task, member->store.rank, announced, 0);
  if (failure &&
      (!differs.empty() || std::ranges::count(failure->ranks, member->store.rank) != 0)) {
    passed = fmt::format(" Rank 0's last call ended without this rank: {}", failure->text);
    return;
  }
  passed = "";
  call->number = number;
  call->ending = std::move(failure);
  if (!differs.empty()) {
    call->refusal = fmt::format("{}: {}: every rank makes the same calls in the same order",
                                announced.name, differs);
  }
  unplaced.pop_front();
}

/// On a rank other than 0: a call ends before its announcement comes, which must then not go to a
/// later call. The number is the expected one if no rank leaves out a call.
void CallGroup::State::leave(Call::State& call) {
  std::vector<std::shared_ptr<Call::State>> earlier;  // dropped without the lock
  const MutexLock lock(mutex);
  if (call.number) return;
  std::uint64_t number = next;
  for (Unplaced& entry : unplaced) {
    earlier.push_back(entry.call.lock());
    if (earlier.back().get() == &call) {
      entry.left = call.task;
      call.number = number;
      return;
    }
    if (entry.left || (earlier.back() && !earlier.back()->is_over)) ++number;
  }
}

/// On a rank other than 0: takes announcements until this call has one. Returns whether it came in
/// time.
bool CallGroup::Call::State::find_place() {
  const auto end = detail::after(deadline);
  const bool has_joined = member().join(end);
  for (Wait wait(end);;) {
    const bool is_last = wait.is_over();
    std::uint64_t next = 0;
    {
      const MutexLock lock(group->mutex);
      if (number) return true;
      next = group->next;
    }
    std::optional<Bytes> announced;
    if (has_joined) announced = member().store.get(key(next, "call"), wait.next());
    if (announced) {
      // A call that ended without this rank ended in its first step.
      auto verdict = member().store.get(key(next, "1/all"), milliseconds(0));
      if (verdict) verdict = opened(0, std::move(*verdict));
      const Bytes said = opened(0, std::move(*announced));
      group->place(next, readable(0, [&] { return detail::decode_task(said); }),
                   verdict ? failure_in(*verdict, 0) : std::nullopt);
    } else if (is_last || !has_joined) {
      return false;
    }
  }
}

Bytes CallGroup::Call::State::follow(const Work& work, std::exception_ptr& error) {
  std::optional<Bytes> verdict;
  try {
    if (steps == 1 && !find_place()) return marked(encode(late_0()), kFailed);
    if (ending) {
      verdict = marked(encode(*ending), kFailed);
    } else {
      const std::string value = own_key("value");
      put(value,
          refusal.empty()
              ? outcome(work, error)
              : marked(encode(Failure{ErrorCode::invalid_argument, 0, refusal, {}}), kRefused));
      // Rank 0 may use up its deadline waiting for others, and must still report that.
      const milliseconds patience = 2 * deadline + std::chrono::seconds(5);
      verdict = member().wait_for(step_key("all"), detail::after(patience));
      if (!verdict) {
        throw GroupError(fmt::format("{}: rank 0 of {} said nothing within {}", task.name,
                                     member().store.size, detail::seconds_text(patience)));
      }
      verdict = opened(0, std::move(*verdict));
      member().store.remove(value);
    }
    member().store.set(own_key("heard"), {});
  } catch (...) {
    if (!error) error = std::current_exception();
    group->leave(*this);
    // Rank 0 waits for this rank in this step, or will in the next one.
    give_up(error);
    ++steps;
    give_up(error);
    std::rethrow_exception(error);
  }
  return std::move(*verdict);
}

Bytes CallGroup::Call::State::merged(std::vector<Bytes> values, const Merge& merge) const {
  Failure all;
  bool is_one_way = true;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    const auto failure = failure_in(values[rank], static_cast<int>(rank));
    if (!failure) continue;
    if (all.ranks.empty()) {
      all.code = failure->code;
      all.system_error = failure->system_error;
    }
    is_one_way = is_one_way && failure->code == all.code;
    all.text += fmt::format("{}rank {}: {}", all.ranks.empty() ? "" : "; ", rank, failure->text);
    all.ranks.push_back(static_cast<int>(rank));
  }
  if (all.ranks.empty()) return marked(merge(std::move(values)), kDone);
  if (!is_one_way) all.code = {};
  all.text = fmt::format("{}: {}", task.name, all.text);
  return marked(encode(all), kFailed);
}

Bytes CallGroup::Call::State::judge(const Work& work, const Merge& merge, std::exception_ptr& error,
                                    std::vector<int>& came) const {
  // Once in a job, and before the work, for which no other rank must wait.
  if (auto absent = member().admit(detail::after(deadline)); !absent.empty()) {
    return marked(encode(late(std::move(absent))), kFailed);
  }
  std::vector<Bytes> values(static_cast<std::size_t>(member().store.size));
  values[0] = outcome(work, error);
  std::optional<Failure> refused;
  auto absent = member().collect(
      step_key("value"), others(), detail::after(deadline), [&](int rank, Bytes value) {
        came.push_back(rank);
        value = opened(rank, std::move(value));
        if (!value.empty() && value.back() == kRefused) {
          value.pop_back();
          refused = readable(rank, [&] { return detail::decode_failure(value); });
          return false;
        }
        values[static_cast<std::size_t>(rank)] = std::move(value);
        return true;
      });
  if (refused) return marked(encode(*refused), kFailed);
  if (!absent.empty()) return marked(encode(late(std::move(absent))), kFailed);
  try {
    return merged(std::move(values), merge);
  } catch (...) {
    error = std::current_exception();
    return marked(encode(failed_on_0(error)), kFailed);
  }
}

Bytes CallGroup::Call::State::lead(const Work& work, const Merge& merge,
                                   std::exception_ptr& error) {
  std::vector<int> came;
  Bytes verdict;
  try {
    verdict = judge(work, merge, error, came);
    put(step_key("all"), verdict);
  } catch (...) {
    tell(failed_on_0(std::current_exception()));
    throw;
  }
  try {
    if (is_heard(std::move(came)) && verdict.back() == kDone) {
      member().store.remove(step_key("all"));
      member().store.remove(key("call"));
    }
  } catch (...) {
    ++steps;  // the others' next step
    tell(failed_on_0(std::current_exception()));
    throw;
  }
  return verdict;
}

/// On rank 0: the step has failed for all ranks. Tells them if the store still works.
void CallGroup::Call::State::tell(const Failure& failure) const noexcept {
  try {
    put(step_key("all"), marked(encode(failure), kFailed));
  } catch (...) {
    // The others wait for their deadlines.
  }
}

/// On another rank: the step has failed on it, and it does not wait for an answer. Tells rank 0 if
/// the store still works and rank 0 is known.
void CallGroup::Call::State::give_up(const std::exception_ptr& error) const noexcept {
  try {
    if (!member().is_known()) return;
    put(own_key("value"), marked(encode(described(error)), kFailed));
    member().store.set(own_key("heard"), {});
  } catch (...) {
    // Rank 0 waits for its deadline.
  }
}

/// Tells the others, which are at the next step or will be.
void CallGroup::Call::State::leave(const std::exception_ptr& error) {
  ++steps;
  if (rank() == 0) {
    tell(failed_on_0(error));
    // The others may still be at work before the first step, or not know this job yet.
    if (steps == 1 && member().admit(detail::after(deadline)).empty()) is_heard(others());
  } else if (steps == 1) {
    std::exception_ptr same;
    follow([&]() -> Bytes { std::rethrow_exception(error); }, same);
  } else {
    give_up(error);
  }
}

/// Ends without a step: the others, if they did so too, make the next call.
void CallGroup::Call::State::pass() {
  ++steps;
  if (rank() == 0) {
    tell({{}, 0, fmt::format("{}: rank 0 has ended it without a step", task.name), {0}});
  } else {
    group->leave(*this);
  }
}

CallGroup::CallGroup(KeyValueStore store) : state_(std::make_shared<State>()) {
  store.check();
  state_->member = std::make_shared<JobMember>(std::move(store));
  state_->order = "0";
}

CallGroup CallGroup::duplicate() const {
  auto state = std::make_shared<State>();
  state->member = state_->member;
  const MutexLock lock(state_->mutex);
  state->order = fmt::format("{}.{}", state_->order, ++state_->duplicates);
  return CallGroup(std::move(state));
}

CallGroup::Call CallGroup::call(std::string name, std::vector<Fact> same,
                                milliseconds deadline) const {
  auto call = std::make_shared<Call::State>(
      Call::State{state_, CommonTask{std::move(name), std::move(same)}, deadline});
  JobMember& member = *state_->member;
  const bool is_first_rank = member.store.rank == 0;
  if (is_first_rank) member.open();
  {
    const MutexLock lock(state_->mutex);
    if (is_first_rank) {
      call->number = state_->next++;
    } else {
      state_->unplaced.push_back({call});
    }
  }
  if (!is_first_rank) return Call(std::move(call));
  try {
    call->announce();
  } catch (...) {
    // The others wait for the message with this number.
    ++call->steps;
    call->tell(call->failed_on_0(std::current_exception()));
    try {
      call->announce();
    } catch (...) {
      // They wait for their deadlines.
    }
    throw;
  }
  return Call(std::move(call));
}

Bytes CallGroup::Call::agree(const Work& work, const Merge& merge) const {
  State& state = *state_;
  if (state.has_ended()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: it has ended, needed is a call under way", state.task.name));
  }
  try {
    ++state.steps;
    std::exception_ptr error;
    Bytes verdict = state.rank() == 0 ? state.lead(work, merge, error) : state.follow(work, error);
    const auto failure = failure_in(verdict, 0);
    if (!failure) return verdict;
    if (!error || failure->ranks != std::vector{state.rank()}) throw_failure(*failure);
    try {
      std::rethrow_exception(error);
    } catch (...) {
      throw_with_cause(*failure);
    }
  } catch (...) {
    state.set_over();
    throw;
  }
}

void CallGroup::Call::end(const std::exception_ptr& error) const noexcept {
  try {
    if (!state_->has_ended()) {
      if (error) {
        state_->leave(error);
      } else if (state_->steps == 0) {
        state_->pass();
      }
    }
  } catch (...) {
    // Keeps the original error, which is the one to report.
  }
  state_->set_over();
}

}  // namespace shardwise
