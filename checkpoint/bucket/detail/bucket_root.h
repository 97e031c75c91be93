#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/bucket/detail/markers.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/storage/object/object_store.h"

namespace shardwise::bucket_detail {

/// A generation of a step, as its keys in the bucket say.
struct Generation {
  enum class State {
    attempt,    ///< it has no manifest: a writer may be at work
    committed,  ///< it is a checkpoint
    removed,    ///< a tombstone is in the place of its manifest
  };

  detail::StepName name;
  State state = State::attempt;
  std::optional<ObjectInfo> claim = {};  ///< its object
};

/// A root of checkpoints in a bucket: docs/object_stores.md, heading "Protocol". No object is
/// renamed. A generation's keys are written by the attempt that has claimed it, and one put of its
/// manifest where no object is publishes it. Several processes may run any of these at the same
/// time. Thread-safe.
class BucketRoot {
 public:
  /// `prefix`: of the root's keys, without a slash at its end; empty: the bucket. Sends up to
  /// `requests` at a time.
  BucketRoot(std::shared_ptr<ObjectStore> store, const std::string& prefix, int requests = 16);

  ObjectStore& store() const { return *store_; }

  /// The prefix of a generation's keys, with a slash at its end.
  std::string prefix(const detail::StepName& name) const;

  /// Throws unsupported if the store ignores the conditions of puts, which it is asked once for
  /// each root: it writes ".shardwise-root".
  void need_conditions();

  /// All generations of one step, or of all steps, ascending. One request for each.
  std::vector<Generation> generations(std::optional<std::int64_t> step = std::nullopt) const;

  /// Those that are checkpoints, ascending.
  std::vector<detail::StepName> committed() const;

  /// The claim on a generation; absent without one that we read.
  std::optional<Claim> claim_of(const Generation& generation) const;

  /// Claims the next generation of a step for an attempt with this id.
  detail::StepName claim(std::int64_t step, const Claim& claim);

  /// Publishes a generation whose other objects are all there. Throws already_exists if it was
  /// collected or removed, and io if nobody can say whether it is published: it may be, whole.
  void commit(const detail::StepName& name, std::string_view manifest);

  /// Ends an attempt of the caller's that is not to be published: seals it with a tombstone, as
  /// collect_garbage() does, and removes its objects. Leaves it if it is published all the same.
  void abandon(const detail::StepName& name);

  /// When a generation was published, in seconds since 1970; 0 if it is not there.
  std::int64_t published_seconds(const detail::StepName& name) const;

  /// Removes a generation: first a tombstone takes its manifest's place, if the manifest is still
  /// the one that was seen, then its objects go. False if there is no such checkpoint. Throws io if
  /// nobody can say whether the tombstone is there; then its objects are.
  bool remove(const detail::StepName& name);

  /// Ends what dead writers have left: puts a tombstone in the place of the manifest of each
  /// attempt whose claim is over, which no late commit can replace; then removes its objects, its
  /// uploads, and the rest of removed generations. An attempt without a claim is over a day
  /// after its last object was put. Times are the store's.
  GarbageReport collect_garbage(std::int64_t more_seconds = 0);

 private:
  std::string manifest_key(const detail::StepName& name) const;
  std::string claim_key(const detail::StepName& name) const;
  Generation::State state_of(const detail::StepName& name) const;
  Generation::State seal(const detail::StepName& name);
  bool is_over(const Generation& generation, std::int64_t more_seconds) const;
  void remove_objects(const detail::StepName& name);

  std::shared_ptr<ObjectStore> store_;
  std::string prefix_;  // empty, or with a slash at its end
  int requests_;
};

/// The root at a path in a bucket. Throws as open_bucket does.
std::shared_ptr<BucketRoot> open_bucket_root(const std::filesystem::path& root);

}  // namespace shardwise::bucket_detail
