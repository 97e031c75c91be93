#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/record/record.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/write/part.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/save.h"

// The two halves of every save, however its processes agree: each process writes its part, and one
// process publishes all parts.
namespace shardwise::detail {

/// The writers of all processes, if this one is `writer`, with ShardWriter::starts. Throws
/// invalid_argument if it cannot be, or a source names a device beyond them.
WriterMap checked_writers(std::span<const TensorSource> sources, std::int64_t writer,
                          const std::vector<std::int64_t>& starts);

/// A process's part of a save, before it is written. The sources are moved from.
struct PartToWrite {
  std::vector<TensorSource> sources;
  WriterMap writers;  ///< of all processes
  WriterRange mine;
  EncodeOptions options;

  /// Codes tensors whose byte values repeat, but not in order: zstd_huffman leaves our own coder
  /// out.
  Effort huffman = Effort::huffman_only;

  FindEarlier find_earlier = nullptr;

  /// Called with the plan on a thread of its own while the files are written. May be null.
  std::function<void(const SavePlan&)> beside = nullptr;
};

/// The part when its files are written.
struct WrittenPart {
  SavePlan plan;
  RecordHead head;  ///< without the hash of the list
  PartCosts costs;
};

/// Plans and writes the part. Its files are on the disk when this returns, and their names, too, if
/// other processes write in the directory. Requires that check_sources passed. Throws as
/// CheckpointManager::save does, and CallerError.
WrittenPart write_own_part(const PartTools& tools, const AttemptDirectory& directory,
                           std::uint64_t run, PartToWrite part);

/// The record of a part, with its list or without.
Bytes record_of(WrittenPart& part, bool with_list);

/// The parts of all processes of a save.
struct PartsOfSave {
  std::vector<RecordHead> heads;
  std::vector<NumberedList> lists;  ///< one for each of first_with_each_list()
  PartCosts costs;                  ///< the time of the process that took longest; the most memory
};

/// The manifest and the statistics of all parts together. `id`: the attempt's. Throws as merge()
/// does.
std::pair<Manifest, SaveStats> merged_parts(PartsOfSave parts, std::string id, std::int64_t step,
                                            const PublishOptions& options);

/// Makes the attempt a checkpoint: looks at its shard files, if others have written some of them;
/// writes index and manifest; renames. `check` is called right before the name is given. Throws
/// already_exists, corrupt, io, unsupported; then nothing is published.
void publish_parts(FileSystem& file_system, Attempt& attempt, Manifest& manifest, SaveStats& stats,
                   std::span<const std::byte> index, Existing existing, bool written_by_others,
                   const std::function<void()>& check = nullptr);

/// Removes the files of a spare that no process has written.
void remove_unlisted(FileSystem& file_system, const Attempt& attempt, const Manifest& manifest);

}  // namespace shardwise::detail
