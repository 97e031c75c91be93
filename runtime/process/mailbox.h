#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/process/transport.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {

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
