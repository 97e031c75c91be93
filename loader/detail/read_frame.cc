#include "shardwise/loader/detail/read_frame.h"

#include <memory>

namespace shardwise::detail {
namespace {

// Most memory that a frame keeps. A larger piece is freed after its read.
constexpr std::size_t kKeptFrameBytes = std::size_t{32} << 20;

struct ThreadFrames {
  std::vector<std::unique_ptr<ReadFrame::Lists>> frames;  // by depth
  std::size_t depth = 0;
};

ThreadFrames& thread_frames() {
  thread_local ThreadFrames frames;
  return frames;
}

ReadFrame::Lists& enter_frame() {
  ThreadFrames& all = thread_frames();
  if (all.depth == all.frames.size()) {
    all.frames.push_back(std::make_unique<ReadFrame::Lists>());
  }
  return *all.frames[all.depth++];
}

}  // namespace

ReadFrame::ReadFrame() : lists_(enter_frame()) {}

ReadFrame::~ReadFrame() {
  lists_.boxes.clear();
  lists_.others.clear();
  lists_.values.clear();
  lists_.buffers.clear();
  lists_.places.clear();
  lists_.memory.keep_at_most(kKeptFrameBytes);
  --thread_frames().depth;
}

}  // namespace shardwise::detail
