#include "shardwise/runtime/process/transport.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {

std::optional<std::vector<std::byte>> Transport::receive(int from, const MessageKey& key,
                                                         std::chrono::microseconds wait) {
  const AwaitedMessage awaited{from, key};
  auto message = receive_any({&awaited, 1}, wait);
  if (!message) return {};
  return std::move(message->bytes);
}

void Mailbox::put(int from, const MessageKey& key, std::vector<std::byte> bytes) {
  {
    const MutexLock lock(mutex_);
    messages_.insert_or_assign({from, key}, std::move(bytes));
  }
  changed_.notify_all();
}

std::optional<ReceivedMessage> Mailbox::find(std::span<const AwaitedMessage> awaited) {
  for (std::size_t i = 0; i < awaited.size(); ++i) {
    const auto found = messages_.find({awaited[i].from, awaited[i].key});
    if (found == messages_.end()) continue;
    ReceivedMessage message{i, std::move(found->second)};
    messages_.erase(found);
    return message;
  }
  return {};
}

std::optional<ReceivedMessage> Mailbox::take_any(std::span<const AwaitedMessage> awaited,
                                                 std::chrono::microseconds wait) {
  const auto end = std::chrono::steady_clock::now() + wait;
  const MutexLock lock(mutex_);
  for (bool is_last = false;;) {
    if (auto message = find(awaited)) return message;
    for (const AwaitedMessage& message : awaited) {
      if (aborts_.contains(message.key.channel)) return {};
    }
    for (const AwaitedMessage& message : awaited) {
      const auto found = gone_.find(message.from);
      if (found == gone_.end()) continue;
      throw Error(ErrorCode::io, fmt::format("rank {} has gone: {}", message.from, found->second));
    }
    if (is_last) return {};
    is_last = changed_.wait_until(mutex_, end) == std::cv_status::timeout;
  }
}

void Mailbox::abort(std::uint64_t channel, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    aborts_.try_emplace(channel, reason);
  }
  changed_.notify_all();
}

std::optional<std::string> Mailbox::aborted(std::uint64_t channel) {
  const MutexLock lock(mutex_);
  const auto found = aborts_.find(channel);
  if (found == aborts_.end()) return {};
  return found->second;
}

void Mailbox::gone(int rank, const std::string& why) {
  {
    const MutexLock lock(mutex_);
    gone_.try_emplace(rank, why);
  }
  changed_.notify_all();
}

}  // namespace shardwise
