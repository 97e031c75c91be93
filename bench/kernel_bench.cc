// How much do the kernels of programs cost against a plain way to do the same? Products of a GPT's
// layers and convolutions of a ResNet's run against OpenBLAS on matrices with the same number of
// multiplications, moves and reductions against memcpy.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <cstring>
#include <string>
#include <vector>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/kernels/detail/convolution.h"
#include "shardwise/runtime/kernels/detail/einsum.h"
#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/kernels/detail/reduce_dims.h"

namespace shardwise {
namespace {

// Runs before main() and other threads; the figures are those of a program that calls it.
[[maybe_unused]] const bool kChosen = choose_blas_kernels();

/// A whole tensor.
struct BenchTensor {
  explicit BenchTensor(const Shape& shape, DType dtype = DType::f32)
      : view{nullptr, dtype, Box::whole(shape)}, memory(num_bytes(shape, size_bytes(dtype))) {
    view.data = memory.data();
    fill(1, view);
  }

  operator ConstShardView() const { return {view.data, view.dtype, view.box}; }
  float* floats() { return reinterpret_cast<float*>(view.data); }
  std::int64_t size() const { return view.box.num_elements(); }

  ShardView view;
  std::vector<std::byte> memory;
};

/// Extents of a small GPT: batch, positions, heads, width of a head, width, width of the layer
/// between.
std::int64_t extent_of(char letter) {
  switch (letter) {
    case 'b':
      return 2;
    case 'h':
      return 4;
    case 'e':
      return 32;
    case 'f':
      return 512;
    case 'x':
      return 8;
    default:
      return 128;  // t, s, d
  }
}

Shape shape_of(const std::string& letters) {
  Shape shape;
  for (const char letter : letters) shape.push_back(extent_of(letter));
  return shape;
}

void set_products(benchmark::State& state, std::int64_t products) {
  state.counters["GFLOPS"] = benchmark::Counter(2e-9 * static_cast<double>(products),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void bm_einsum(benchmark::State& state, const char* text) {
  const Equation equation = Equation::parse(text);
  const BenchTensor lhs(shape_of(equation.lhs)), rhs(shape_of(equation.rhs));
  BenchTensor out(shape_of(equation.result));
  for (auto _ : state) {
    einsum(equation, lhs, rhs, out.view);
    benchmark::ClobberMemory();
  }
  std::int64_t products = out.size();
  for (const char letter : equation.lhs) {
    if (equation.result.find(letter) == std::string::npos) products *= extent_of(letter);
  }
  set_products(state, products);
}

/// `times` products of [m, k] and [k, n], one after another in memory.
void bm_sgemm(benchmark::State& state, int times, int m, int n, int k) {
  openblas_set_num_threads(1);
  BenchTensor lhs({times, m, k}), rhs({times, k, n}), out({times, m, n});
  for (auto _ : state) {
    for (int i = 0; i < times; ++i) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, lhs.floats() + i * m * k,
                  k, rhs.floats() + i * k * n, n, 0, out.floats() + i * m * n, n);
    }
    benchmark::ClobberMemory();
  }
  set_products(state, std::int64_t{times} * m * n * k);
}

BENCHMARK_CAPTURE(bm_sgemm, linear, 1, 256, 512, 128);
BENCHMARK_CAPTURE(bm_einsum, linear, "btd,df->btf");
BENCHMARK_CAPTURE(bm_sgemm, linear_gradient, 1, 256, 128, 512);
BENCHMARK_CAPTURE(bm_einsum, linear_gradient, "btf,df->btd");
BENCHMARK_CAPTURE(bm_sgemm, weight_gradient, 1, 128, 512, 256);
BENCHMARK_CAPTURE(bm_einsum, weight_gradient, "btd,btf->df");
BENCHMARK_CAPTURE(bm_sgemm, scores, 8, 128, 128, 32);
BENCHMARK_CAPTURE(bm_einsum, scores, "bthe,bshe->bhts");
BENCHMARK_CAPTURE(bm_sgemm, attention, 8, 128, 32, 128);
BENCHMARK_CAPTURE(bm_einsum, attention, "bhts,bshe->bthe");
BENCHMARK_CAPTURE(bm_einsum, attention_gradient, "bhts,bthe->bshe");
BENCHMARK_CAPTURE(bm_sgemm, matrix_vector, 1, 512, 1, 512);
BENCHMARK_CAPTURE(bm_einsum, matrix_vector, "fd,d->f");
BENCHMARK_CAPTURE(bm_einsum, vector_matrix, "f,fd->d");
BENCHMARK_CAPTURE(bm_einsum, rows_dot_rows, "td,td->t");
BENCHMARK_CAPTURE(bm_sgemm, small, 1, 8, 4, 2);
BENCHMARK_CAPTURE(bm_einsum, small, "xb,bh->xh");
BENCHMARK_CAPTURE(bm_einsum, packed, "dfe,fet->td");
BENCHMARK_CAPTURE(bm_einsum, packed_batch, "dtb,fdb->tfb");
BENCHMARK_CAPTURE(bm_einsum, packed_sum, "hfd,dfs->hs");

/// A convolution of a ResNet: an image of `extent` squared with `features`, and a kernel of `taps`
/// squared; NCHW, or NHWC with the kernel as HWIO.
void bm_convolution(benchmark::State& state, std::int64_t features, std::int64_t made,
                    std::int64_t extent, std::int64_t taps, std::int64_t stride, bool is_last) {
  constexpr std::int64_t kImages = 4;
  const std::int64_t pad = taps / 2, places = (extent + 2 * pad - taps) / stride + 1;
  const Dims order = is_last ? Dims{0, 3, 1, 2} : Dims{0, 1, 2, 3};
  const ConvolutionAttributes a{.lhs = order,
                                .rhs = is_last ? Dims{3, 2, 0, 1} : order,
                                .out = order,
                                .stride = {stride, stride},
                                .low = {pad, pad},
                                .high = {pad, pad},
                                .lhs_dilation = {1, 1},
                                .rhs_dilation = {1, 1}};
  const Shape lhs =
      is_last ? Shape{kImages, extent, extent, features} : Shape{kImages, features, extent, extent};
  const Shape rhs = is_last ? Shape{taps, taps, features, made} : Shape{made, features, taps, taps};
  const Shape out =
      is_last ? Shape{kImages, places, places, made} : Shape{kImages, made, places, places};
  const BenchTensor x(lhs), w(rhs);
  BenchTensor y(out);
  for (auto _ : state) {
    convolution(a, {lhs, rhs, out}, x, w, y.view);
    benchmark::ClobberMemory();
  }
  set_products(state, y.size() * features * taps * taps);
}

BENCHMARK_CAPTURE(bm_sgemm, resnet_3x3_of_64_at_56, 4, 64, 56 * 56, 64 * 9);
BENCHMARK_CAPTURE(bm_convolution, resnet_3x3_of_64_at_56, 64, 64, 56, 3, 1, false);
BENCHMARK_CAPTURE(bm_convolution, resnet_3x3_of_64_at_56_nhwc, 64, 64, 56, 3, 1, true);
BENCHMARK_CAPTURE(bm_sgemm, resnet_3x3_of_256_at_14, 4, 256, 14 * 14, 256 * 9);
BENCHMARK_CAPTURE(bm_convolution, resnet_3x3_of_256_at_14, 256, 256, 14, 3, 1, false);
BENCHMARK_CAPTURE(bm_convolution, resnet_3x3_of_256_at_14_nhwc, 256, 256, 14, 3, 1, true);
BENCHMARK_CAPTURE(bm_convolution, resnet_3x3_of_128_stride_2, 128, 128, 56, 3, 2, false);
BENCHMARK_CAPTURE(bm_sgemm, resnet_1x1_of_64_at_56, 4, 256, 56 * 56, 64);
BENCHMARK_CAPTURE(bm_convolution, resnet_1x1_of_64_at_56, 64, 256, 56, 1, 1, false);
BENCHMARK_CAPTURE(bm_convolution, resnet_1x1_of_64_at_56_nhwc, 64, 256, 56, 1, 1, true);
BENCHMARK_CAPTURE(bm_convolution, resnet_1x1_of_1024_at_14, 1024, 256, 14, 1, 1, false);

void set_bytes(benchmark::State& state, std::int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

constexpr std::int64_t kRows = 2048, kCols = 512;
constexpr std::int64_t kMatrixBytes = kRows * kCols * 4;

void bm_memcpy_matrix(benchmark::State& state) {
  BenchTensor in({kRows, kCols}), out({kRows, kCols});
  for (auto _ : state) {
    std::memcpy(out.view.data, in.view.data, as_size(kMatrixBytes));
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_memcpy_matrix);

void bm_reduce(benchmark::State& state, Reduction reduction, std::size_t dim, DType dtype) {
  const BenchTensor in({kRows, kCols}, dtype);
  BenchTensor out(dim == 0 ? Shape{kCols} : Shape{kRows}, dtype);
  for (auto _ : state) {
    reduce_dims(reduction, in, {static_cast<std::int64_t>(dim)}, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes * static_cast<std::int64_t>(size_bytes(dtype)) / 4);
}
BENCHMARK_CAPTURE(bm_reduce, sum_of_columns, Reduction::sum, 0, DType::f32);
BENCHMARK_CAPTURE(bm_reduce, sum_of_rows, Reduction::sum, 1, DType::f32);
BENCHMARK_CAPTURE(bm_reduce, max_of_columns, Reduction::max, 0, DType::f32);
BENCHMARK_CAPTURE(bm_reduce, max_of_rows, Reduction::max, 1, DType::f32);
BENCHMARK_CAPTURE(bm_reduce, sum_of_bf16_rows, Reduction::sum, 1, DType::bf16);

void bm_argmax(benchmark::State& state) {
  const BenchTensor in({kRows, kCols});
  BenchTensor largest({kRows}), out({kRows}, DType::i32);
  for (auto _ : state) {
    reduce_dims(Reduction::max, in, {1}, largest.view);
    index_of(in, largest, 1, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_argmax);

void bm_transpose(benchmark::State& state) {
  const BenchTensor in({kRows, kCols});
  BenchTensor out({kCols, kRows});
  for (auto _ : state) {
    transpose(in, {1, 0}, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_transpose);

/// [batch, positions, heads, width] to [batch, heads, positions, width].
void bm_transpose_heads(benchmark::State& state) {
  const BenchTensor in({64, 128, 4, 32});
  BenchTensor out({64, 4, 128, 32});
  for (auto _ : state) {
    transpose(in, {0, 2, 1, 3}, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_transpose_heads);

void bm_broadcast_rows(benchmark::State& state) {
  const BenchTensor in({kCols});
  BenchTensor out({kRows, kCols});
  for (auto _ : state) {
    broadcast(in, {1}, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_broadcast_rows);

/// Embeddings of 2048 tokens, 256 different ones.
BenchTensor bench_ids() {
  BenchTensor ids({kRows}, DType::i32);
  for (std::int64_t i = 0; i < kRows; ++i) {
    reinterpret_cast<std::int32_t*>(ids.view.data)[i] = static_cast<std::int32_t>(i * 37 % 256);
  }
  return ids;
}

void bm_take(benchmark::State& state) {
  const BenchTensor ids = bench_ids(), table({256, kCols});
  BenchTensor out({kRows, kCols});
  for (auto _ : state) {
    take(table, ids, 0, 256, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_take);

void bm_scatter_add(benchmark::State& state) {
  const BenchTensor ids = bench_ids(), updates({kRows, kCols});
  BenchTensor table({256, kCols});
  for (auto _ : state) {
    scatter_add(ids, updates, 0, 256, table.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_scatter_add);

void bm_random_bits(benchmark::State& state) {
  BenchTensor out({kRows, kCols}, DType::u32);
  for (auto _ : state) {
    random_bits(42, {kRows, kCols}, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, kMatrixBytes);
}
BENCHMARK(bm_random_bits);

void bm_argsort(benchmark::State& state) {
  BenchTensor in({64, 1024}, DType::u32), out({64, 1024}, DType::i32);
  random_bits(42, {64, 1024}, in.view);
  for (auto _ : state) {
    argsort(in, 1, SortOrder::descending, out.view);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * in.size());
}
BENCHMARK(bm_argsort);

}  // namespace
}  // namespace shardwise
