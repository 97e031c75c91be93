#include "shardwise/checkpoint/detail/read/read_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {
namespace {

// Places for the transfer plan: no stored element is at its target already.
constexpr DeviceId kOnDisk = 0, kInMemory = 1;

// Smaller chunks are read with their neighbours.
constexpr std::uint64_t kLeastBytesInParts = std::uint64_t{64} << 10;

/// A chunk that a target takes something from.
struct Need {
  std::size_t file;
  std::uint64_t address;
  ChunkId chunk;
  std::size_t target;
};

/// Calls body(number) for each chunk of the piece that overlaps the box, which lies in the piece.
template <class Body>
void for_each_chunk(const Box& piece, std::span<const std::int64_t> chunk, const Box& box,
                    Body&& body) {
  Shape grid;
  Box chunks;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    grid.push_back((piece.extent(d) - 1) / chunk[d] + 1);
    chunks.push_back((box.begin(d) - piece.begin(d)) / chunk[d],
                     (box.end(d) - 1 - piece.begin(d)) / chunk[d] + 1);
  }
  const Dims strides = row_major_strides(grid);
  for_each_index(chunks, [&](const Index& at) {
    body(std::inner_product(at.begin(), at.end(), strides.begin(), std::int64_t{0}));
  });
}

/// The chunks of one tensor that its targets need; `numbers` are of targets that are not empty.
void find_needs(const StoredCheckpoint& checkpoint, std::size_t tensor,
                std::span<const ReadTarget> targets, std::span<const std::size_t> numbers,
                std::vector<Need>& needs) {
  const PieceList& pieces = checkpoint.manifest.tensors[tensor].pieces;
  if (pieces.size() == 1 &&
      std::ranges::equal(pieces.chunk(0), checkpoint.manifest.tensors[tensor].shape)) {
    // One chunk is all of the tensor, as of every small one: there is nothing to look for.
    const ChunkId chunk{tensor, 0, 0};
    for (const std::size_t number : numbers) {
      const ChunkRecord& record = checkpoint.record(chunk);
      needs.push_back(
          {checkpoint.file_of(as_size(pieces.file(0)), record), record.address, chunk, number});
    }
    return;
  }
  std::vector<Piece> stored, wanted;
  stored.reserve(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) stored.push_back({kOnDisk, pieces.box(i)});
  for (const std::size_t number : numbers) wanted.push_back({kInMemory, *targets[number].box});
  const TransferPlan plan(stored, wanted);
  for (const Copy& copy : plan.copies()) {
    ChunkId chunk{tensor, static_cast<std::size_t>(copy.source), 0};
    const Box& piece = stored[chunk.piece].box;
    for_each_chunk(piece, pieces.chunk(chunk.piece), copy.box, [&](std::int64_t number) {
      chunk.chunk = number;
      const ChunkRecord& record = checkpoint.record(chunk);
      needs.push_back({checkpoint.file_of(as_size(pieces.file(chunk.piece)), record),
                       record.address, chunk, numbers[static_cast<std::size_t>(copy.target)]});
    });
  }
}

/// The chunks that all targets need, ordered by file and address, then by target.
std::vector<Need> find_needs(const StoredCheckpoint& checkpoint,
                             std::span<const ReadTarget> targets) {
  std::vector<std::size_t> numbers;
  numbers.reserve(targets.size());
  for (std::size_t number = 0; number < targets.size(); ++number) {
    if (!targets[number].box->empty()) numbers.push_back(number);
  }
  const auto tensor_of = [&](std::size_t number) { return targets[number].tensor; };
  std::ranges::stable_sort(numbers, {}, tensor_of);
  std::vector<Need> needs;
  needs.reserve(numbers.size());
  for (std::span<const std::size_t> rest = numbers; !rest.empty();) {
    const std::size_t tensor = tensor_of(rest.front());
    const auto end = std::ranges::upper_bound(rest, tensor, {}, tensor_of);
    const auto count = static_cast<std::size_t>(end - rest.begin());
    find_needs(checkpoint, tensor, targets, rest.first(count), needs);
    rest = rest.subspan(count);
  }
  std::sort(needs.begin(), needs.end(), [](const Need& a, const Need& b) {
    return std::tie(a.file, a.address, a.chunk, a.target) <
           std::tie(b.file, b.address, b.chunk, b.target);
  });
  return needs;
}

}  // namespace

std::vector<std::size_t> files_to_load(const StoredCheckpoint& checkpoint,
                                       std::span<const ReadTarget> targets) {
  if (checkpoint.is_complete()) return {};
  const Manifest& manifest = checkpoint.manifest;
  std::vector<std::size_t> numbers;
  std::vector<bool> is_wanted(manifest.files.size(), false);
  std::vector<WriterPiece> pieces;
  for (const ReadTarget& target : targets) {
    if (target.box->empty()) continue;
    const TensorEntry& tensor = manifest.tensors[target.tensor];
    pieces.clear();
    add_pieces_in(*target.box, manifest.writers, tensor, pieces);
    for (const auto& [writer, box] : pieces) {
      const auto file = std::ranges::lower_bound(manifest.files, writer, {}, &FileEntry::writer);
      if (file == manifest.files.end() || file->writer != writer) {
        throw no_file_of(writer, tensor, box, checkpoint.directory);
      }
      const auto number = static_cast<std::size_t>(file - manifest.files.begin());
      if (checkpoint.is_loaded[number] || is_wanted[number]) continue;
      is_wanted[number] = true;
      numbers.push_back(number);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

ReadPlan::ReadPlan(const StoredCheckpoint& checkpoint, std::span<const ReadTarget> targets) {
  const std::vector<Need> needs = find_needs(checkpoint, targets);
  chunks_.reserve(needs.size());
  ranges_.reserve(needs.size());
  first_target_.reserve(needs.size() + 1);
  targets_.reserve(needs.size());
  for (const Need& need : needs) {
    const bool again = !ranges_.empty() && (&need)[-1].chunk == need.chunk;
    if (!again) {
      chunks_.push_back(need.chunk);
      const std::uint64_t bytes = checkpoint.record(need.chunk).stored_bytes;
      const bool in_parts = bytes >= kLeastBytesInParts && stored_raw(checkpoint, need.chunk);
      ranges_.push_back({need.file, need.address, static_cast<std::size_t>(bytes), in_parts});
      first_target_.push_back(targets_.size());
    }
    targets_.push_back(need.target);
  }
  first_target_.push_back(targets_.size());
}

}  // namespace shardwise::detail
