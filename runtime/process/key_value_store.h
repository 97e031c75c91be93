#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// A store of keys that all processes of a job share, such as torch.distributed's Store and
/// jax.distributed's client. Any engine's messages can implement it. Called from several threads.
/// Exceptions of a function pass through.
struct KeyValueStore {
  int rank = 0;
  int size = 1;

  /// A job sets a key once; the value replaces one that an earlier job left.
  std::function<void(const std::string& key, std::span<const std::byte> value)> set;

  /// The value; nothing if the key is not set after `wait`, which may be 0.
  std::function<std::optional<std::vector<std::byte>>(const std::string& key,
                                                      std::chrono::milliseconds wait)>
      get;

  /// Frees a key, which is not requested again. May do nothing.
  std::function<void(const std::string& key)> remove;

  /// Prefix of each key, so that jobs and groups which share a store do not mix.
  std::string prefix = "shardwise/";

  /// True if it cannot hold keys of an earlier job. A CallGroup then need not find out.
  bool is_fresh = false;

  /// Throws invalid_argument if a function is missing or the rank is not one of size.
  void check() const;
};

}  // namespace shardwise
