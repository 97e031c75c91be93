#pragma once

#include <cstddef>
#include <vector>

#include "shardwise/loader/detail/scratch_memory.h"
#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// Lists and memory for one Source::read(), kept by the thread: once they have grown, reads
/// allocate nothing. A stage's read() calls its source's read(), so each depth has its own. For
/// this thread and scope only.
///
///     ReadFrame frame;
///     frame.lists().boxes.push_back(...);
class ReadFrame {
 public:
  /// The lists are empty at first; the content of the memory is unspecified.
  struct Lists {
    std::vector<FieldBox> boxes, others;
    std::vector<FieldValue> values;
    std::vector<FieldBuffer> buffers;
    std::vector<std::byte*> places;
    ScratchMemory memory;
  };

  ReadFrame();
  ~ReadFrame();
  ReadFrame(const ReadFrame&) = delete;
  ReadFrame& operator=(const ReadFrame&) = delete;

  Lists& lists() { return lists_; }

 private:
  Lists& lists_;
};

}  // namespace shardwise::detail
