#pragma once

#include <cstdint>

namespace shardwise {

/// Whether a matrix is used as stored or transposed.
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

/// out = op(a) op(b) + beta out, on the calling thread alone, as the devices are what runs in
/// parallel: the first call sets OpenBLAS's thread count to 1 for the whole process, other users
/// of the library in it included, and on AMD's processors with AVX-512 makes it use those
/// instructions: nobody else may be calling OpenBLAS at that moment. beta = 0 does not read out.
/// Throws invalid_argument where the shapes do not agree. Thread-safe.
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
/// below 2^31, and of each matrix a step of 1 along a dim, or a dim of extent 1.
template <class T>
void gemm(const StridedMatrix<const T>& a, const StridedMatrix<const T>& b,
          const StridedMatrix<T>& out, T beta);

}  // namespace shardwise
