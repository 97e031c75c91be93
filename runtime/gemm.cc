#include "shardwise/runtime/gemm.h"

#include <cblas.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// OpenBLAS, loaded for the first product: programs that only plan, or only use arrays, need
/// neither it nor its threads.
struct Blas {
  void* library;
  decltype(&cblas_sgemm) sgemm;
  decltype(&cblas_dgemm) dgemm;
  decltype(&openblas_get_num_threads) num_threads;
  decltype(&openblas_set_num_threads) set_num_threads;
  decltype(&openblas_get_corename) core_name;

  // OpenBLAS's functions that choose kernels on loading, and undo that. They are in no header, and
  // null in builds that lack them.
  void (*choose_kernels)();
  void (*forget_kernels)();
};

Blas load_blas() {
  constexpr const char* kLibrary = "libopenblas.so.0";
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(ErrorCode::unsupported,
                fmt::format("load {}: found {}, needed OpenBLAS (Debian's libopenblas0) for "
                            "products of matrices",
                            kLibrary, dlerror()));
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  Blas blas{};
  blas.library = library;
  const bool has_all = find(blas.sgemm, "cblas_sgemm") && find(blas.dgemm, "cblas_dgemm") &&
                       find(blas.num_threads, "openblas_get_num_threads") &&
                       find(blas.set_num_threads, "openblas_set_num_threads") &&
                       find(blas.core_name, "openblas_get_corename");
  if (!has_all) {
    throw Error(ErrorCode::unsupported,
                fmt::format("load {}: found a library without cblas_sgemm and others, needed "
                            "OpenBLAS",
                            kLibrary));
  }
  find(blas.choose_kernels, "gotoblas_dynamic_init");
  find(blas.forget_kernels, "gotoblas_dynamic_quit");
  return blas;
}

const Blas& blas() {
  static const Blas loaded = load_blas();
  return loaded;
}

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

/// A matrix in the form that BLAS takes.
struct Stored {
  CBLAS_TRANSPOSE transpose;
  blasint leading;  ///< elements from one stored row to the next
};

std::mutex threads_mutex;  // held while the number of threads changes: two calls that set a number
std::atomic<int> calls_on_one_thread = 0;
int threads_before = 1;

template <class T>
Stored stored(const StridedMatrix<T>& m) {
  const auto leading = [](std::int64_t step, std::int64_t row_length) {
    return static_cast<blasint>(std::max(step, row_length));
  };
  if (m.col_step == 1 || m.cols == 1) {
    return {CblasNoTrans, leading(m.row_step, m.cols)};
  }
  assert(m.row_step == 1 || m.rows == 1);
  return {CblasTrans, leading(m.col_step, m.rows)};
}

template <class T>
StridedMatrix<T> transposed(const StridedMatrix<T>& m) {
  return {m.data, m.cols, m.rows, m.col_step, m.row_step};
}

StridedMatrix<const float> strided(const ConstMatrix& m) {
  const StridedMatrix<const float> as_stored{m.data, m.rows, m.cols, m.cols, 1};
  return m.transpose == Transpose::yes ? transposed(as_stored) : as_stored;
}

}  // namespace

namespace detail {

OnCallingThread::OnCallingThread() {
  int others = calls_on_one_thread;
  while (others > 0) {
    if (calls_on_one_thread.compare_exchange_weak(others, others + 1)) return;
  }
  const std::lock_guard lock(threads_mutex);
  if (calls_on_one_thread == 0) {
    threads_before = blas().num_threads();
    if (threads_before != 1) blas().set_num_threads(1);
  }
  ++calls_on_one_thread;
}

OnCallingThread::~OnCallingThread() {
  int all = calls_on_one_thread;
  while (all > 1) {
    if (calls_on_one_thread.compare_exchange_weak(all, all - 1)) return;
  }
  const std::lock_guard lock(threads_mutex);
  if (--calls_on_one_thread == 0 && threads_before != 1) blas().set_num_threads(threads_before);
}

void* lapack_routine(const char* name) {
  static_assert(std::is_same_v<blasint, int>);
  if (void* const found = dlsym(blas().library, name)) return found;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("load {}: found a library without it, needed OpenBLAS with LAPACK", name));
}

}  // namespace detail

bool choose_blas_kernels() {
#if defined(__x86_64__)
  if (blas().choose_kernels == nullptr || blas().forget_kernels == nullptr) return false;
  constexpr const char* kVariable = "OPENBLAS_CORETYPE";
  if (std::getenv(kVariable) != nullptr) return false;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return false;
  }
  const std::string_view kernels = blas().core_name();
  if (kernels != "Haswell" && kernels != "Zen") return false;
  setenv(kVariable, "SKYLAKEX", 1);
  blas().forget_kernels();
  blas().choose_kernels();
  unsetenv(kVariable);
  return true;
#else
  return false;
#endif
}

template <class T>
void gemm(const StridedMatrix<const T>& a, const StridedMatrix<const T>& b,
          const StridedMatrix<T>& out, T beta) {
  assert(a.rows == out.rows && b.cols == out.cols && a.cols == b.rows);
  const auto [out_transpose, out_leading] = stored(out);
  if (out_transpose == CblasTrans) return gemm(transposed(b), transposed(a), transposed(out), beta);
  const detail::OnCallingThread on_calling_thread;
  const auto [a_transpose, a_leading] = stored(a);
  const auto [b_transpose, b_leading] = stored(b);
  const auto n = [](std::int64_t extent) { return static_cast<blasint>(extent); };
  const auto multiply = [] {
    if constexpr (std::is_same_v<T, float>) return blas().sgemm;
    if constexpr (std::is_same_v<T, double>) return blas().dgemm;
  }();
  multiply(CblasRowMajor, a_transpose, b_transpose, n(out.rows), n(out.cols), n(a.cols), 1, a.data,
           a_leading, b.data, b_leading, beta, out.data, out_leading);
}

template void gemm(const StridedMatrix<const float>&, const StridedMatrix<const float>&,
                   const StridedMatrix<float>&, float);
template void gemm(const StridedMatrix<const double>&, const StridedMatrix<const double>&,
                   const StridedMatrix<double>&, double);

void gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& out, float beta) {
  check_shapes(a, b, out);
  if (out.rows == 0 || out.cols == 0) return;
  if (op_cols(a) == 0) {
    // BLAS may return early here without applying beta.
    for (float* x = out.data; x != out.data + out.rows * out.cols; ++x) {
      *x = beta == 0 ? 0 : beta * *x;
    }
    return;
  }
  gemm<float>(strided(a), strided(b), {out.data, out.rows, out.cols, out.cols, 1}, beta);
}

}  // namespace shardwise
