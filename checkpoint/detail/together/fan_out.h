#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/runtime/process/process_group.h"

// What several processes of a job hold, as replicas do, is read by one of them, which sends it to
// the others: RestoreOptions::processes_per_read.
namespace shardwise::detail {

/// Chooses the reader of a box, so that all read about as much. Every process that asks it the same
/// finds the same. Thread-compatible.
class BoxReaders {
 public:
  /// Of every `together` neighbouring processes that hold a box one reads it.
  BoxReaders(int processes, int together);

  /// The readers of a box, one of each block of neighbours among its holders. Both lists are
  /// ascending; the result is valid until the next call.
  std::span<const int> choose(std::span<const int> holders, std::size_t bytes);

  /// What was given to each process until now.
  std::span<const std::size_t> bytes() const { return bytes_; }

 private:
  int together_;
  std::vector<std::size_t> bytes_;
  std::vector<int> chosen_;
};

/// Row-major bytes of a box that several neighbours hold.
struct SharedBox {
  std::uint64_t id;  ///< of its tensor and place, the same on all processes
  std::size_t bytes;
  int reader;
  std::vector<int> holders;            ///< ascending, the reader included
  std::span<std::byte* const> places;  ///< of this process; empty if it holds none
};

/// Sends each box from its reader, whose places are filled, to the other holders. All processes of
/// the boxes call it, with the same boxes in the same order; others do not wait for them. Messages
/// under way take 64 MiB at most. Throws cancelled if another process fails, corrupt if a message
/// is not of the boxes that are expected, or was damaged.
void fan_out(const ProcessGroup& group, std::span<const SharedBox> boxes);

/// A part of a box in a message.
struct BoxPart {
  std::uint64_t id;            ///< SharedBox::id
  std::uint64_t begin, bytes;  ///< in the box
};

/// A message of these parts, in their order; `from` gives the first byte of each.
Bytes pack_parts(std::span<const BoxPart> parts, std::span<const std::byte* const> from);

/// The first byte of each part; valid as long as the message. Throws corrupt unless it is a message
/// of exactly these parts, as it was sent.
std::vector<const std::byte*> unpack_parts(std::span<const std::byte> message,
                                           std::span<const BoxPart> parts);

}  // namespace shardwise::detail
