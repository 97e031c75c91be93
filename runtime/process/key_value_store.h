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
/// jax.distributed's client. It can be made of any engine's messages. Called from several threads.
/// What a function throws passes through.
struct KeyValueStore {
  int rank = 0;
  int size = 1;

  /// A job sets a key once; the value takes the place of one that an earlier job has left.
  std::function<void(const std::string& key, std::span<const std::byte> value)> set;

  /// The value; nothing if the key is not set after `wait`, which may be 0.
  std::function<std::optional<std::vector<std::byte>>(const std::string& key,
                                                      std::chrono::milliseconds wait)>
      get;

  /// Makes room; the key is not asked for again. May do nothing.
  std::function<void(const std::string& key)> remove;

  /// Before each key, so that jobs and groups which share a store do not mix.
  std::string prefix = "shardwise/";

  /// Nothing of an earlier job can be in it. A CallGroup then need not find out.
  bool is_fresh = false;

  /// Throws invalid_argument if a function is missing or the rank is not one of size.
  void check() const;
};

}  // namespace shardwise
