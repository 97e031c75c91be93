#include "shardwise/checkpoint/detail/read/chunk_scatter.h"

#include <cstring>

#include "shardwise/storage/detail/stream_copy.h"

namespace shardwise::detail {
namespace {

// Shorter runs share their cache lines with others, which are there already.
constexpr std::size_t kLeastStreamedRun = 1024;

/// Copies of `count` runs, the same steps apart. A constant length lets the compiler turn memcpy
/// into one move, which is what short runs need.
template <std::size_t kRunBytes>
void copy_short_runs(std::byte* to, std::size_t to_step, const std::byte* from, std::size_t step,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_step, from + i * step, kRunBytes);
  }
}

void copy_runs(std::byte* to, std::size_t to_step, const std::byte* from, std::size_t step,
               std::size_t count, std::size_t run_bytes, CopyBy copy_by) {
  switch (run_bytes) {
    case 1:
      return copy_short_runs<1>(to, to_step, from, step, count);
    case 2:
      return copy_short_runs<2>(to, to_step, from, step, count);
    case 4:
      return copy_short_runs<4>(to, to_step, from, step, count);
    case 8:
      return copy_short_runs<8>(to, to_step, from, step, count);
    default:
      break;
  }
  const bool stream = copy_by == CopyBy::stream && run_bytes >= kLeastStreamedRun;
  for (std::size_t i = 0; i < count; ++i) {
    if (stream) {
      stream_copy(to + i * to_step, from + i * step, run_bytes);
    } else {
      std::memcpy(to + i * to_step, from + i * step, run_bytes);
    }
  }
}

Dims times(const Dims& elements, std::size_t element_bytes) {
  Dims bytes = elements;
  for (std::int64_t& value : bytes) value *= static_cast<std::int64_t>(element_bytes);
  return bytes;
}

}  // namespace

ChunkPart::ChunkPart(const StoredCheckpoint& checkpoint, const ChunkId& chunk,
                     const ReadTarget& target)
    : places_(target.places) {
  // Counted from the chunk's begin: the zeros beyond a piece's edge may be beyond 2^63 - 1.
  const PieceList& pieces = checkpoint.tensor(chunk).pieces;
  Shape shape;
  for (const std::int64_t extent : pieces.chunk(chunk.piece)) shape.push_back(extent);
  const Box held = chunk_box(pieces.box(chunk.piece), shape, chunk.chunk);
  if (held == *target.box && held.shape() == shape) {  // as of most small tensors
    run_bytes_ = checkpoint.decoded_bytes(chunk);
    done_ = run_bytes_ == 0;
    return;
  }
  const RunWalk walk = walk_runs(relative_to(intersect(held, *target.box), held.begin()),
                                 Box::whole(shape), relative_to(*target.box, held.begin()));
  const std::size_t element_bytes = size_bytes(checkpoint.tensor(chunk).dtype);
  run_bytes_ = as_size(walk.run_elements) * element_bytes;
  from_ = as_size(walk.a_offset) * element_bytes;
  to_ = as_size(walk.b_offset) * element_bytes;
  extents_ = walk.extents;
  steps_ = times(walk.a_strides, element_bytes);
  to_steps_ = times(walk.b_strides, element_bytes);
  at_ = Dims::filled(extents_.size(), 0);
  done_ = run_bytes_ == 0;
}

void ChunkPart::take(std::size_t begin, std::span<const std::byte> bytes, CopyBy copy_by) {
  const std::size_t end = begin + bytes.size();
  const std::size_t loops = extents_.size();
  while (!done_ && from_ < end) {
    if (from_ < begin || from_ + run_bytes_ > end) {
      // A run over the window's border.
      const std::size_t first = std::max(begin, from_);
      const std::size_t last = std::min(end, from_ + run_bytes_);
      for (std::byte* const place : places_) {
        copy_runs(place + to_ + (first - from_), 0, bytes.data() + (first - begin), 0, 1,
                  last - first, copy_by);
      }
      if (from_ + run_bytes_ > end) return;
      advance(1);
      continue;
    }
    // As many runs of the innermost loop as end in the window.
    std::int64_t count = 1;
    std::size_t step = 0, to_step = 0;
    if (loops > 0) {
      step = as_size(steps_[loops - 1]);
      to_step = as_size(to_steps_[loops - 1]);
      count = std::min(extents_[loops - 1] - at_[loops - 1],
                       static_cast<std::int64_t>((end - run_bytes_ - from_) / step) + 1);
    }
    for (std::byte* const place : places_) {
      copy_runs(place + to_, to_step, bytes.data() + (from_ - begin), step, as_size(count),
                run_bytes_, copy_by);
    }
    advance(count);
  }
}

void ChunkPart::advance(std::int64_t runs) {
  for (std::size_t loop = extents_.size(); loop-- > 0; runs = 1) {
    at_[loop] += runs;
    from_ += as_size(runs * steps_[loop]);
    to_ += as_size(runs * to_steps_[loop]);
    if (at_[loop] < extents_[loop]) return;
    from_ -= as_size(at_[loop] * steps_[loop]);
    to_ -= as_size(at_[loop] * to_steps_[loop]);
    at_[loop] = 0;
  }
  done_ = true;
}

ChunkScatter::ChunkScatter(const StoredCheckpoint& checkpoint, const ChunkId& chunk,
                           std::span<const ReadTarget> targets,
                           std::span<const std::size_t> numbers, CopyBy copy_by)
    : checkpoint_(checkpoint),
      chunk_(chunk),
      targets_(targets),
      numbers_(numbers),
      chunk_bytes_(checkpoint.decoded_bytes(chunk)),
      copy_by_(copy_by) {}

// Whatever was thrown in between.
ChunkScatter::~ChunkScatter() {
  if (copy_by_ == CopyBy::stream) stream_fence();
}

void ChunkScatter::put(std::span<const std::byte> window) {
  if (window.size() == chunk_bytes_) {
    // All at once, as of every small chunk.
    hash_ = hash64(window.data(), window.size());
    for (const std::size_t number : numbers_) {
      ChunkPart(checkpoint_, chunk_, targets_[number]).take(0, window, copy_by_);
    }
    return;
  }
  if (!hasher_) {
    hasher_.emplace();
    parts_.reserve(numbers_.size());
    for (const std::size_t number : numbers_) {
      parts_.emplace_back(checkpoint_, chunk_, targets_[number]);
    }
  }
  hasher_->update(window.data(), window.size());
  for (ChunkPart& part : parts_) part.take(done_, window, copy_by_);
  done_ += window.size();
}

}  // namespace shardwise::detail
