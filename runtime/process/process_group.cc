#include "shardwise/runtime/process/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A wait is cut into slices of 10 ms at first and then longer: an implementation that cannot be
// woken up looks for aborts between them.
constexpr milliseconds kFirstSlice{10}, kLongestSlice{1000};

// The one who collects gives up first, as it can say who is missing.
constexpr milliseconds kLeastGrace{100};

constexpr auto kNeverSent = ~std::uint64_t{0};  // the number of no message

class NoTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void send(int, const MessageKey&, Bytes) override {}
  std::optional<Bytes> receive(int, const MessageKey&, milliseconds) override { return {}; }
  void abort(std::uint64_t channel, const std::string& reason) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      aborts_.emplace_back(channel, reason);
    } catch (...) {
      // Nobody else is told; the caller knows.
    }
  }
  std::optional<std::string> aborted(std::uint64_t channel) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, reason] : aborts_) {
      if (number == channel) return reason;
    }
    return {};
  }
  bool flush(milliseconds) override { return true; }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::string>> aborts_;
};

std::string seconds_text(milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

// "rank 3", "ranks 1, 2 and 5", "ranks 1, 2, 3, 4, 5 and 11 more".
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

void append_number(Bytes& bytes, std::uint64_t number) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof number);
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

// The same number in every process, whatever other groups they make meanwhile, and none that
// another group has: numbers of 64 bits, mixed as SplitMix64 does (Steele, Lea and Flood, 2014).
std::uint64_t channel_of_duplicate(std::uint64_t original, std::uint64_t number) {
  std::uint64_t x = original + (number + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The bytes of all, each after their count.
Bytes pack(const std::vector<Bytes>& parts) {
  Bytes packed;
  for (const Bytes& part : parts) {
    append_number(packed, part.size());
    packed.insert(packed.end(), part.begin(), part.end());
  }
  return packed;
}

std::vector<Bytes> unpack(std::span<const std::byte> packed, int count) {
  std::vector<Bytes> parts;
  for (int i = 0; i < count; ++i) {
    std::uint64_t size = 0;
    std::memcpy(&size, packed.data(), sizeof size);
    const auto part = packed.subspan(sizeof size, size);
    parts.emplace_back(part.begin(), part.end());
    packed = packed.subspan(sizeof size + size);
  }
  return parts;
}

}  // namespace

struct ProcessGroup::State {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<const State> original;  // that it is a duplicate of
  std::uint64_t channel = 0;
  milliseconds timeout;
  std::atomic<std::uint64_t> operations = 0, duplicates = 0;

  /// One operation: its key, name and deadline.
  struct Operation {
    const char* name;
    MessageKey key;
    milliseconds timeout;
    Clock::time_point start = Clock::now();
  };

  Operation begin(const char* name, std::optional<milliseconds> own_timeout) {
    check(name);
    return {name, {channel, operations++}, own_timeout.value_or(timeout)};
  }

  std::string label(const char* name) const {
    return fmt::format("{} of rank {} of {}", name, transport->rank(), transport->size());
  }

  /// Its own, or that of what it is a duplicate of.
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

  /// Ends the operation for all, with what is wrong.
  [[noreturn]] void fail(const Operation& operation, const std::string& problem) {
    abort(fmt::format("{}: {}", operation.name, problem));
    throw Error(ErrorCode::cancelled, fmt::format("{}: {}", label(operation.name), problem));
  }

  void send(const Operation& operation, int to, Bytes bytes) {
    try {
      transport->send(to, operation.key, std::move(bytes));
    } catch (const Error& e) {
      await_reason();
      check(operation.name);
      fail(operation, e.what());
    }
  }

  /// Where one has gone: why it has may still be on its way, from that one or another.
  void await_reason() const {
    const auto end = Clock::now() + kLeastGrace;
    for (const int rank : others(transport->rank())) {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
      try {
        transport->receive(rank, {channel, kNeverSent}, std::max(left, milliseconds(0)));
      } catch (const Error&) {
        // All that it had to say has come.
      }
      if (aborted()) return;
    }
  }

  /// Nothing where it has not come by the deadline.
  std::optional<Bytes> receive(const Operation& operation, int from, milliseconds timeout_) {
    milliseconds slice = kFirstSlice;
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(operation.start + timeout_ - Clock::now());
      try {
        auto bytes =
            transport->receive(from, operation.key, std::clamp(left, milliseconds(0), slice));
        if (bytes) return bytes;
      } catch (const Error& e) {
        await_reason();
        check(operation.name);
        fail(operation, e.what());
      }
      check(operation.name);
      if (left <= milliseconds(0)) return {};
      slice = std::min(slice * 2, kLongestSlice);
    }
  }

  /// From one that must itself wait for others, and so may know better what is wrong.
  Bytes receive_from_root(const Operation& operation, int root) {
    const milliseconds patience = operation.timeout + std::max(kLeastGrace, operation.timeout / 10);
    if (auto bytes = receive(operation, root, patience)) return std::move(*bytes);
    fail(operation, missing(operation, {root}));
  }

  std::string missing(const Operation& operation, const std::vector<int>& ranks) const {
    return fmt::format("{} of {} did not come within {}", ranks_text(ranks), transport->size(),
                       seconds_text(operation.timeout));
  }

  /// The bytes of all ranks `from`, in this order.
  std::vector<Bytes> receive_all(const Operation& operation, std::span<const int> from) {
    std::vector<Bytes> parts;
    std::vector<int> missing_ranks;
    for (const int rank : from) {
      // After the deadline the others are still asked, but not waited for.
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

  void send_to_others(const Operation& operation, const Bytes& bytes) {
    for (const int rank : others(transport->rank())) send(operation, rank, bytes);
  }

  std::vector<Bytes> collect(const Operation& operation, Bytes bytes) {
    const int own = transport->rank();
    std::vector<Bytes> parts = receive_all(operation, others(own));
    parts.insert(parts.begin() + own, std::move(bytes));
    return parts;
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
  const auto operation = state_->begin("broadcast", timeout);
  if (rank() != root) return state_->receive_from_root(operation, root);
  state_->send_to_others(operation, bytes);
  return bytes;
}

std::vector<Bytes> ProcessGroup::gather(Bytes bytes, int root,
                                        std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin("gather", timeout);
  if (rank() == root) return state_->collect(operation, std::move(bytes));
  state_->send(operation, root, std::move(bytes));
  return {};
}

std::vector<Bytes> ProcessGroup::all_gather(Bytes bytes,
                                            std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin("all_gather", timeout);
  if (rank() != 0) {
    state_->send(operation, 0, std::move(bytes));
    return unpack(state_->receive_from_root(operation, 0), size());
  }
  std::vector<Bytes> parts = state_->collect(operation, std::move(bytes));
  state_->send_to_others(operation, pack(parts));
  return parts;
}

void ProcessGroup::barrier(std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin("barrier", timeout);
  if (rank() != 0) {
    state_->send(operation, 0, {});
    state_->receive_from_root(operation, 0);
    return;
  }
  state_->collect(operation, {});
  state_->send_to_others(operation, {});
}

std::vector<Bytes> ProcessGroup::exchange(std::vector<Outgoing> outgoing, std::span<const int> from,
                                          std::optional<milliseconds> timeout) const {
  const auto operation = state_->begin("exchange", timeout);
  for (Outgoing& message : outgoing) {
    state_->send(operation, message.to, std::move(message.bytes));
  }
  std::vector<Bytes> parts = state_->receive_all(operation, from);
  // Who sends much must help until it is gone.
  milliseconds slice = kFirstSlice;
  while (!state_->transport->flush(slice)) {
    state_->check(operation.name);
    if (Clock::now() - operation.start > operation.timeout) {
      state_->fail(operation, fmt::format("what was sent was not taken within {}",
                                          seconds_text(operation.timeout)));
    }
    slice = std::min(slice * 2, kLongestSlice);
  }
  return parts;
}

void ProcessGroup::abort(std::string_view reason) const noexcept { state_->abort(reason); }

void ProcessGroup::check(milliseconds wait) const {
  state_->check("check");
  if (size() == 1 || wait == milliseconds(0)) return;
  const State::Operation operation{"check", {state_->channel, kNeverSent}, wait};
  state_->receive(operation, (rank() + 1) % size(), wait);
}

}  // namespace shardwise
