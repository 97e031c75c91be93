#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "shardwise/shard/error.h"

namespace shardwise {

/// A matrix is used as stored, or transposed.
enum class Transpose { no, yes };

/// Row-major matrix [rows, cols], f32; consecutive rows are `cols` elements apart.
struct ConstMatrix {
  const float* data;
  std::int64_t rows, cols;
  Transpose transpose = Transpose::no;
};
struct Matrix {
  float* data;
  std::int64_t rows, cols;
};

/// Call it at the start of a program, before there are other threads. On AMD's processors with
/// AVX-512, OpenBLAS 0.3.21 uses its AVX2 kernels; this call makes it use the AVX-512 ones, which
/// are 1.3 to 1.5 times as fast. The change is for the whole process, and the library never makes
/// it by itself. It sets and removes the environment variable OPENBLAS_CORETYPE, and lets OpenBLAS
/// choose again, so no other thread may call OpenBLAS or read the environment during the call.
/// Returns true if it changed anything; false if OPENBLAS_CORETYPE is already set, which has the
/// same effect without this call.
bool choose_blas_kernels();

/// out = op(a) op(b) + beta out, on the calling thread only, because the devices run in parallel.
/// During the call, OpenBLAS's number of threads, which is process-wide, is 1; it is restored
/// afterwards. Other code that sets it during the call loses its value, and products that other
/// code computes during the call take one thread. If beta is 0, out is not read. Throws
/// invalid_argument if the shapes do not agree. Thread-safe.
void gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& out, float beta = 0);

/// Matrix of T, float or double, in memory that may hold more: element (r, c) is at
/// data[r * row_step + c * col_step].
template <class T>
struct StridedMatrix {
  T* data;
  std::int64_t rows, cols;
  std::int64_t row_step, col_step;
};

/// out = a b + beta out, as above. Requires shapes that agree and are not empty, extents and steps
/// below 2^31, and for each matrix a step of 1 along a dim, or a dim of extent 1.
template <class T>
void gemm(const StridedMatrix<const T>& a, const StridedMatrix<const T>& b,
          const StridedMatrix<T>& out, T beta);

namespace detail {

/// While an object of this class exists, OpenBLAS computes only on the calling thread. Its number
/// of threads belongs to the whole process; the last of these objects restores it. Cheap if other
/// objects exist.
///
/// Thread-safe.
class OnCallingThread {
 public:
  OnCallingThread();
  ~OnCallingThread();
  OnCallingThread(const OnCallingThread&) = delete;
  OnCallingThread& operator=(const OnCallingThread&) = delete;
};

/// A routine of the OpenBLAS that gemm() loads. Throws unsupported if that lacks it.
void* lapack_routine(const char* name);

/// Calls a routine of Fortran ("potrf" of floats is spotrf_) with pointers to its arguments. The
/// lengths of texts, at most four, follow.
template <class T, class... Pointers>
void lapack(std::string_view name, Pointers*... arguments) {
  const std::string full = (std::is_same_v<T, float> ? "s" : "d") + std::string(name) + "_";
  using Routine = void(Pointers * ..., std::size_t, std::size_t, std::size_t, std::size_t);
  reinterpret_cast<Routine*>(lapack_routine(full.c_str()))(arguments..., 1, 1, 1, 1);
}

}  // namespace detail

}  // namespace shardwise
