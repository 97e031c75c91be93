#include "shardwise/runtime/process/key_value_store.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"

namespace shardwise {

void KeyValueStore::check() const {
  if (!set || !get || !remove) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("make a process group: found a store without {}, needed one with the "
                            "functions set, get and remove",
                            !set   ? "set"
                            : !get ? "get"
                                   : "remove"));
  }
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("make a process group: found rank {}, needed 0 to {}", rank, size - 1));
  }
}

}  // namespace shardwise
