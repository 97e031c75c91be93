// How fast does one thread encode and decode a chunk of 1 MiB of normally distributed floats, with
// our own Huffman coder and with zstd alone, and how much do its two hashes cost, against memcpy?
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/read/chunk_scatter.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

std::vector<std::byte> normal_chunk(DType dtype) {
  std::vector<float> values(kBytes / size_bytes(dtype));
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  for (float& value : values) value = normal(random);
  std::vector<std::byte> chunk(kBytes);
  convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()), dtype, chunk.data(),
          values.size());
  return chunk;
}

std::vector<std::byte> encoded(const std::vector<std::byte>& chunk, DType dtype, Effort effort) {
  std::vector<std::byte> out(chunk.size());
  out.resize(Encoder().encode(chunk, size_bytes(dtype), effort, out));
  return out;
}

void count(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(kBytes) * state.iterations());
}

void copy(benchmark::State& state, DType dtype) {
  const std::vector<std::byte> chunk = normal_chunk(dtype);
  std::vector<std::byte> out(kBytes);
  for (auto _ : state) {
    std::memcpy(out.data(), chunk.data(), kBytes);
    benchmark::ClobberMemory();
  }
  count(state);
}

void hash(benchmark::State& state, DType dtype) {
  const std::vector<std::byte> chunk = normal_chunk(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(hash64(chunk.data(), chunk.size()));
  count(state);
}

void encode(benchmark::State& state, DType dtype, Effort effort) {
  const std::vector<std::byte> chunk = normal_chunk(dtype);
  std::vector<std::byte> out(kBytes);
  Encoder encoder;
  std::size_t size = 0;
  for (auto _ : state) size = encoder.encode(chunk, size_bytes(dtype), effort, out);
  state.counters["ratio"] = static_cast<double>(kBytes) / static_cast<double>(size);
  count(state);
}

void decompress(benchmark::State& state, DType dtype, Effort effort) {
  const std::vector<std::byte> stored = encoded(normal_chunk(dtype), dtype, effort);
  Decoder decoder;
  for (auto _ : state) benchmark::DoNotOptimize(decoder.decompress(stored, kBytes).data());
  count(state);
}

/// Decompressed chunks are unshuffled as in a read, with or without the decoded hash.
void unshuffle_windows(benchmark::State& state, DType dtype, bool hashed) {
  const std::vector<std::byte> stored = encoded(normal_chunk(dtype), dtype, Effort::huffman_only);
  Decoder decoder;
  const auto shuffled = decoder.decompress(stored, kBytes);
  std::vector<std::byte> out(kBytes);
  for (auto _ : state) {
    Hasher64 hasher;
    std::size_t at = 0;
    for_each_unshuffled(shuffled, size_bytes(dtype), [&](std::span<const std::byte> window) {
      if (hashed) hasher.update(window.data(), window.size());
      std::memcpy(out.data() + at, window.data(), window.size());
      at += window.size();
    });
    benchmark::DoNotOptimize(hasher.digest());
    benchmark::ClobberMemory();
  }
  count(state);
}

bool add_benchmarks() {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string type(name(dtype));
    const auto add = [&](const std::string& what, auto run, auto... options) {
      benchmark::RegisterBenchmark((type + "/" + what).c_str(), run, dtype, options...);
    };
    add("memcpy", copy);
    add("hash", hash);
    add("encode/ours", encode, Effort::huffman_only);
    add("encode/zstd_alone", encode, Effort::zstd_huffman);
    add("encode/matches", encode, Effort::matches);
    add("decompress/ours", decompress, Effort::huffman_only);
    add("decompress/zstd_alone", decompress, Effort::zstd_huffman);
    add("unshuffle", unshuffle_windows, false);
    add("unshuffle_and_hash", unshuffle_windows, true);
  }
  return true;
}

const bool kAdded = add_benchmarks();

}  // namespace
}  // namespace shardwise::detail
