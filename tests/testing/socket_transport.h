#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/runtime/process/transport.h"

namespace shardwise {

/// Faults of a rank by the number of its message, from 1 on; 0: no fault.
struct SocketFaults {
  std::int64_t lose = 0;                ///< this message is lost
  std::int64_t stop = 0;                ///< instead of this message, `stop_now` is called
  std::function<void()> stop_now = {};  ///< as death: ends the process, or closes the sockets
  std::uint32_t reorder_seed = 0;       ///< not 0: what comes is kept back, and comes in any order
};

/// A transport over socket pairs, between processes that have inherited them or threads. Messages
/// of a rank that ends are read until its sockets' end; then it is known to be gone.
class SocketTransport final : public Transport {
 public:
  /// One socket per rank, -1 for its own. Owns them.
  SocketTransport(int rank, std::vector<int> sockets, SocketFaults faults = {});
  ~SocketTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(sockets_.size()); }
  void send(int to, const MessageKey& key, std::vector<std::byte> bytes) override;
  std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage> awaited,
                                             std::chrono::microseconds wait) override;
  void abort(std::uint64_t channel, const std::string& reason) noexcept override;
  std::optional<std::string> aborted(std::uint64_t channel) override {
    return mailbox_.aborted(channel);
  }
  bool flush(std::chrono::milliseconds) override { return true; }

  /// As if the process ended: nothing more is sent or read.
  void close();

  std::int64_t sent() const { return sent_; }
  std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Frame;  // what goes before the bytes
  struct Held;

  void write_frame(int to, const MessageKey& key, bool is_abort, std::span<const std::byte> bytes);
  void read_all();
  bool read_frame(int from);
  void deliver(Held held);
  void release(bool all);

  const int rank_;
  const std::vector<int> sockets_;
  const SocketFaults faults_;
  Mailbox mailbox_;
  std::vector<std::mutex> writing_;
  std::atomic<std::int64_t> sent_ = 0, sent_bytes_ = 0;
  std::mutex holding_;
  std::vector<Held> held_;
  std::mt19937 random_;
  int wake_[2];
  std::thread reader_;
};

/// Socket pairs between all ranks: [rank][other], -1 for itself. The caller owns them.
std::vector<std::vector<int>> socket_mesh(int ranks);

/// Runs a function for every rank of a group, each on a thread; gives each one's error, or "".
/// `faults` by rank; a rank without an entry has none.
std::vector<std::string> run_ranks(
    int ranks, const std::function<SocketFaults(int)>& faults,
    const std::function<void(std::shared_ptr<SocketTransport>)>& run);

/// Result of run(deadline), a run that ends at a deadline. On a busy machine other ranks than the
/// intended ones may be late: that is not in order, and it runs again with a longer deadline.
template <class Run, class InOrder>
auto with_patience(std::chrono::milliseconds deadline, const Run& run, const InOrder& in_order) {
  for (;; deadline *= 8) {
    auto found = run(deadline);
    if (in_order(found) || deadline > std::chrono::seconds(20)) return found;
  }
}

}  // namespace shardwise
