#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/process/transport.h"
#include "shardwise/shard/error.h"

namespace shardwise {

using Bytes = std::vector<std::byte>;

/// The processes of a job, and a few collective operations on byte strings for agreement. Every
/// process calls the same operations in the same order; counting finds the messages of one
/// operation. Each message names its operation, with its root or tag. If ranks are in different
/// operations, the rank that notices it ends the group with an error, and no rank gets bytes of
/// another operation. Ranks that wait for each other in different operations do so until the
/// deadline; an agree() before each common task prevents that.
///
/// A rank may do other things in an exchange that it has begun, other operations of the group
/// included.
///
/// Each operation waits until a deadline: its own argument, or else the group's. If a process does
/// not come in time, is known to be dead, or calls abort(), all processes that wait get an Error:
/// `cancelled` with the reason. An aborted group stays aborted. So do its copies and the groups
/// made from it by duplicate(); an abort of such a duplicate does not end the original.
///
/// Uses messages, not an engine's own collectives, so the rank that collects can name the missing
/// ranks. broadcast and gather are size() - 1 messages to or from the root. all_gather is a gather
/// on rank 0, whose result then goes from rank to rank in a tree: no rank sends more than
/// log2(size()) times the bytes of all.
///
/// Cheap to copy; copies count operations together. One operation of a group at a time; different
/// groups may be used by different threads.
class ProcessGroup {
  struct State;

 public:
  /// A group of this process alone.
  ProcessGroup();

  /// All processes of a transport. Every process makes it, and gives the same timeout. A transport
  /// has at most one such group; duplicate() makes others.
  explicit ProcessGroup(std::shared_ptr<Transport> transport,
                        std::chrono::milliseconds timeout = std::chrono::minutes(10));

  int rank() const;
  int size() const;

  /// The default deadline of an operation.
  std::chrono::milliseconds timeout() const;

  /// A group of the same processes. Its operations do not mix with this one's, and its abort does
  /// not end this one. Every process makes it, in the same order as other duplicates of this one;
  /// no message is sent.
  ProcessGroup duplicate(std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Returns the root's bytes; those of others are ignored. The root does not wait for them.
  Bytes broadcast(Bytes bytes, int root = 0,
                  std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Returns the bytes of every rank on the root; elsewhere nothing, without waiting.
  std::vector<Bytes> gather(Bytes bytes, int root = 0,
                            std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// The bytes of every rank, everywhere.
  std::vector<Bytes> all_gather(Bytes bytes,
                                std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Waits until every rank has come.
  void barrier(std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Sends bytes to some ranks and takes those of others, which must send some to this one in the
  /// same operation; a rank occurs at most once in each list. The result is in the order of `from`.
  /// A rank with nothing to send or take calls it, too. `tag` names the purpose of the bytes, and
  /// must be the same for both ranks of each message.
  struct Outgoing {
    int to;
    Bytes bytes;
  };
  std::vector<Bytes> exchange(std::vector<Outgoing> outgoing, std::span<const int> from,
                              std::optional<std::chrono::milliseconds> timeout = {},
                              std::uint64_t tag = 0) const;

  /// An exchange of many messages, in any order, while the ranks do other things. A message has a
  /// number; at most one of a number goes from one rank to another. Thread-safe, except receive().
  class Exchange {
   public:
    /// Does not wait. `number` is below the exchange's count; `tag` as exchange()'s.
    void send(int to, std::uint64_t number, std::uint64_t tag, Bytes bytes) const;

    struct Awaited {
      int from;
      std::uint64_t number, tag;
    };
    struct Received {
      std::size_t place;  ///< in the list
      Bytes bytes;
    };

    /// Returns one of these messages, the first in the list that has come. Returns nothing if none
    /// comes in a short time: 10 ms, or 0.1 ms if this rank is not idle. If a rank is idle, and
    /// nothing has come for the group's timeout, the group ends with an error that names the ranks
    /// that have not sent the first message. Throws invalid_argument for an empty list. One thread
    /// at a time.
    std::optional<Received> receive(std::span<const Awaited> awaited, bool is_idle);

    /// Waits until all messages sent by this rank were taken.
    void finish() const;

   private:
    friend class ProcessGroup;
    Exchange(std::shared_ptr<State> state, std::uint64_t first_number);

    std::shared_ptr<State> state_;
    std::uint64_t first_;
    std::chrono::steady_clock::time_point last_;  // when a message came, or it was not idle
  };

  /// Every rank begins it, with the same count.
  Exchange begin_exchange(std::uint64_t count) const;

  /// A value that must be the same on all ranks.
  struct Fact {
    std::string_view name;
    std::uint64_t value;
  };

  /// If not all ranks give the same subject and facts, ends the group with an error that names the
  /// difference and the ranks. Each rank sends one short message, compares those of at most
  /// log2(size()) others with its own, and waits only for these: if other ranks differ, it gets the
  /// error in a later operation.
  void agree(const std::string& subject, std::span<const Fact> facts,
             std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Ends all operations of this group on all processes, now and later, with an error with this
  /// reason and the rank. Does not wait. Does nothing if the group was aborted before.
  void abort(std::string_view reason) const noexcept;

  /// Throws cancelled if the group was aborted, or is within `wait`. So a rank with an error of its
  /// own learns whether another rank's error caused it.
  void check(std::chrono::milliseconds wait = {}) const;

 private:
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace shardwise
