// How long does it take to plan a restore of very many chunks?
//
//   read_plan_bench [TENSORS]
//
// Plans which chunks a reader needs, before it reads the first byte. TENSORS tensors (64 unless
// said otherwise) of f32 [65536, 65536] are stored from the mesh data=4,model=2 in chunks of 1 MiB,
// 16,384 each. The shards of the mesh data=2,model=4 need them; so do those of a 2 by 4 target mesh
// that cuts chunks apart, so some chunks are needed twice. There are no files: a plan looks only at
// the manifest and the chunk tables. The bar is one second for 1,000,000 chunks; the baseline walks
// the chunk tables once and adds up their bytes. Medians of five rounds.

#include <fmt/core.h>

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/shard/sharding.h"

using namespace shardwise;
using namespace shardwise::bench;

namespace {

constexpr double kBarSeconds = 1, kBarChunks = 1e6;

const Shape kShape{65536, 65536};

Sharding cut(const char* mesh, const char* spec) {
  return Sharding(Mesh::parse(mesh), PartitionSpec::parse(spec));
}

/// The manifest and the chunk table of a checkpoint that was never written.
detail::StoredCheckpoint stored(std::int64_t tensors) {
  detail::StoredCheckpoint checkpoint;
  checkpoint.manifest.files.emplace_back();
  std::vector<detail::ChunkRecord>& records = checkpoint.tables.emplace_back().records;
  const std::vector<DistinctPiece> pieces =
      cut("data=4,model=2", "data,model").distinct_pieces(kShape);
  for (std::int64_t t = 0; t < tensors; ++t) {
    detail::TensorEntry& tensor = checkpoint.manifest.tensors.emplace_back();
    tensor.name = tensor_name(t);
    tensor.shape = kShape;
    for (const DistinctPiece& piece : pieces) {
      detail::PieceEntry entry;
      entry.box = piece.box;
      entry.layout = detail::Layout::chunked;
      entry.chunk = {512, 512};
      entry.first_chunk = std::ssize(records);
      const std::int64_t chunks = num_chunks(entry);
      for (std::int64_t c = 0; c < chunks; ++c) {
        records.push_back({65536 + (std::uint64_t{records.size()} << 20), 1 << 20, 0, 0, 0});
      }
      tensor.pieces.push_back(entry);
    }
  }
  return checkpoint;
}

std::vector<detail::ReadTarget> targets_of(std::int64_t tensors,
                                           std::span<const DistinctPiece> pieces) {
  static std::byte* const nowhere = nullptr;  // nothing is read
  std::vector<detail::ReadTarget> targets;
  for (std::int64_t t = 0; t < tensors; ++t) {
    for (const DistinctPiece& piece : pieces) {
      targets.push_back({static_cast<std::size_t>(t), &piece.box, {&nowhere, 1}});
    }
  }
  return targets;
}

void run(std::int64_t tensors) {
  const detail::StoredCheckpoint checkpoint = stored(tensors);
  fmt::print("{} chunks in {} tensors, median of {}\n\n", checkpoint.tables[0].records.size(),
             tensors, kRounds);
  fmt::print("{:<36} {:>10} {:>8} {:>20}\n", "", "chunks", "seconds", "s per 1,000,000");
  const auto line = [](const std::string& what, std::size_t chunks, double time) {
    fmt::print("{:<36} {:>10} {:>8.3f} {:>20.3f}\n", what, chunks, time,
               time * kBarChunks / static_cast<double>(chunks));
    return time * kBarChunks / static_cast<double>(chunks);
  };
  std::vector<double> walking;
  std::uint64_t sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    walking.push_back(seconds([&] {
      for (const detail::ChunkRecord& record : checkpoint.tables[0].records)
        sum += record.stored_bytes;
    }));
  }
  line("all chunk records, added up", checkpoint.tables[0].records.size(), median(walking));
  double worst = 0;
  const struct {
    const char *what, *mesh, *spec;
  } cases[] = {{"plan, data=2,model=4: data,model", "data=2,model=4", "data,model"},
               {"plan, all on one device", "one=1", "-,-"},
               {"plan, 3 x 5, through the chunks", "a=3,b=5", "a,b"}};
  for (const auto& c : cases) {
    const auto pieces = cut(c.mesh, c.spec).distinct_pieces(kShape);
    const std::vector<detail::ReadTarget> targets = targets_of(tensors, pieces);
    std::vector<double> planning;
    std::size_t chunks = 0;
    for (int round = 0; round < kRounds; ++round) {
      planning.push_back(seconds([&] { chunks = detail::ReadPlan(checkpoint, targets).size(); }));
    }
    worst = std::max(worst, line(c.what, chunks, median(planning)));
  }
  fmt::print("\nbar: {:.1f} s per 1,000,000 chunks; the slowest plan takes {:.3f}: {}\n",
             kBarSeconds, worst, worst <= kBarSeconds ? "kept" : "MISSED");
  if (sum == 0) fmt::print("(nothing is stored)\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? std::stoll(argv[1]) : 64);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "read_plan_bench: {}\n", e.what());
    return 3;
  }
}
