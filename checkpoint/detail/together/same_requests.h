#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/read_options.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/hash.h"

// Before processes read for each other, they make sure that all of them restore the same arrays of
// the same checkpoint. Each sends a hash of its list to rank 0; a list itself is sent only if it
// differs, for the error.
namespace shardwise::detail {

/// What one process is going to restore. Equal on two processes if and only if they may read for
/// each other.
struct RestoreList {
  std::string checkpoint;  ///< its id, or what else tells it from others
  std::int64_t processes_per_read = 1;
  std::vector<std::string> requests;  ///< "\"w\" f32 [8, 16], 0,- on 4", sorted

  bool operator==(const RestoreList&) const = default;
};

/// What each process tells rank 0 first.
struct RestoreDigest {
  Hash128 list;         ///< of encode(RestoreList)
  std::string problem;  ///< why this process cannot restore; empty if it can

  bool operator==(const RestoreDigest&) const = default;
};

/// What rank 0 answers to all.
struct RestoreVerdict {
  std::int64_t differing = -1;  ///< the rank whose list rank 0 wants to see; -1: none
  std::string problem;          ///< what all throw; empty if they may go on

  bool operator==(const RestoreVerdict&) const = default;
};

/// The messages. What decode_* reads may be any bytes: it throws corrupt or invalid_argument unless
/// they are a message of this kind, as it was sent.
Bytes encode(const RestoreList& list);
Bytes encode(const RestoreDigest& digest);
Bytes encode(const RestoreVerdict& verdict);
RestoreList decode_restore_list(std::span<const std::byte> message);
RestoreDigest decode_restore_digest(std::span<const std::byte> message);
RestoreVerdict decode_restore_verdict(std::span<const std::byte> message);

/// The requests' numbers in an order that is the same on all processes: sorted by name, then by
/// the rest of the request.
std::vector<std::size_t> common_order(std::span<const TensorRequest> requests);

RestoreList restore_list(std::string checkpoint, int processes_per_read,
                         std::span<const TensorRequest> requests);

/// Empty if every process of the group gives an equal list and no problem. Else the same text on
/// all: the problem of the lowest rank that has one, or how the first list that differs does.
std::string refusal(const ProcessGroup& group, const RestoreList& list, const std::string& problem);

}  // namespace shardwise::detail
