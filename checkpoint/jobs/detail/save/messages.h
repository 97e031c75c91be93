#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/runtime/process/process_group.h"

// Messages that the processes of a save exchange in addition to their records: short, whatever the
// number of tensors and pieces. Each ends with a hash of itself; decoding throws corrupt if that is
// not right, and invalid_argument if a message has contents that no process can have sent.
namespace shardwise::jobs_detail {

/// From rank 0 to all, first: where to write, and the terms that all must have in common.
struct AttemptNotice {
  std::string id;          ///< of rank 0's attempt: no other run has it; zeros without one
  std::string directory;   ///< its name in the root; empty if each process has a root of its own
  bool is_reused = false;  ///< it was a spare: files are in it
  bool skipped = false;    ///< nothing is written: `directory` is the checkpoint that is there
  Existing existing = Existing::fail;  ///< the terms' one, or replace: rank 0 knows of damage
  std::string base;                    ///< the path of the step before, if rank 0 finds it for all
  SaveTerms terms;
};

/// From rank 0 to all, last: the committed checkpoint; or, before that, that it needs the tensor
/// lists of some ranks, as not all have the same.
struct SaveOutcome {
  std::vector<int> lists_wanted;
  SaveStats stats;       ///< of the whole checkpoint; plan and write are the only times
  std::string manifest;  ///< its text, if each process has a root of its own; it is to be committed
};

Bytes encode(const AttemptNotice& notice);
AttemptNotice decode_notice(std::span<const std::byte> bytes);

/// `processes` is the size of the group.
Bytes encode(const SaveOutcome& outcome);
SaveOutcome decode_outcome(std::span<const std::byte> bytes, int processes);

/// The latest step that rank 0 finds, if any, and the id of the attempt that it was.
/// Paths are names in the root, which is the reader's own.
Bytes encode(const std::optional<LatestStep>& latest, const std::string& id);
std::pair<std::optional<LatestStep>, std::string> decode_latest(std::span<const std::byte> bytes,
                                                                const std::filesystem::path& root);

}  // namespace shardwise::jobs_detail
