#include "shardwise/runtime/process/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "shardwise/runtime/process/detail/message.h"
#include "shardwise/runtime/process/detail/wait.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The rank that collects gives up first, because it can say which ranks are missing.
constexpr milliseconds kLeastGrace{100};

// How long an exchange waits for a message before it checks for other work.
constexpr milliseconds kIdleWait{10};
constexpr std::chrono::microseconds kBusyWait{100};

constexpr auto kNeverSent = ~std::uint64_t{0};  // the number of no message

class NoTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void send(int, const MessageKey&, Bytes) override {}
  std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage>,
                                             std::chrono::microseconds) override {
    return {};
  }
  void abort(std::uint64_t channel, const std::string& reason) noexcept override {
    try {
      const MutexLock lock(mutex_);
      aborts_.emplace_back(channel, reason);
    } catch (...) {
      // No other rank learns of it; the caller knows.
    }
  }
  std::optional<std::string> aborted(std::uint64_t channel) override {
    const MutexLock lock(mutex_);
    for (const auto& [number, reason] : aborts_) {
      if (number == channel) return reason;
    }
    return {};
  }
  bool flush(milliseconds) override { return true; }

 private:
  Mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::string>> aborts_ SHARDWISE_GUARDED_BY(mutex_);
};

// The same number in every process, whatever other groups they make; no other group has it.
std::uint64_t channel_of_duplicate(std::uint64_t original, std::uint64_t number) {
  return mix_bits(original + (number + 1) * kSplitMixGamma);
}

// The binomial tree that spreads rank 0's bytes: rank 6 gets them from 4, and 4 from 0.
int parent_of(int rank) { return rank & (rank - 1); }

// The ranks with the most ranks below them come first.
std::vector<int> children_of(int rank, int size) {
  std::vector<int> children;
  for (int bit = 1; rank + bit < size && (rank == 0 || bit < (rank & -rank)); bit *= 2) {
    children.insert(children.begin(), rank + bit);
  }
  return children;
}

}  // namespace

struct ProcessGroup::State {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<const State> original;  // set if this is a duplicate
  std::uint64_t channel = 0;
  milliseconds timeout;
  std::atomic<std::uint64_t> operations = 0, duplicates = 0;

  /// One operation: the mark of its messages, their key, and the deadline.
  struct Operation {
    const char* name;
    detail::MessageMark mark;
    MessageKey key;
    milliseconds timeout;
    Clock::time_point start = Clock::now();
  };

  Operation begin(detail::Operation kind, std::optional<milliseconds> own_timeout,
                  std::uint64_t tag = 0) {
    const char* const name = detail::name(kind);
    check(name);
    return {name, {kind, tag}, {channel, operations++}, own_timeout.value_or(timeout)};
  }

  /// A message of an exchange.
  Operation message(std::uint64_t tag, std::uint64_t number) const {
    const auto kind = detail::Operation::exchange;
    return {detail::name(kind), {kind, tag}, {channel, number}, timeout};
  }

  std::string label(const char* name) const {
    return fmt::format("{} of rank {} of {}", name, transport->rank(), transport->size());
  }

  /// Its own reason, or its original's if it is a duplicate.
  std::optional<std::string> aborted() const {
    for (const State* state = this; state != nullptr; state = state->original.get()) {
      if (auto reason = transport->aborted(state->channel)) return reason;
    }
    return {};
  }

  void check(const char* name) const {
    if (const auto reason = aborted()) {
      throw Error(ErrorCode::cancelled, fmt::format("{}: {}", label(name), *reason));
    }
  }

  void abort(std::string_view reason) noexcept {
    try {
      if (aborted()) return;  // all know, or will
      transport->abort(channel, fmt::format("rank {}: {}", transport->rank(), reason));
    } catch (...) {
      transport->abort(channel, "out of memory");
    }
  }

  /// Ends the operation for all ranks, with this problem.
  [[noreturn]] void fail(const Operation& operation, const std::string& problem) {
    abort(fmt::format("{}: {}", operation.name, problem));
    throw Error(ErrorCode::cancelled, fmt::format("{}: {}", label(operation.name), problem));
  }

  void send(const Operation& operation, int to, Bytes bytes) {
    detail::seal(bytes, operation.mark);
    post(operation, to, std::move(bytes));
  }

  /// A sealed message.
  void post(const Operation& operation, int to, Bytes bytes) {
    try {
      transport->send(to, operation.key, std::move(bytes));
    } catch (const Error& e) {
      await_reason();
      check(operation.name);
      fail(operation, e.what());
    }
  }

  /// If a rank is gone, the reason may still be on its way, from that rank or another.
  void await_reason() const {
    const auto end = Clock::now() + kLeastGrace;
    for (const int rank : others(transport->rank())) {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
      try {
        transport->receive(rank, {channel, kNeverSent}, std::max(left, milliseconds(0)));
      } catch (const Error&) {
        // All its messages have come.
      }
      if (aborted()) return;
    }
  }

  /// Removes and checks the mark of a message that came under the operation's key.
  void check_mark(const Operation& operation, int from, Bytes& message) {
    const auto found = unseal(operation, from, message);
    if (found == operation.mark) return;
    if (found.operation != operation.mark.operation) {
      fail(operation, fmt::format("found a message of rank {} for {}, needed one for {}: all ranks "
                                  "call the same operations in the same order",
                                  from, detail::name(found.operation), operation.name));
    }
    await_reason();  // a rank that compares the operations of all may say more
    check(operation.name);
    fail(operation,
         fmt::format("found a message of rank {} with tag {}, needed tag {}: all ranks give the "
                     "same root, or move the same data in the same way",
                     from, found.tag, operation.mark.tag));
  }

  detail::MessageMark unseal(const Operation& operation, int from, Bytes& message) {
    return readable(operation, from, [&] { return detail::unseal_marked(message); });
  }

  /// Returns the result of read(). If it fails, the operation ends for all.
  template <class Read>
  auto readable(const Operation& operation, int from, const Read& read) -> decltype(read()) {
    try {
      return read();
    } catch (const Error& e) {
      fail(operation, fmt::format("a message of rank {}: {}", from, e.what()));
    }
  }

  /// Absent if it did not come by the deadline.
  std::optional<Bytes> receive(const Operation& operation, int from, milliseconds timeout_) {
    for (detail::Wait wait(operation.start + timeout_);;) {
      const bool is_last = wait.is_over();
      std::optional<Bytes> bytes;
      try {
        bytes = transport->receive(from, operation.key, wait.next());
      } catch (const Error& e) {
        await_reason();
        check(operation.name);
        fail(operation, e.what());
      }
      if (bytes) {
        if (operation.key.number != kNeverSent) check_mark(operation, from, *bytes);
        return bytes;
      }
      check(operation.name);
      if (is_last) return {};
    }
  }

  /// Receives from a rank that must itself wait for others, and so may know the problem better.
  Bytes receive_from_root(const Operation& operation, int root) {
    const milliseconds patience = operation.timeout + std::max(kLeastGrace, operation.timeout / 10);
    if (auto bytes = receive(operation, root, patience)) return std::move(*bytes);
    fail(operation, missing(operation, {root}));
  }

  std::string missing(const Operation& operation, const std::vector<int>& ranks) const {
    return detail::missing_text(ranks, transport->size(), operation.timeout);
  }

  /// The bytes of all ranks `from`, in this order.
  std::vector<Bytes> receive_all(const Operation& operation, std::span<const int> from) {
    std::vector<Bytes> parts;
    std::vector<int> missing_ranks;
    for (const int rank : from) {
      // After the deadline the others are still polled, but not waited for.
      auto bytes = receive(operation, rank, operation.timeout);
      if (!bytes) missing_ranks.push_back(rank);
      parts.push_back(std::move(bytes).value_or(Bytes()));
    }
    if (!missing_ranks.empty()) fail(operation, missing(operation, missing_ranks));
    return parts;
  }

  std::vector<int> others(int root) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < transport->size(); ++rank) {
      if (rank != root) ranks.push_back(rank);
    }
    return ranks;
  }

  void send_to_all(const Operation& operation, std::span<const int> ranks, Bytes bytes) {
    if (ranks.empty()) return;
    detail::seal(bytes, operation.mark);
    for (const int rank : ranks) post(operation, rank, bytes);
  }

  void send_to_others(const Operation& operation, Bytes bytes) {
    send_to_all(operation, others(transport->rank()), std::move(bytes));
  }

  std::vector<Bytes> collect(const Operation& operation, Bytes bytes) {
    const int own = transport->rank();
    std::vector<Bytes> parts = receive_all(operation, others(own));
    parts.insert(parts.begin() + own, std::move(bytes));
    return parts;
  }

  /// Spreads rank 0's bytes to all ranks along a tree: no rank sends them to more than log2(size).
  Bytes spread(const Operation& operation, Bytes bytes) {
    const int own = transport->rank();
    if (own != 0) bytes = receive_from_root(operation, parent_of(own));
    const std::vector<int> children = children_of(own, transport->size());
    send_to_all(operation, children, bytes);
    if (!children.empty()) flush(operation);
    return bytes;
  }

  /// A rank that sends large messages must help until they are gone.
  void flush(const Operation& operation) {
    detail::Wait wait(operation.start + operation.timeout);
    while (!transport->flush(wait.next())) {
      check(operation.name);
      if (wait.is_over()) {
        fail(operation, fmt::format("its messages were not taken within {}",
                                    detail::seconds_text(operation.timeout)));
      }
    }
  }
};

ProcessGroup::ProcessGroup() : ProcessGroup(std::make_shared<NoTransport>()) {}

ProcessGroup::ProcessGroup(std::shared_ptr<Transport> transport, milliseconds timeout)
    : state_(std::make_shared<State>()) {
  state_->transport = std::move(transport);
  state_->timeout = timeout;
}

int ProcessGroup::rank() const { return state_->transport->rank(); }
int ProcessGroup::size() const { return state_->transport->size(); }
milliseconds ProcessGroup::timeout() const { return state_->timeout; }

ProcessGroup ProcessGroup::duplicate(std::optional<milliseconds> timeout) const {
  auto state = std::make_shared<State>();
  state->transport = state_->transport;
  state->original = state_;
  state->channel = channel_of_duplicate(state_->channel, state_->duplicates++);
  state->timeout = timeout.value_or(state_->timeout);
  return ProcessGroup(std::move(state));
}

Bytes ProcessGroup::broadcast(Bytes bytes, int root, std::optional<milliseconds> timeout) const {
  const auto operation =
      state_->begin(detail::Operation::broadcast, timeout, static_cast<std::uint64_t>(root));
  if (rank() != root) return state_->receive_from_root(operation, root);
  state_->send_to_others(operation, bytes);
  return bytes;
}

std::vector<Bytes> ProcessGroup::gather(Bytes bytes, int root,
                                        std::optional<milliseconds> timeout) const {
  const auto operation =
      state_->begin(detail::Operation::gather, timeout, static_cast<std::uint64_t>(root));
  if (rank() == root) return state_->collect(operation, std::move(bytes));
  state_->send(operation, root, std::move(bytes));
  return {};
}

std::vector<Bytes> ProcessGroup::all_gather(Bytes bytes,
                                            std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin(detail::Operation::all_gather, timeout);
  if (size() == 1) return {std::move(bytes)};
  if (rank() != 0) {
    state_->send(operation, 0, std::move(bytes));
    const Bytes packed = state_->spread(operation, {});
    return state_->readable(operation, parent_of(rank()),
                            [&] { return detail::unpack(packed, as_size(size())); });
  }
  std::vector<Bytes> parts = state_->collect(operation, std::move(bytes));
  state_->spread(operation, detail::pack(parts));
  return parts;
}

void ProcessGroup::barrier(std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin(detail::Operation::barrier, timeout);
  if (rank() != 0) {
    state_->send(operation, 0, {});
    state_->receive_from_root(operation, 0);
    return;
  }
  state_->collect(operation, {});
  state_->send_to_others(operation, {});
}

std::vector<Bytes> ProcessGroup::exchange(std::vector<Outgoing> outgoing, std::span<const int> from,
                                          std::optional<milliseconds> timeout,
                                          std::uint64_t tag) const {
  const auto operation = state_->begin(detail::Operation::exchange, timeout, tag);
  for (Outgoing& message : outgoing) {
    state_->send(operation, message.to, std::move(message.bytes));
  }
  std::vector<Bytes> parts = state_->receive_all(operation, from);
  state_->flush(operation);
  return parts;
}

ProcessGroup::Exchange::Exchange(std::shared_ptr<State> state, std::uint64_t first_number)
    : state_(std::move(state)), first_(first_number), last_(Clock::now()) {}

ProcessGroup::Exchange ProcessGroup::begin_exchange(std::uint64_t count) const {
  state_->check(detail::name(detail::Operation::exchange));
  return {state_, state_->operations.fetch_add(count)};
}

void ProcessGroup::Exchange::send(int to, std::uint64_t number, std::uint64_t tag,
                                  Bytes bytes) const {
  state_->send(state_->message(tag, first_ + number), to, std::move(bytes));
}

std::optional<ProcessGroup::Exchange::Received> ProcessGroup::Exchange::receive(
    std::span<const Awaited> awaited, bool is_idle) {
  if (awaited.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "receive in an exchange: found no message to wait for, needed one or more");
  }
  const auto message = [&](const Awaited& one) {
    return state_->message(one.tag, first_ + one.number);
  };
  const auto operation = message(awaited.front());
  std::vector<AwaitedMessage> keys;
  keys.reserve(awaited.size());
  for (const Awaited& one : awaited)
    keys.push_back({one.from, {state_->channel, first_ + one.number}});
  std::optional<ReceivedMessage> found;
  try {
    found = state_->transport->receive_any(keys, is_idle ? kIdleWait : kBusyWait);
  } catch (const Error& e) {
    state_->await_reason();
    state_->check(operation.name);
    state_->fail(operation, e.what());
  }
  if (found || !is_idle) last_ = Clock::now();
  if (found) {
    const Awaited& one = awaited[found->number];
    state_->check_mark(message(one), one.from, found->bytes);
    return Received{found->number, std::move(found->bytes)};
  }
  state_->check(operation.name);
  if (Clock::now() - last_ < state_->timeout) return {};
  std::vector<int> ranks;
  for (const Awaited& one : awaited) {
    if (one.number == awaited.front().number) ranks.push_back(one.from);
  }
  state_->fail(operation, state_->missing(operation, ranks));
}

void ProcessGroup::Exchange::finish() const { state_->flush(state_->message(0, first_)); }

void ProcessGroup::agree(const std::string& subject, std::span<const Fact> facts,
                         std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin(detail::Operation::agree, timeout);
  if (size() == 1) return;
  detail::CommonTask needed{subject, {}};
  for (const Fact& fact : facts) needed.facts.emplace_back(fact.name, std::to_string(fact.value));
  const int parent = parent_of(rank());
  if (rank() != 0) state_->send(operation, parent, encode(needed));
  const std::vector<int> children = children_of(rank(), size());
  const std::vector<Bytes> messages = state_->receive_all(operation, children);
  for (std::size_t i = 0; i < children.size(); ++i) {
    const auto found =
        state_->readable(operation, children[i], [&] { return detail::decode_task(messages[i]); });
    const std::string problem = difference(found, children[i], needed, rank());
    if (!problem.empty()) state_->fail(operation, fmt::format("{}: {}", subject, problem));
  }
}

void ProcessGroup::abort(std::string_view reason) const noexcept { state_->abort(reason); }

void ProcessGroup::check(milliseconds wait) const {
  state_->check("check");
  if (size() == 1 || wait == milliseconds(0)) return;
  const State::Operation operation{"check", {}, {state_->channel, kNeverSent}, wait};
  state_->receive(operation, (rank() + 1) % size(), wait);
}

}  // namespace shardwise
