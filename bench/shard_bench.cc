// How much time and memory do the queries of shard/ take, against a plain loop over the list of
// tiles? Counters are per call: heap blocks, bytes, copies.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/shard_boxes.h"
#include "shardwise/shard/sharding.h"

static std::atomic<std::size_t> g_blocks = 0, g_bytes = 0;

[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++g_blocks;
  g_bytes += bytes;
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace shardwise {
namespace {

/// Runs the body repeatedly, and counts its heap allocations.
template <class Body>
void measure(benchmark::State& state, Body&& body) {
  const std::size_t blocks = g_blocks, bytes = g_bytes;
  for (auto _ : state) body();
  const auto per_call = [&](std::size_t all) {
    return static_cast<double>(all) / static_cast<double>(state.iterations());
  };
  state.counters["blocks"] = per_call(g_blocks - blocks);
  state.counters["heap_bytes"] = per_call(g_bytes - bytes);
}

// 512 devices, one dim cut by two axes, one axis left over.
const Sharding kSharding(Mesh::parse("a=8,b=4,c=4,d=4"), PartitionSpec::parse("a+c,-,d"));
const Shape kShape{1000, 64, 30};

void BM_box_of_one_device(benchmark::State& state) {
  std::int64_t device = 0;
  measure(state, [&] {
    benchmark::DoNotOptimize(kSharding.box(device, kShape));
    device = (device + 77) % 512;
  });
}
BENCHMARK(BM_box_of_one_device);

/// Makes the boxes of all devices and takes one.
void BM_box_of_one_device_by_listing_all(benchmark::State& state) {
  std::int64_t device = 0;
  measure(state, [&] {
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
  });
}
BENCHMARK(BM_box_of_one_device_by_listing_all);

// 1,048,576 devices in an order that is no list.
Sharding million() {
  return Sharding(Mesh::parse("x=128,y=64,z=128@[64,128,128]T(1,2,0)"),
                  PartitionSpec::parse("x,y,z"));
}
const Shape kCube{100000, 5000, 7000};

void BM_boxes_of_1m_devices(benchmark::State& state) {
  const Sharding sharding = million();
  measure(state, [&] {
    std::int64_t sum = 0;
    for (const Box& box : ShardBoxes(sharding, kCube)) sum += box.begin(2);
    benchmark::DoNotOptimize(sum);
  });
  state.counters["each"] = benchmark::Counter(
      static_cast<double>(sharding.mesh().size()),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_boxes_of_1m_devices)->Unit(benchmark::kMillisecond);

void BM_boxes_of_1m_devices_one_by_one(benchmark::State& state) {
  const Sharding sharding = million();
  measure(state, [&] {
    std::int64_t sum = 0;
    for (std::int64_t p = 0; p < sharding.mesh().size(); ++p) {
      sum += sharding.box_at(p, kCube).begin(2);
    }
    benchmark::DoNotOptimize(sum);
  });
}
BENCHMARK(BM_boxes_of_1m_devices_one_by_one)->Unit(benchmark::kMillisecond);

void BM_construct_1m_devices(benchmark::State& state) {
  const PartitionSpec spec = PartitionSpec::parse("x,y,z");
  const std::vector<Axis> axes = {{"x", 128}, {"y", 64}, {"z", 128}};
  measure(state, [&] { benchmark::DoNotOptimize(Sharding(Mesh(axes), spec)); });
}
BENCHMARK(BM_construct_1m_devices);

/// The device order as a list, as the frameworks keep it.
void BM_construct_1m_devices_by_list(benchmark::State& state) {
  measure(state, [&] {
    std::vector<DeviceId> ids;
    for (DeviceId id = 0; id < 1048576; ++id) ids.push_back(id);
    benchmark::DoNotOptimize(ids.data());
  });
}
BENCHMARK(BM_construct_1m_devices_by_list);

void BM_equality_of_1m_devices(benchmark::State& state) {
  const Sharding a = million(), b = million();
  measure(state, [&] { benchmark::DoNotOptimize(a == b); });
}
BENCHMARK(BM_equality_of_1m_devices);

void BM_equality_of_1m_devices_one_by_one(benchmark::State& state) {
  const Sharding a = million(), b = million();
  measure(state, [&] {
    bool same = true;
    for (std::int64_t p = 0; p < a.mesh().size() && same; ++p) {
      same = a.mesh().device_at(p) == b.mesh().device_at(p);
      for (std::size_t dim = 0; dim < a.rank(); ++dim) {
        same &= a.tile_index(p, dim) == b.tile_index(p, dim);
      }
    }
    benchmark::DoNotOptimize(same);
  });
}
BENCHMARK(BM_equality_of_1m_devices_one_by_one);

void BM_hash(benchmark::State& state) {
  const Sharding sharding =
      state.range(0) == 64 ? Sharding(Mesh::parse("x=4,y=4,z=4"), PartitionSpec::parse("x,y,z"))
                           : million();
  measure(state, [&] { benchmark::DoNotOptimize(std::hash<Sharding>()(sharding)); });
}
BENCHMARK(BM_hash)->Arg(64)->Arg(1048576);

/// Two dims in two axes to two dims in three axes; `ways` 1 means 4,096 to 3,072 devices, 4 means
/// 65,536 to 49,152. Nothing divides evenly.
struct Resharding {
  explicit Resharding(std::int64_t ways)
      : from(Mesh({{"x", 64 * ways}, {"y", 64 * ways}}), PartitionSpec::parse("x,y")),
        to(Mesh({{"x", 16 * ways}, {"y", 12}, {"z", 16 * ways}}), PartitionSpec::parse("x+z,y")) {}

  Sharding from, to;
  Shape shape{100003, 70001};
};

void BM_plan_to_three_quarters(benchmark::State& state) {
  const Resharding resharding(state.range(0) == 65536 ? 4 : 1);
  std::size_t copies = 0;
  measure(state, [&] {
    copies =
        TransferPlan::reshard(resharding.from, resharding.to, resharding.shape).copies().size();
  });
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_plan_to_three_quarters)->Arg(4096)->Arg(65536)->Unit(benchmark::kMillisecond);

/// The plan, and a look at the box of every copy.
void BM_plan_to_three_quarters_and_walk(benchmark::State& state) {
  const Resharding resharding(state.range(0) == 65536 ? 4 : 1);
  measure(state, [&] {
    benchmark::DoNotOptimize(
        TransferPlan::reshard(resharding.from, resharding.to, resharding.shape).moved_elements());
  });
}
BENCHMARK(BM_plan_to_three_quarters_and_walk)->Arg(4096)->Arg(65536)->Unit(benchmark::kMillisecond);

void BM_plan_to_three_quarters_by_all_pairs(benchmark::State& state) {
  const Resharding resharding(1);
  std::size_t copies = 0;
  measure(state, [&] {
    std::vector<Copy> found;
    for (std::int64_t target = 0; target < resharding.to.mesh().size(); ++target) {
      const Box wanted = resharding.to.box_at(target, resharding.shape);
      for (std::int64_t source = 0; source < resharding.from.mesh().size(); ++source) {
        const Box both = intersect(resharding.from.box_at(source, resharding.shape), wanted);
        if (!both.empty()) found.push_back({source, target, both});
      }
    }
    copies = found.size();
  });
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_plan_to_three_quarters_by_all_pairs)->Arg(4096)->Unit(benchmark::kMillisecond);

/// 65,536 devices, with 16 replicas of each box, to the same devices cut differently.
void BM_plan_with_replicas(benchmark::State& state) {
  const Sharding from(Mesh::parse("64,64,16"), PartitionSpec::parse("0,1"));
  const Sharding to(Mesh::parse("48,32,32"), PartitionSpec::parse("2,0"));
  std::size_t copies = 0;
  measure(state, [&] {
    copies = TransferPlan::reshard(from, to, {100003, 70001}).copies().size();
  });
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_plan_with_replicas)->Unit(benchmark::kMillisecond);

/// Cuts space in two at random, so that no faces match.
void cut(const Box& box, std::int64_t pieces, std::mt19937_64& random, std::vector<Box>& boxes) {
  if (pieces == 1) return boxes.push_back(box);
  std::size_t dim = 0;
  for (std::size_t d = 1; d < box.rank(); ++d) {
    if (box.extent(d) > box.extent(dim)) dim = d;
  }
  const std::int64_t quarter = box.extent(dim) / 4;
  const std::int64_t at =
      box.begin(dim) + quarter +
      static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * quarter + 1));
  Box low = box, high = box;
  low.set(dim, box.begin(dim), at);
  high.set(dim, at, box.end(dim));
  cut(low, pieces / 2, random, boxes);
  cut(high, pieces - pieces / 2, random, boxes);
}

std::vector<Box> irregular(std::size_t rank, std::int64_t pieces, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<Box> boxes;
  boxes.reserve(static_cast<std::size_t>(pieces));
  cut(Box::whole(Shape::filled(rank, rank == 2 ? 4000000 : 100000)), pieces, random, boxes);
  return boxes;
}

std::vector<Piece> at_place(DeviceId place, const std::vector<Box>& boxes) {
  std::vector<Piece> pieces;
  pieces.reserve(boxes.size());
  for (const Box& box : boxes) pieces.push_back({place, box});
  return pieces;
}

/// Half of the pieces are sources, half are targets, and they have no cuts in common.
void BM_plan_of_irregular_pieces(benchmark::State& state) {
  const std::int64_t half = state.range(0) / 2;
  const auto sources = at_place(0, irregular(2, half, 1)),
             targets = at_place(1, irregular(2, half, 2));
  std::size_t copies = 0;
  measure(state, [&] { copies = TransferPlan(sources, targets).copies().size(); });
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_plan_of_irregular_pieces)
    ->Arg(10000)
    ->Arg(1000000)
    ->Arg(2000000)
    ->Unit(benchmark::kMillisecond);

void BM_plan_of_irregular_pieces_by_all_pairs(benchmark::State& state) {
  const std::int64_t half = state.range(0) / 2;
  const auto sources = irregular(2, half, 1), targets = irregular(2, half, 2);
  std::size_t copies = 0;
  measure(state, [&] {
    copies = 0;
    for (const Box& target : targets) {
      for (const Box& source : sources) copies += intersect(source, target).empty() ? 0 : 1;
    }
  });
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(BM_plan_of_irregular_pieces_by_all_pairs)->Arg(10000)->Unit(benchmark::kMillisecond);

/// Boxes of 16 x 16 elements: rows, columns or a grid of them.
std::vector<Box> tiles(std::int64_t rows, std::int64_t columns) {
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      boxes.emplace_back(Index{16 * i, 16 * j}, Index{16 * i + 16, 16 * j + 16});
    }
  }
  return boxes;
}

/// The same number of pieces, in this number of rows.
void BM_check_cover(benchmark::State& state) {
  const std::int64_t rows = state.range(1), columns = state.range(0) / rows;
  const std::vector<Box> boxes = tiles(rows, columns);
  measure(state, [&] { check_cover(boxes, {16 * rows, 16 * columns}); });
}
BENCHMARK(BM_check_cover)
    ->Args({2048, 1})
    ->Args({2048, 2048})
    ->Args({100000, 250})
    ->Args({1000000, 1})
    ->Args({1000000, 1000})
    ->Args({1000000, 1000000})
    ->Unit(benchmark::kMillisecond);

void BM_check_cover_by_counting(benchmark::State& state) {
  const std::int64_t rows = state.range(1), columns = state.range(0) / rows;
  const std::vector<Box> boxes = tiles(rows, columns);
  measure(state, [&] {
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
  });
}
BENCHMARK(BM_check_cover_by_counting)->Args({100000, 250})->Unit(benchmark::kMillisecond);

/// Pieces whose faces do not match, of this number of dims.
void BM_check_cover_irregular(benchmark::State& state) {
  const auto rank = static_cast<std::size_t>(state.range(1));
  const std::vector<Box> boxes = irregular(rank, state.range(0), 3);
  const Shape shape = Shape::filled(rank, rank == 2 ? 4000000 : 100000);
  measure(state, [&] { check_cover(boxes, shape); });
}
BENCHMARK(BM_check_cover_irregular)
    ->Args({1000000, 2})
    ->Args({1000000, 3})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardwise
