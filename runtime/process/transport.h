#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
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

/// A message that a rank waits for.
struct AwaitedMessage {
  int from;
  MessageKey key;
};

/// One of the awaited messages, by its place in their list.
struct ReceivedMessage {
  std::size_t number;
  std::vector<std::byte> bytes;
};

/// Carries messages between the processes of a job. A ProcessGroup needs nothing else of an
/// implementation. Ranks are 0 .. size() - 1. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sends to another rank. Does not wait for it to receive. At most one message of a key goes from
  /// one rank to another. Throws io if it is known that it cannot arrive.
  virtual void send(int to, const MessageKey& key, std::vector<std::byte> bytes) = 0;

  /// Takes one of these messages, the first in the list that has come. Returns nothing if none has
  /// come after `wait`, or earlier if a channel of theirs was aborted. Throws io if none has come,
  /// and it is known that one of them will not.
  virtual std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage> awaited,
                                                     std::chrono::microseconds wait) = 0;

  /// The same for a single message.
  std::optional<std::vector<std::byte>> receive(int from, const MessageKey& key,
                                                std::chrono::microseconds wait);

  /// Makes aborted() return a reason in all processes, sooner or later: this reason, unless one is
  /// set already. Does not throw and does not wait.
  virtual void abort(std::uint64_t channel, const std::string& reason) noexcept = 0;

  /// The reason why the channel was aborted, if it was.
  virtual std::optional<std::string> aborted(std::uint64_t channel) = 0;

  /// Waits, at most for `wait`, until other ranks can get all messages of this rank without its
  /// help. Returns whether they can.
  virtual bool flush(std::chrono::milliseconds wait) = 0;

 protected:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
};

/// Messages and aborts that have come but were not requested yet, for transports whose messages
/// come in any order. Thread-safe.
class Mailbox {
 public:
  void put(int from, const MessageKey& key, std::vector<std::byte> bytes);

  /// Waits as Transport::receive_any does. Throws io if none of the messages has come and the
  /// sender of one is gone.
  std::optional<ReceivedMessage> take_any(std::span<const AwaitedMessage> awaited,
                                          std::chrono::microseconds wait);

  /// The first reason of a channel stays.
  void abort(std::uint64_t channel, const std::string& reason);
  std::optional<std::string> aborted(std::uint64_t channel);

  /// Nothing more will come from this rank; `why` is for the message: "its connection was closed".
  void gone(int rank, const std::string& why);

 private:
  std::optional<ReceivedMessage> find(std::span<const AwaitedMessage> awaited)
      SHARDWISE_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<int, MessageKey>, std::vector<std::byte>> messages_
      SHARDWISE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::string> aborts_ SHARDWISE_GUARDED_BY(mutex_);
  std::map<int, std::string> gone_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise
