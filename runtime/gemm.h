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
/// of the library in it included. beta = 0 does not read out. Throws invalid_argument where the
/// shapes do not agree. Thread-safe.
void gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& out, float beta = 0);

}  // namespace shardwise
