#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/record/part_costs.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/process_group.h"

// The one record of a save: a process's account of its files, for the process that publishes. It is
// hash first: a head of some 70 bytes holds a hash of the list of tensors, and the list itself is
// sent only if somebody needs it. Each of the two ends with a hash of itself.
namespace shardwise::detail {

/// The head of a record.
struct RecordHead {
  std::uint64_t run = 0;  ///< run_of() of the attempt that was written in
  Hash128 list;           ///< hash_of() the process's encoded TensorList
  std::int64_t first_writer = 0;
  std::vector<FileEntry> files;  ///< of the writers from the first on; 0 bytes: it has written none
  std::uint64_t logical_bytes = 0, stored_bytes = 0;
  std::uint64_t unchanged_bytes = 0;
  std::int64_t chunks = 0;

  bool operator==(const RecordHead&) const = default;
};

/// The tensors that a process saves, without pieces, and who writes them.
struct TensorList {
  WriterMap writers;
  std::vector<TensorEntry> tensors;  ///< sorted by name; of listed pieces the process's own

  bool operator==(const TensorList&) const = default;
};

/// The head of the record of these writers of a plan, without the hash of the list.
RecordHead head_of(std::uint64_t run, const SavePlan& plan, WriterRange mine,
                   std::span<const WrittenShardFile> written);

/// The tensors of a plan.
TensorList list_of(const SavePlan& plan);

/// Tells the records of one attempt from those of any other. `attempt` is unique to the attempt,
/// such as its id.
std::uint64_t run_of(std::string_view attempt);

Bytes encode(const RecordHead& head);
Bytes encode(const TensorList& list);
Hash128 hash_of(std::span<const std::byte> encoded_list);

/// The inverse. Throws corrupt if a hash is not that of the bytes; invalid_argument or corrupt if
/// no process can have written them: numbers out of bounds, bad names, shardings that do not fit,
/// boxes outside their tensor.
RecordHead decode_head(std::span<const std::byte> bytes);
TensorList decode_list(std::span<const std::byte> bytes);

/// A head, the costs and the encoded list that the head has the hash of, in one text of bytes; and
/// apart again, valid as long as the record. The list may be empty: it stays with its process until
/// somebody asks for it. Throws as above.
struct SplitRecord {
  RecordHead head;
  PartCosts costs;
  std::span<const std::byte> list;
};
Bytes join(const RecordHead& head, const PartCosts& costs, std::span<const std::byte> list);
SplitRecord split(std::span<const std::byte> record);

/// A list that differs from all before it, and the number of the first head that has it.
struct NumberedList {
  std::size_t head;
  TensorList list;
};

/// For each list among the heads, the number of the first head that has it; ascending.
std::vector<std::size_t> first_with_each_list(std::span<const RecordHead> heads);

/// The manifest of all heads together, but for id, step and texts of the caller's, and the save's
/// counts. `lists`: one for each of first_with_each_list(). `process`: the word for a head in
/// messages, "rank" or "writer". Throws invalid_argument if two processes say different things of
/// the writers or of a tensor, a writer is missing or comes twice, or a process was not given a
/// tensor that its devices hold a part of.
std::pair<Manifest, SaveStats> merge(std::span<const RecordHead> heads,
                                     std::vector<NumberedList> lists, std::string_view process);

}  // namespace shardwise::detail
