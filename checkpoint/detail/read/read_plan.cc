#include "shardwise/checkpoint/detail/read/read_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {
namespace {

/// One target's need of one chunk.
struct Use {
  std::int64_t file;
  std::uint64_t address;
  ChunkId id;
  std::size_t target;
};

/// Calls body(number) for each chunk of the piece that overlaps the box, which lies in the piece.
template <class Body>
void for_each_chunk(const PieceEntry& piece, const Box& box, Body&& body) {
  const std::size_t rank = box.rank();
  const Dims strides = row_major_strides(chunk_grid(piece));
  Dims first = piece.chunk, last = piece.chunk;
  for (std::size_t d = 0; d < rank; ++d) {
    first[d] = (box.begin(d) - piece.box.begin(d)) / piece.chunk[d];
    last[d] = (box.end(d) - 1 - piece.box.begin(d)) / piece.chunk[d];
  }
  Dims at = first;
  for (;;) {
    std::int64_t number = 0;
    for (std::size_t d = 0; d < rank; ++d) number += at[d] * strides[d];
    body(number);
    std::size_t d = rank;
    while (d > 0 && at[d - 1] == last[d - 1]) {
      --d;
      at[d] = first[d];
    }
    if (d == 0) return;
    ++at[d - 1];
  }
}

/// The uses of one tensor's chunks by its targets.
void find_uses(const StoredCheckpoint& checkpoint, std::size_t tensor,
               std::span<const ReadTarget> targets, std::span<const std::size_t> numbers,
               std::vector<Use>& uses) {
  const std::vector<PieceEntry>& pieces = checkpoint.manifest.tensors[tensor].pieces;
  if (pieces.size() == 1 && pieces.front().chunk == pieces.front().box.shape()) {
    // One chunk is all of the tensor, as of every small one: there is nothing to look for.
    const ChunkId id{tensor, 0, 0};
    for (const std::size_t number : numbers) {
      if (targets[number].box->empty()) continue;
      uses.push_back({pieces.front().file, checkpoint.record(id).address, id, number});
    }
    return;
  }
  std::vector<Piece> stored, wanted;
  for (const PieceEntry& piece : pieces) stored.push_back({piece.file, piece.box});
  for (const std::size_t number : numbers) {
    if (!targets[number].box->empty()) wanted.push_back({0, *targets[number].box});
  }
  // The plan keeps the order of targets, so that empty ones are all that is left out.
  std::vector<std::size_t> number_of;
  for (const std::size_t number : numbers) {
    if (!targets[number].box->empty()) number_of.push_back(number);
  }
  const TransferPlan plan(std::move(stored), std::move(wanted));
  for (const Copy& copy : plan.copies()) {
    ChunkId id{tensor, static_cast<std::size_t>(copy.source), 0};
    const PieceEntry& piece = checkpoint.piece(id);
    for_each_chunk(piece, copy.box, [&](std::int64_t chunk) {
      id.chunk = chunk;
      uses.push_back({piece.file, checkpoint.record(id).address, id,
                      number_of[static_cast<std::size_t>(copy.target)]});
    });
  }
}

}  // namespace

ReadPlan::ReadPlan(const StoredCheckpoint& checkpoint, std::span<const ReadTarget> targets) {
  std::vector<std::size_t> order(targets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto tensor_of = [&](std::size_t number) { return targets[number].tensor; };
  std::ranges::stable_sort(order, {}, tensor_of);
  std::vector<Use> uses;
  uses.reserve(targets.size());
  for (std::span<const std::size_t> rest = order; !rest.empty();) {
    const std::size_t tensor = tensor_of(rest.front());
    const auto end = std::ranges::upper_bound(rest, tensor, {}, tensor_of);
    const auto count = static_cast<std::size_t>(end - rest.begin());
    find_uses(checkpoint, tensor, targets, rest.first(count), uses);
    rest = rest.subspan(count);
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return std::tie(a.file, a.address, a.target) < std::tie(b.file, b.address, b.target);
  });
  uses_.reserve(uses.size());
  for (const Use& use : uses) {
    // Within a file, chunks do not share an address: check_chunk_table has seen to it.
    const bool again =
        !uses_.empty() && (&use)[-1].file == use.file && (&use)[-1].address == use.address;
    if (!again) chunks_.push_back({use.id, uses_.size(), 0});
    ++chunks_.back().num_uses;
    uses_.push_back(use.target);
  }
}

}  // namespace shardwise::detail
