#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/process/transport.h"

namespace shardwise {

/// A store of keys that all processes of a job share: what torch.distributed's Store and
/// jax.distributed's client are, and what can be made of any engine's messages. Called from several
/// threads. What a function throws passes through.
struct KeyValueStore {
  int rank = 0;
  int size = 1;

  /// Each key is set once.
  std::function<void(const std::string& key, std::span<const std::byte> value)> set;

  /// The value; nothing where nobody has set the key after `wait`, which may be 0.
  std::function<std::optional<std::vector<std::byte>>(const std::string& key,
                                                      std::chrono::milliseconds wait)>
      get;

  /// Makes room; the key is not asked for again. May do nothing.
  std::function<void(const std::string& key)> remove;

  /// Before each key, so that jobs and groups which share a store do not mix.
  std::string prefix = "shardwise/";
};

/// Messages by way of a store: each is a key of its own. Throws invalid_argument where a function
/// is missing or the rank is not one of size.
std::shared_ptr<Transport> store_transport(KeyValueStore store);

}  // namespace shardwise
