#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/host/mutex.h"

// Of neighbouring processes one writes the shard files (SaveOptions::processes_per_file): what the
// others hold it asks them for, box by box, as it would ask its own sources.
namespace shardwise::detail {

/// The writers that a rank stands for; none if its neighbour writes what its devices hold.
WriterRange writers_of(int rank, const SaveOptions& options);

/// A process and those that have the same shard files: ranks from a multiple of
/// SaveOptions::processes_per_file on, of which the first one writes. Thread-compatible.
class Neighbours {
 public:
  /// Every process of the group makes it. Requires a number of processes that divides the group's.
  Neighbours(const ProcessGroup& group, const SaveOptions& options);

  int writer() const { return writer_; }
  bool is_writer() const { return rank_ == writer_; }

  /// For the writer: the sources with what its neighbours' devices hold, of `devices` in all. A box
  /// comes from one process that holds it, itself if possible. It must outlive the sources. They
  /// throw cancelled if a neighbour fails.
  std::vector<TensorSource> gather(std::vector<TensorSource> sources, std::int64_t devices);

  /// For the writer: lets the others go.
  void finish();

  /// For the others: gives the writer the boxes that it asks for, until it lets them go. Throws
  /// invalid_argument if a tensor is wanted that is not there, CallerError.
  void serve(const std::vector<TensorSource>& sources) const;

 private:
  struct Held {
    Box box;
    int rank;
  };
  /// The channel to a neighbour; one question at a time.
  struct Line {
    Mutex mutex;
    const ProcessGroup* channel;
  };
  class Reader;

  /// For the writer: which boxes of a tensor it and its neighbours hold, each once; its own first.
  std::vector<Held> boxes_held(const Sharding& sharding, const Shape& shape,
                               std::int64_t devices) const;

  int rank_, size_, writer_;
  std::vector<ProcessGroup> channels_;  // to the writer, or from it: one for each neighbour
};

}  // namespace shardwise::detail
