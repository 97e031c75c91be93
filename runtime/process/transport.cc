#include "shardwise/runtime/process/transport.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"

namespace shardwise {

void Mailbox::put(int from, const MessageKey& key, std::vector<std::byte> bytes) {
  {
    const MutexLock lock(mutex_);
    messages_.insert_or_assign({from, key}, std::move(bytes));
  }
  changed_.notify_all();
}

std::optional<std::vector<std::byte>> Mailbox::take(int from, const MessageKey& key,
                                                    std::chrono::milliseconds wait) {
  const auto end = std::chrono::steady_clock::now() + wait;
  const MutexLock lock(mutex_);
  for (;;) {
    if (const auto found = messages_.find({from, key}); found != messages_.end()) {
      auto bytes = std::move(found->second);
      messages_.erase(found);
      return bytes;
    }
    if (aborts_.contains(key.channel)) return {};
    if (const auto found = gone_.find(from); found != gone_.end()) {
      throw Error(ErrorCode::io, fmt::format("rank {} has gone: {}", from, found->second));
    }
    if (changed_.wait_until(mutex_, end) == std::cv_status::timeout &&
        !messages_.contains({from, key})) {
      return {};
    }
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
