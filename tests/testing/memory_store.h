#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/runtime/process/key_value_store.h"
#include "shardwise/runtime/process/process_group.h"

namespace shardwise {

/// A store in memory, for ranks that are threads.
class MemoryStore {
 public:
  KeyValueStore of(int rank, int size) {
    return {.rank = rank,
            .size = size,
            .set =
                [this](const std::string& key, std::span<const std::byte> value) {
                  const std::lock_guard lock(mutex_);
                  Bytes& place = values_[key];
                  place.assign(value.begin(), value.end());
                  for (const auto& [end, other] : replaced_) {
                    if (key.ends_with(end)) place = other;
                  }
                  changed_.notify_all();
                },
            .get = [this](const std::string& key,
                          std::chrono::milliseconds wait) -> std::optional<Bytes> {
              std::unique_lock lock(mutex_);
              ++asked_[key];
              if (!changed_.wait_for(lock, wait, [&] { return values_.contains(key); })) return {};
              return values_[key];
            },
            .remove =
                [this](const std::string& key) {
                  const std::lock_guard lock(mutex_);
                  values_.erase(key);
                }};
  }

  std::size_t size() const { return values_.size(); }

  /// How many of its keys have this in them.
  std::size_t count(std::string_view part) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count_if(
        values_, [&](const auto& entry) { return entry.first.find(part) != std::string::npos; }));
  }

  /// How often keys with this end were asked for.
  int asked(std::string_view end) {
    const std::lock_guard lock(mutex_);
    int times = 0;
    for (const auto& [key, asked] : asked_) times += key.ends_with(end) ? asked : 0;
    return times;
  }

  /// Whatever is set for a key with this end will be this.
  void replace(const std::string& end, const Bytes& value) { replaced_[end] = value; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> values_, replaced_;
  std::map<std::string, int> asked_;
};

}  // namespace shardwise
