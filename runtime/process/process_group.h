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

namespace shardwise {

using Bytes = std::vector<std::byte>;

/// The processes of a job, and the few collective operations on byte strings by which they agree.
/// Every process calls the same operations in the same order; what belongs to one operation is
/// found by counting. Each message says what operation it is of, with its root or tag: if ranks are
/// in different operations, the one that finds out ends the group with an error, and no rank gets
/// bytes of another operation. Ranks that wait for each other in different ones do so until the
/// deadline; agree() at the start of what ranks do together prevents that.
///
/// Each operation waits until a deadline: its own argument, or else the group's. Where a process
/// does not come in time, where one is known to be dead, and where one calls abort(), all processes
/// that wait get an Error: `cancelled` with the reason. A group that was aborted stays so; copies
/// share that, and so do groups made of it by duplicate(); it does not share theirs.
///
/// Made of messages, not of an engine's own collectives, so that the rank that collects can name
/// those that have not come. broadcast and gather are size() - 1 messages to or from the root.
/// all_gather is a gather on rank 0, whose result then goes from rank to rank in a tree: no rank
/// sends more than log2(size()) times the bytes of all.
///
/// Cheap to copy; copies count operations together. One operation of a group at a time; different
/// groups may be used by different threads.
class ProcessGroup {
 public:
  /// A group of this process alone.
  ProcessGroup();

  /// All processes of a transport. Every process makes it, and gives the same timeout. At most one
  /// such group of a transport; others are made by duplicate().
  explicit ProcessGroup(std::shared_ptr<Transport> transport,
                        std::chrono::milliseconds timeout = std::chrono::minutes(10));

  int rank() const;
  int size() const;

  /// How long an operation waits unless it is told otherwise.
  std::chrono::milliseconds timeout() const;

  /// A group of the same processes, whose operations do not mix with this one's; its abort does not
  /// end this one. Every process makes it, in the same order as other duplicates of this one; no
  /// message is sent.
  ProcessGroup duplicate(std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// The root's bytes; those of others are not looked at. Does not wait for them.
  Bytes broadcast(Bytes bytes, int root = 0,
                  std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// On the root, the bytes of every rank; elsewhere nothing, and it does not wait.
  std::vector<Bytes> gather(Bytes bytes, int root = 0,
                            std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// The bytes of every rank, everywhere.
  std::vector<Bytes> all_gather(Bytes bytes,
                                std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Waits until every rank has come.
  void barrier(std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Sends bytes to some ranks and takes those of others, which must send some to this one in the
  /// same operation; a rank occurs at most once in each list. What is given back is in the order of
  /// `from`. A rank that has nothing to send or take calls it, too. `tag` says what the bytes are
  /// of, and must be the same for both ranks of each message.
  struct Outgoing {
    int to;
    Bytes bytes;
  };
  std::vector<Bytes> exchange(std::vector<Outgoing> outgoing, std::span<const int> from,
                              std::optional<std::chrono::milliseconds> timeout = {},
                              std::uint64_t tag = 0) const;

  /// A number that all ranks must have alike.
  struct Fact {
    std::string_view name;
    std::uint64_t value;
  };

  /// Ends the group with an error that says what differs on which ranks, if not all give the same
  /// subject and facts. Each rank sends one short message, compares what at most log2(size())
  /// others say with its own, and waits for these alone: if others differ, it gets the error in a
  /// later operation.
  void agree(const std::string& subject, std::span<const Fact> facts,
             std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// Ends what all processes do with this group, now and later, with an error that has this reason
  /// and the rank. Does not wait. Nothing where it was aborted before.
  void abort(std::string_view reason) const noexcept;

  /// Throws cancelled where the group was aborted, or is within `wait`: who has an error of its own
  /// asks so whether another rank's has caused it.
  void check(std::chrono::milliseconds wait = {}) const;

 private:
  struct State;
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace shardwise
