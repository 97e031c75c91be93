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
/// found by counting.
///
/// Each operation waits until a deadline: its own argument, or else the group's. Where a process
/// does not come in time, where one is known to be dead, and where one calls abort(), all processes
/// that wait get an Error: `cancelled` with the reason. A group that was aborted stays so; copies
/// share that, and so do groups made of it by duplicate(); it does not share theirs.
///
/// Made of messages, not of an engine's own collectives, so that the one who collects knows who has
/// not come. broadcast and gather are size() - 1 messages to or from the root, all_gather is both.
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
  /// `from`. A rank that has nothing to send or take calls it, too.
  struct Outgoing {
    int to;
    Bytes bytes;
  };
  std::vector<Bytes> exchange(std::vector<Outgoing> outgoing, std::span<const int> from,
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
