#pragma once

#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// A store that does not answer, or an object that has changed since it was opened. This is never
/// an error of one record: passing over records would make batches depend on the network.
class StoreError : public Error {
 public:
  using Error::Error;
};

}  // namespace shardwise::detail
