#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/record/save_halves.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/jobs/detail/save/save_place.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/runtime/process/rendezvous.h"

// One save of all processes of a rendezvous. It is three agreements. Begin: rank 0 makes the
// attempt, and all learn where to write. Write: each rank writes its shard files and tells rank 0
// in some hundred bytes; lists of tensors follow only if they differ. Publish: rank 0 makes the
// attempt a checkpoint, in the merge of the last of them.
namespace shardwise::jobs_detail {

using namespace detail;

/// A save as one rank asks for it; alike on all ranks but for the tools and functions.
struct SaveRequest {
  std::int64_t step = kNoStep;  ///< in the manifest
  bool is_damaged = false;  ///< the checkpoint that is there, which is replaced; rank 0's counts
  SaveTerms terms;
  PublishOptions publish;  ///< rank 0's count
  EncodeOptions encode;

  /// Gives the writers of all ranks, from this rank's sources. Throws if a source is wrong.
  std::function<WriterMap(std::span<const TensorSource>)> writers;
  std::int64_t writers_of_a_rank = 1;  ///< rank r has those from r times this on
  Effort huffman = Effort::huffman_only;

  /// `describe` gives a rank's objects that are not tensors; `document` makes those of all ranks
  /// the text that is published, on rank 0. Null: PublishOptions::objects_json.
  Rendezvous::Work describe = nullptr;
  std::function<std::string(std::vector<Bytes>)> document = nullptr;

  /// `base` finds the path of the step before on rank 0, for all; may be null. `find_earlier` is
  /// called with that path, or "", on each rank that has chunks to compare; null: all is written.
  std::function<std::string()> base = nullptr;
  std::function<EarlierStep(const std::string& base)> find_earlier = nullptr;
};

/// One save on one rank. Keeps references.
class SaveTogether {
 public:
  SaveTogether(const Rendezvous& ranks, SavePlace& place, const PartTools& tools,
               SaveRequest request);

  /// Writes a checkpoint together with the other ranks, and commits it; returns all of SaveStats
  /// but the total times and the errors of cleaning up. Throws as CheckpointManager::save does, on
  /// every rank; then nothing new is listed.
  SaveStats run(std::vector<TensorSource> sources);

  /// The error that a function of this rank's caller threw, if that has ended the save.
  const std::exception_ptr& callers_error() const { return callers_error_; }

  /// The shard files that this rank has written.
  std::vector<FileEntry> files() const;

 private:
  Bytes begin(std::vector<Bytes> described);
  void check_terms() const;
  SaveStats skipped();
  Bytes write(std::vector<TensorSource> sources);
  void write_part_of(std::vector<TensorSource> sources, const AttemptDirectory& directory);
  Bytes merge_heads(std::vector<Bytes> messages);
  Bytes list_if_wanted() const;
  Bytes publish(std::vector<NumberedList> lists);
  Bytes outcome_message() const;
  RecordHead head_of_rank(RecordHead head, int rank) const;
  bool is_alone() const { return ranks_.size() == 1; }

  template <class Step>
  auto by_caller(const Step& step);

  const Rendezvous& ranks_;
  SavePlace& place_;
  const PartTools& tools_;
  SaveRequest request_;
  AttemptNotice notice_;
  WrittenPart part_;
  std::exception_ptr callers_error_;

  // Rank 0's.
  std::vector<std::byte> index_;
  PartsOfSave parts_;
  SaveOutcome outcome_;
};

/// Throws invalid_argument if a save cannot have these arguments.
void check_save(std::int64_t step, std::span<const TensorSource> tensors,
                const SaveOptions& options, int threads, int processes);

/// In a handler: tells the other processes of a group which error has ended this one's part of
/// `subject`, which may be empty.
void abort_group(const ProcessGroup& group, const std::string& subject);

}  // namespace shardwise::jobs_detail
