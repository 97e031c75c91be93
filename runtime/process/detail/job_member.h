#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/process/detail/wait.h"
#include "shardwise/runtime/process/key_value_store.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// A process among the others of its own job, over a store that other jobs may have used. The keys
/// of the job hold a number that rank 0 draws, and that another rank learns in answer to a number
/// of its own. Holds no lock while a function of the store runs. Thread-safe.
class JobMember {
 public:
  explicit JobMember(KeyValueStore with);

  const KeyValueStore store;

  /// True if the keys of the job are known.
  bool is_known();

  /// A key of the job, which is known.
  std::string key(std::string_view name);

  /// On rank 0, before the other ranks can find anything.
  void open();

  /// On rank 0: answers the ranks that want to join, as they come, and waits for all. Returns those
  /// that did not come.
  std::vector<int> admit(Time end);

  /// On another rank: finds rank 0's number, and waits for its answer. A number left by an earlier
  /// job gets no answer: it is tried until rank 0 of this job replaces it. Returns whether the job
  /// is known.
  bool join(Time end);

  std::optional<Bytes> wait_for(const std::string& key, Time end) const;

  /// Gives `take` the values of the ranks, of the keys "`key`/`rank`", as they come, until it
  /// returns false. Returns the ranks whose values have not come by `end`.
  std::vector<int> collect(const std::string& key, std::vector<int> from, Time end,
                           const std::function<bool(int rank, Bytes value)>& take) const;

 private:
  const std::string number_;  // of the job on rank 0; of another rank: an answer's is the same
  Mutex mutex_;
  bool is_open_ SHARDWISE_GUARDED_BY(mutex_);
  // On rank 0: the ranks that have not joined.
  std::set<int> strangers_ SHARDWISE_GUARDED_BY(mutex_);
  // Prefix of the job's keys; empty if not known.
  std::string job_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::detail
