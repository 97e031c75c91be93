#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shardwise/runtime/process/process_group.h"

// What several processes of a job hold, as replicas do, is read by one of them, which sends it to
// the others: RestoreOptions::processes_per_read.
namespace shardwise::detail {

/// Chooses who reads a box, so that all read about as much. Every process that asks it the same
/// finds the same. Thread-compatible.
class BoxReaders {
 public:
  /// Of every `together` neighbouring processes that hold a box one reads it.
  BoxReaders(int processes, int together);

  /// Who reads it, of the processes that hold it, which are ascending; both valid until the next
  /// call.
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
  std::size_t bytes;
  int reader;
  std::vector<int> holders;            ///< ascending, the reader included
  std::span<std::byte* const> places;  ///< of this process; empty where it holds none
};

/// Sends each box from its reader, whose places are filled, to the other holders. All processes of
/// the boxes call it, with the same ones in the same order; others do not wait for them. Messages
/// under way take 64 MiB at most. Throws cancelled where another process fails.
void fan_out(const ProcessGroup& group, std::span<const SharedBox> boxes);

}  // namespace shardwise::detail
