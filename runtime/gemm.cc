#include "shardwise/runtime/gemm.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::string describe(const ConstMatrix& m) {
  return fmt::format("[{}, {}]{}", m.rows, m.cols, m.transpose == Transpose::yes ? "^T" : "");
}

std::int64_t op_rows(const ConstMatrix& m) {
  return m.transpose == Transpose::yes ? m.cols : m.rows;
}

std::int64_t op_cols(const ConstMatrix& m) {
  return m.transpose == Transpose::yes ? m.rows : m.cols;
}

void check_shapes(const ConstMatrix& a, const ConstMatrix& b, const Matrix& out) {
  const auto problem = [&](std::string_view what) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("gemm: {} times {} into [{}, {}]: {}", describe(a), describe(b),
                            out.rows, out.cols, what));
  };
  const auto [low, high] = std::minmax({a.rows, a.cols, b.rows, b.cols, out.rows, out.cols});
  if (low < 0) problem("negative extent");
  if (high > std::numeric_limits<blasint>::max()) problem("extent beyond what BLAS counts to");
  if (op_cols(a) != op_rows(b)) problem("the inner extents differ");
  if (op_rows(a) != out.rows || op_cols(b) != out.cols) problem("the result has another shape");
}

CBLAS_TRANSPOSE to_cblas(Transpose transpose) {
  return transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}

}  // namespace

void gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& out, float beta) {
  check_shapes(a, b, out);
  if (out.rows == 0 || out.cols == 0) return;
  const std::int64_t inner = op_cols(a);
  if (inner == 0) {
    // BLAS may return early here without applying beta.
    for (float* x = out.data; x != out.data + out.rows * out.cols; ++x) {
      *x = beta == 0 ? 0 : beta * *x;
    }
    return;
  }
  [[maybe_unused]] static const bool single_threaded = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  const auto n = [](std::int64_t extent) { return static_cast<blasint>(extent); };
  cblas_sgemm(CblasRowMajor, to_cblas(a.transpose), to_cblas(b.transpose), n(out.rows), n(out.cols),
              n(inner), 1, a.data, n(a.cols), b.data, n(b.cols), beta, out.data, n(out.cols));
}

}  // namespace shardwise
