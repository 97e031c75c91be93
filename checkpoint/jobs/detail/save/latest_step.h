#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// Which steps of a root are valid, and the newest of them. Thread-safe.
class LatestSteps {
 public:
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  /// `has_parts`: the root has some of the files of each step only. All must outlive it.
  LatestSteps(FileSystem& files, const std::filesystem::path& root, bool has_parts)
      : files_(files), root_(root), has_parts_(has_parts) {}

  /// Empty if a reader takes it, as this step. That it cannot be read now does not say that it is
  /// not valid: throws io.
  std::string why_invalid(const StepName& name) const;

  /// The newest generation of a step, which Existing::skip leaves as it is; nothing if the root has
  /// none. Throws already_exists if that generation is not valid, io.
  std::optional<StepName> find_valid(std::int64_t step) const;

  /// The newest valid step below `limit`; nothing if there is no step. Throws corrupt if there are
  /// and none is valid, io; without a limit unsupported, if there are only those of another
  /// library.
  std::optional<LatestStep> find(std::int64_t limit = kNoLimit) const;

  /// The same for all ranks: rank 0 looks; the others look whether they see the same.
  std::optional<LatestStep> agree(const Rendezvous& ranks, std::int64_t limit = kNoLimit) const;

 private:
  // The result of one look of find().
  struct Look {
    std::optional<Step> newest;  // the last valid one, if any
    std::vector<RejectedStep> rejected;
    bool changed = false;  // a step has come or gone during the look: it says nothing
  };

  bool are_of_others(const std::vector<RejectedStep>& rejected) const;
  void add_foreign(std::int64_t step, std::vector<std::string> names,
                   std::vector<RejectedStep>& rejected) const;
  void refuse_others() const;
  Look look_at(const std::vector<StepName>& names) const;
  RunNames names_below(std::int64_t limit) const;
  std::string id_of(const std::filesystem::path& directory) const;
  std::string why_not_step(const StepName& name, std::int64_t step) const;

  FileSystem& files_;
  const std::filesystem::path& root_;
  const bool has_parts_;
};

/// Calls `restore` with the newest valid step. If that throws corrupt on any rank, its bytes are
/// damaged: then all ranks go on with the step before it. Gives the step that all have restored
/// their part of, with those that were passed over; nothing if there is no step. Throws corrupt if
/// there are and none can be restored; on all ranks, any other error that `restore` throws on one.
std::optional<LatestStep> restore_newest(const LatestSteps& steps,
                                         const std::filesystem::path& root, const Rendezvous& ranks,
                                         const std::function<void(const Step&)>& restore);

/// Calls `restore` with this step on all ranks. Returns why its bytes are damaged for one of them,
/// with the rank; nothing if all have restored their part. Throws any other error that `restore`
/// throws on one.
std::optional<std::string> restore_step(const Step& step, const Rendezvous& ranks,
                                        const std::function<void(const Step&)>& restore);

}  // namespace shardwise::jobs_detail
