#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {

/// Names a message among all those between two processes: a channel, and its number there.
struct MessageKey {
  std::uint64_t channel = 0;
  std::uint64_t number = 0;

  auto operator<=>(const MessageKey&) const = default;
};

/// Carries messages between the processes of a job. A ProcessGroup is made of it, and an
/// implementation needs to give nothing else. Ranks are 0 .. size() - 1. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sends to another rank. Does not wait for it to receive. At most one message of a key goes from
  /// one rank to another. Throws io if it is known that it cannot arrive.
  virtual void send(int to, const MessageKey& key, std::vector<std::byte> bytes) = 0;

  /// Takes the message of that key from another rank. Returns nothing if it has not come after
  /// `wait`, or earlier if the channel was aborted. Throws io if it is known that it will not come.
  virtual std::optional<std::vector<std::byte>> receive(int from, const MessageKey& key,
                                                        std::chrono::milliseconds wait) = 0;

  /// Makes aborted() give a reason in all processes, sooner or later: this reason, unless there is
  /// one already. Does not throw and does not wait.
  virtual void abort(std::uint64_t channel, const std::string& reason) noexcept = 0;

  /// Why the channel was aborted, if it was.
  virtual std::optional<std::string> aborted(std::uint64_t channel) = 0;

  /// Waits, at most for `wait`, until other ranks need nothing more from this one to get what it
  /// has sent. Returns whether that is so.
  virtual bool flush(std::chrono::milliseconds wait) = 0;

 protected:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
};

/// Messages and aborts that have come but were not asked for yet, for transports whose messages
/// come in any order. Thread-safe.
class Mailbox {
 public:
  void put(int from, const MessageKey& key, std::vector<std::byte> bytes);

  /// Waits as Transport::receive does. Throws io if the message is not there and its sender has
  /// gone.
  std::optional<std::vector<std::byte>> take(int from, const MessageKey& key,
                                             std::chrono::milliseconds wait);

  /// The first reason of a channel stays.
  void abort(std::uint64_t channel, const std::string& reason);
  std::optional<std::string> aborted(std::uint64_t channel);

  /// Nothing more will come from this rank; `why` is for the message: "its connection was closed".
  void gone(int rank, const std::string& why);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<int, MessageKey>, std::vector<std::byte>> messages_
      SHARDWISE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::string> aborts_ SHARDWISE_GUARDED_BY(mutex_);
  std::map<int, std::string> gone_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise
