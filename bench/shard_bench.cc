// How long do the questions of shard/ take, next to the loop one would write at first?

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shardwise/shard/sharding.h"
#include "shardwise/shard/transfer_plan.h"

namespace shardwise {
namespace {

// 512 devices, one dim cut by two axes, one axis left over.
const Sharding kSharding(Mesh::parse("a=8,b=4,c=4,d=4"), PartitionSpec::parse("a+c,-,d"));
const Shape kShape{1000, 64, 30};

void BM_box_of_one_device(benchmark::State& state) {
  std::int64_t device = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(kSharding.box(device, kShape));
    device = (device + 77) % 512;
  }
}
BENCHMARK(BM_box_of_one_device);

/// Boxes of all devices, of which one is taken.
void BM_box_of_one_device_by_listing_all(benchmark::State& state) {
  std::int64_t device = 0;
  for (auto _ : state) {
    std::vector<Box> boxes;
    for (std::int64_t a = 0; a < 8; ++a) {
      for (std::int64_t b = 0; b < 4; ++b) {
        for (std::int64_t c = 0; c < 4; ++c) {
          for (std::int64_t d = 0; d < 4; ++d) {
            const std::int64_t row = (a * 4 + c) * 32, column = d * 8;
            boxes.emplace_back(Index{std::min<std::int64_t>(row, 1000), 0, column},
                               Index{std::min<std::int64_t>(row + 32, 1000), 64,
                                     std::min<std::int64_t>(column + 8, 30)});
          }
        }
      }
    }
    benchmark::DoNotOptimize(boxes[static_cast<std::size_t>(device)]);
    device = (device + 77) % 512;
  }
}
BENCHMARK(BM_box_of_one_device_by_listing_all);

// 4,096 devices in two dims to 3,072 in three axes, uneven.
const Sharding kFrom(Mesh::parse("64,64"), PartitionSpec::parse("0,1"));
const Sharding kTo(Mesh::parse("16,12,16"), PartitionSpec::parse("0+2,1"));
const Shape kMatrix{10000, 7000};

void BM_reshard_4096_to_3072(benchmark::State& state) {
  std::size_t copies = 0;
  for (auto _ : state) {
    const TransferPlan plan = TransferPlan::reshard(kFrom, kTo, kMatrix);
    copies = plan.copies().size();
    benchmark::DoNotOptimize(plan.copies().data());
  }
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_reshard_4096_to_3072)->Unit(benchmark::kMillisecond);

void BM_reshard_4096_to_3072_by_all_pairs(benchmark::State& state) {
  std::size_t copies = 0;
  for (auto _ : state) {
    std::vector<Copy> found;
    for (std::int64_t target = 0; target < kTo.mesh().size(); ++target) {
      const Box wanted = kTo.box_at(target, kMatrix);
      for (std::int64_t source = 0; source < kFrom.mesh().size(); ++source) {
        const Box both = intersect(kFrom.box_at(source, kMatrix), wanted);
        if (!both.empty()) found.push_back({source, target, both});
      }
    }
    copies = found.size();
    benchmark::DoNotOptimize(found.data());
  }
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_reshard_4096_to_3072_by_all_pairs)->Unit(benchmark::kMillisecond);

/// 100,000 boxes of 16 x 16 elements: rows, columns or a grid of them.
std::vector<Box> tiles(std::int64_t rows, std::int64_t columns) {
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      boxes.emplace_back(Index{16 * i, 16 * j}, Index{16 * i + 16, 16 * j + 16});
    }
  }
  return boxes;
}

void BM_check_cover_100k(benchmark::State& state) {
  const std::int64_t rows = state.range(0), columns = 100000 / rows;
  const std::vector<Box> boxes = tiles(rows, columns);
  for (auto _ : state) check_cover(boxes, {16 * rows, 16 * columns});
}
BENCHMARK(BM_check_cover_100k)->Arg(1)->Arg(250)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_check_cover_100k_by_counting(benchmark::State& state) {
  const std::int64_t rows = state.range(0), columns = 100000 / rows;
  const std::vector<Box> boxes = tiles(rows, columns);
  for (auto _ : state) {
    std::vector<std::uint8_t> times(static_cast<std::size_t>(16 * rows * 16 * columns), 0);
    for (const Box& box : boxes) {
      for (std::int64_t i = box.begin(0); i < box.end(0); ++i) {
        for (std::int64_t j = box.begin(1); j < box.end(1); ++j) {
          ++times[static_cast<std::size_t>(i * 16 * columns + j)];
        }
      }
    }
    bool once = true;
    for (const std::uint8_t n : times) once &= n == 1;
    benchmark::DoNotOptimize(once);
  }
}
BENCHMARK(BM_check_cover_100k_by_counting)->Arg(250)->Unit(benchmark::kMillisecond);

/// A plan between pieces that are not known to be grids: 100,000 tiles to 100,000 shifted ones.
void BM_plan_of_100k_pieces(benchmark::State& state) {
  std::vector<Piece> sources, targets;
  for (const Box& box : tiles(250, 400)) sources.push_back({0, box});
  for (const Box& box : tiles(250, 400)) {
    const Index end{std::min<std::int64_t>(box.end(0) + 8, 4000),
                    std::min<std::int64_t>(box.end(1) + 8, 6400)};
    targets.push_back({1, Box({box.begin(0) + 8, box.begin(1) + 8}, end)});
  }
  for (auto _ : state) benchmark::DoNotOptimize(TransferPlan(sources, targets));
}
BENCHMARK(BM_plan_of_100k_pieces)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardwise
