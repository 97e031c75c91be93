#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/process/key_value_store.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Another process failed with an error that is not one of Shardwise's, several failed in different
/// ways, or some did not come in time.
class GroupError : public Error {
 public:
  explicit GroupError(const std::string& message) : Error(ErrorCode::cancelled, message) {}
};

/// The processes of a job, and their agreement on common actions: by calls over a key-value store,
/// each with deadlines. Unlike a ProcessGroup, it survives an error: only the call ends.
///
/// Rank 0 announces each call: its name, and all facts that must be the same on every rank. Another
/// rank takes the announcements in order, and compares. So a rank that is at another call, or calls
/// with another fact, is found at once and ends the call on all ranks; and a call that one rank
/// left out does not shift later ones, because the rank skips an announcement whose call has ended
/// without it. Keys hold a number that rank 0 draws and tells each other rank in answer to that
/// rank's own number, so keys of another job in the store are never taken.
///
/// All waits are in the store's functions, in slices of a second at most, on the caller's thread,
/// with no lock held: their exceptions end the call at once, and they may make other calls. The
/// other ranks learn of it if the store still works and this rank has met rank 0. A call that ends
/// well leaves no key in the store. Cheap to copy. Thread-safe; all ranks make the same calls in
/// the same order.
class CallGroup {
 public:
  class Call;

  /// Something that must be the same on all ranks: a name, and a value as messages show it.
  using Fact = std::pair<std::string, std::string>;

  /// The processes of a store; its prefix separates the keys from those of other groups. Sends
  /// nothing. Throws as KeyValueStore::check() does.
  explicit CallGroup(KeyValueStore store);

  /// A group of the same processes, with an order of calls of its own. Every rank makes its
  /// duplicates in the same order.
  CallGroup duplicate() const;

  /// Begins a call. It takes its place in the order of calls here, and does not wait. `name`, as
  /// "save /run/step-5", is for messages; `deadline` is how long a step waits for other ranks.
  /// Errors of the store pass through.
  Call call(std::string name, std::vector<Fact> same, std::chrono::milliseconds deadline) const;

 private:
  struct State;
  explicit CallGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

/// A common action of all ranks, in one step or several. For one thread at a time.
class CallGroup::Call {
 public:
  /// One step: runs work() on every rank and then merge(all their bytes) on rank 0. Returns merge's
  /// bytes on every rank, or throws the same error on every rank and has ended: with code and errno
  /// of the failure if ranks failed in one way, else GroupError. On the only rank that failed, the
  /// exception from its work or merge is nested in it. Errors of the store pass through.
  using Work = std::function<Bytes()>;
  using Merge = std::function<Bytes(std::vector<Bytes>)>;
  Bytes agree(const Work& work, const Merge& merge) const;

  /// Ends the call here. If an error is given, the other ranks, which are at the next step or will
  /// be, get it there. Does nothing if the call has ended. A call that all ranks end without a step
  /// does not disturb later ones.
  void end(const std::exception_ptr& error = nullptr) const noexcept;

 private:
  friend class CallGroup;
  struct State;
  explicit Call(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace shardwise
