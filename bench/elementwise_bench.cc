// How much does fusing save, and how much does the tile interpreter cost against hand-written
// loops?
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "shardwise/runtime/kernels/detail/elementwise.h"

namespace shardwise {
namespace {

/// For vectors as wide as the kernels', if the machine has them.
__attribute__((target_clones("avx512f", "avx2", "default"))) void add_arrays(const float* a,
                                                                             const float* b,
                                                                             float* out,
                                                                             std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

using Floats = std::vector<float>;
using Operand = ElementwiseKernel::Operand;

const std::byte* data(const Floats& floats) {
  return reinterpret_cast<const std::byte*>(floats.data());
}
std::byte* data(Floats& floats) { return reinterpret_cast<std::byte*>(floats.data()); }

Floats numbers(std::int64_t count) {
  Floats floats(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = static_cast<float>(i % 1000) * 0.01f - 5;
  }
  return floats;
}

/// Items are elements; bytes those of `arrays` arrays of them.
void set_counts(benchmark::State& state, std::int64_t count, std::int64_t arrays) {
  state.SetItemsProcessed(state.iterations() * count);
  state.SetBytesProcessed(state.iterations() * count * arrays * 4);
}

// gelu, by tanh: x / 2 (1 + tanh(c (x + d x^3))), nine operations on [2048, 512].
constexpr std::int64_t kRows = 2048, kCols = 512;

std::vector<ElementwiseInstruction> gelu() {
  constexpr DType kF32 = DType::f32;
  return {{Op::constant, kF32, {}, 0.044715},
          {Op::constant, kF32, {}, 0.7978845608},
          {Op::constant, kF32, {}, 1},
          {Op::constant, kF32, {}, 0.5},
          {Op::mul, kF32, {0, 0}},
          {Op::mul, kF32, {5, 0}},
          {Op::mul, kF32, {6, 1}},
          {Op::add, kF32, {7, 0}},
          {Op::mul, kF32, {8, 2}},
          {Op::tanh, kF32, {9}},
          {Op::add, kF32, {10, 3}},
          {Op::mul, kF32, {11, 0}},
          {Op::mul, kF32, {12, 4}}};
}

void bm_gelu_fused(benchmark::State& state) {
  const Floats x = numbers(kRows * kCols);
  Floats y(x.size());
  const ElementwiseKernel kernel({{DType::f32}}, gelu(), {13});
  const Operand operands[] = {{data(x), {kCols, 1}}};
  std::byte* const to[] = {data(y)};
  for (auto _ : state) {
    kernel.run({kRows, kCols}, operands, to);
    benchmark::ClobberMemory();
  }
  set_counts(state, kRows * kCols, 2);
}
BENCHMARK(bm_gelu_fused);

/// The same vector code, but each operation makes a pass over memory.
void bm_gelu_one_kernel_per_op(benchmark::State& state) {
  const Floats x = numbers(kRows * kCols);
  std::vector<Floats> values(14, Floats(x.size()));
  const auto instructions = gelu();
  std::vector<ElementwiseKernel> kernels;
  for (ElementwiseInstruction instruction : instructions) {
    std::vector<ElementwiseInput> inputs(instruction.operands.size(), {DType::f32});
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      instruction.operands[k] = static_cast<std::int32_t>(k);
    }
    const auto result = static_cast<std::int32_t>(inputs.size());
    kernels.push_back({inputs, {instruction}, {result}});
  }
  const std::byte* const from_x = data(x);
  for (auto _ : state) {
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      std::vector<Operand> operands;
      for (const std::int32_t k : instructions[i].operands) {
        const bool constant = 1 <= k && k <= 4;
        const std::byte* const from = k == 0 ? from_x : data(values[static_cast<std::size_t>(k)]);
        operands.push_back({from, {constant ? 0 : kCols, constant ? 0 : 1}});
      }
      const bool constant = operands.empty();
      std::byte* const to[] = {data(values[i + 1])};
      kernels[i].run({constant ? 1 : kRows, constant ? 1 : kCols}, operands, to);
    }
    benchmark::ClobberMemory();
  }
  set_counts(state, kRows * kCols, 2);
}
BENCHMARK(bm_gelu_one_kernel_per_op);

/// The plain way.
void bm_gelu_by_vectors(benchmark::State& state) {
  const Floats x = numbers(kRows * kCols);
  Floats y(x.size());
  const auto pass = [&](const auto& op) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = op(x[i], y[i]);
    benchmark::ClobberMemory();
  };
  for (auto _ : state) {
    pass([](float a, float) { return a * a; });
    pass([](float a, float b) { return b * a; });
    pass([](float, float b) { return b * 0.044715f; });
    pass([](float a, float b) { return b + a; });
    pass([](float, float b) { return b * 0.7978845608f; });
    pass([](float, float b) { return std::tanh(b); });
    pass([](float, float b) { return b + 1; });
    pass([](float a, float b) { return b * a; });
    pass([](float, float b) { return b * 0.5f; });
  }
  set_counts(state, kRows * kCols, 2);
}
BENCHMARK(bm_gelu_by_vectors);

// 2^6: the fixed cost of a run; 2^12: in the first-level cache; 2^16: the second; 2^22: memory.
void sizes(benchmark::internal::Benchmark* b) {
  b->Arg(1 << 6)->Arg(1 << 12)->Arg(1 << 16)->Arg(1 << 22);
}

void bm_add(benchmark::State& state) {
  const Floats a = numbers(state.range(0)), b = a;
  Floats out(a.size());
  const ElementwiseKernel kernel({{DType::f32}, {DType::f32}}, {{Op::add, DType::f32, {0, 1}}},
                                 {2});
  const Operand operands[] = {{data(a), {1}}, {data(b), {1}}};
  std::byte* const to[] = {data(out)};
  for (auto _ : state) {
    kernel.run({state.range(0)}, operands, to);
    benchmark::ClobberMemory();
  }
  set_counts(state, state.range(0), 3);
}
BENCHMARK(bm_add)->Apply(sizes);

void bm_add_by_hand(benchmark::State& state) {
  const Floats a = numbers(state.range(0)), b = a;
  Floats out(a.size());
  for (auto _ : state) {
    add_arrays(a.data(), b.data(), out.data(), a.size());
    benchmark::ClobberMemory();
  }
  set_counts(state, state.range(0), 3);
}
BENCHMARK(bm_add_by_hand)->Apply(sizes);

/// Rows so short that several share a tile.
void bm_add_bias(benchmark::State& state) {
  const std::int64_t cols = state.range(0), rows = (1 << 16) / cols;
  const Floats x = numbers(rows * cols), bias = numbers(cols);
  Floats out(x.size());
  const ElementwiseKernel kernel({{DType::f32}, {DType::f32}}, {{Op::add, DType::f32, {0, 1}}},
                                 {2});
  const Operand operands[] = {{data(x), {cols, 1}}, {data(bias), {0, 1}}};
  std::byte* const to[] = {data(out)};
  for (auto _ : state) {
    kernel.run({rows, cols}, operands, to);
    benchmark::ClobberMemory();
  }
  set_counts(state, rows * cols, 2);
}
BENCHMARK(bm_add_bias)->Arg(8)->Arg(32)->Arg(512)->Arg(4096);

/// One factor for each row.
void bm_scale_rows(benchmark::State& state) {
  const std::int64_t cols = state.range(0), rows = (1 << 16) / cols;
  const Floats x = numbers(rows * cols), factors = numbers(rows);
  Floats out(x.size());
  const ElementwiseKernel kernel({{DType::f32}, {DType::f32}}, {{Op::mul, DType::f32, {0, 1}}},
                                 {2});
  const Operand operands[] = {{data(x), {cols, 1}}, {data(factors), {1, 0}}};
  std::byte* const to[] = {data(out)};
  for (auto _ : state) {
    kernel.run({rows, cols}, operands, to);
    benchmark::ClobberMemory();
  }
  set_counts(state, rows * cols, 2);
}
BENCHMARK(bm_scale_rows)->Arg(8)->Arg(32)->Arg(512)->Arg(4096);

template <Op kOp, DType kDType>
void bm_unary(benchmark::State& state) {
  constexpr std::int64_t kCount = 1 << 16;
  const Floats numbers_f32 = numbers(kCount);
  Floats x(2 * kCount), out(2 * kCount);  // room for any dtype
  convert(DType::f32, data(numbers_f32), kDType, data(x), kCount);
  const ElementwiseKernel kernel({{kDType}}, {{kOp, kDType, {0}}}, {1});
  const Operand operands[] = {{data(x), {1}}};
  std::byte* const to[] = {data(out)};
  for (auto _ : state) {
    kernel.run({kCount}, operands, to);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kCount);
}
BENCHMARK(bm_unary<Op::exp, DType::f32>);
BENCHMARK(bm_unary<Op::log, DType::f32>);
BENCHMARK(bm_unary<Op::tanh, DType::f32>);
BENCHMARK(bm_unary<Op::logistic, DType::f32>);
BENCHMARK(bm_unary<Op::erf, DType::f32>);
BENCHMARK(bm_unary<Op::sin, DType::f32>);
BENCHMARK(bm_unary<Op::rsqrt, DType::f32>);
BENCHMARK(bm_unary<Op::neg, DType::bf16>);
BENCHMARK(bm_unary<Op::exp, DType::bf16>);
BENCHMARK(bm_unary<Op::exp, DType::f16>);
BENCHMARK(bm_unary<Op::neg, DType::i32>);
BENCHMARK(bm_unary<Op::exp, DType::f64>);

}  // namespace
}  // namespace shardwise
