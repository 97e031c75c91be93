#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

// LAPACK counts its memory in i32, and pivots are exact in f32 below the second bound.
constexpr std::int64_t kMostOfVectors = 1 << 14, kMostOfMatrices = 1 << 24;

void need_matrix(const TensorType& type, std::int64_t most) {
  if (type.dtype != DType::f32 && type.dtype != DType::f64) {
    refuse_dtype(type.dtype, "f32 or f64");
  }
  if (type.shape.size() < 2) {
    refuse(fmt::format("found {}, needed a matrix in the last two dims", to_string(type)));
  }
  for (std::size_t back = 1; back <= 2; ++back) {
    const std::int64_t extent = type.shape[type.shape.size() - back];
    if (extent > most) refuse(fmt::format("found {}, needed extents of {} at most", extent, most));
  }
}

void need_square(const TensorType& type) {
  const std::size_t rank = type.shape.size();
  if (type.shape[rank - 1] == type.shape[rank - 2]) return;
  refuse(fmt::format("found {}, needed a square matrix", to_string(type)));
}

TensorType decompose_type(const TypeCall& call) {
  need_operands(call, 1);
  TensorType type = call.operands[0];
  const Decomposition kind = call.get<DecompositionAttributes>().kind;
  const bool has_vectors = kind == Decomposition::eigh || kind == Decomposition::svd;
  need_matrix(type, has_vectors ? kMostOfVectors : kMostOfMatrices);
  std::int64_t &rows = type.shape[type.shape.size() - 2], &cols = type.shape[type.shape.size() - 1];
  switch (kind) {
    case Decomposition::cholesky:
      need_square(type);
      break;
    case Decomposition::eigh:
      need_square(type);
      ++rows;
      break;
    case Decomposition::lu:
    case Decomposition::qr:
      ++rows;
      break;
    case Decomposition::svd:
      const std::int64_t least = std::min(rows, cols);
      rows += cols + 1;
      cols = least;
  }
  return type;
}

TensorType triangular_solve_type(const TypeCall& call) {
  need_operands(call, 2);
  need_same_dtype(call);
  const TensorType &a = call.operands[0], &b = call.operands[1];
  need_matrix(a, kMostOfMatrices);
  need_square(a);
  Shape others = b.shape;
  const std::size_t rank = a.shape.size();
  if (others.size() == rank) {
    const bool right = call.get<TriangularAttributes>().right;
    others[rank - (right ? 2 : 1)] = a.shape[rank - 1];
  }
  if (!(others == a.shape)) {
    refuse(
        fmt::format("found {} and {}, needed as many rows of the second (columns, if the "
                    "triangle is on the right) as the first has, and the same other dims",
                    to_string(a), to_string(b)));
  }
  return b;
}

/// Matrices are whole, and cut along the dims before them. `operations`: multiplications and
/// additions by element of the first operand; a factor of no tensor has this size.
FactorRule matrices_rule(const Node& node, std::span<const TensorType> operands,
                         double operations) {
  RuleBuilder rule(node, operands);
  const std::size_t batch = node.type.shape.size() - 2;
  for (std::size_t dim = 0; dim < batch; ++dim) {
    const std::int32_t factor = rule.factor(node.type.shape[dim]);
    for (std::size_t operand = 0; operand < operands.size(); ++operand) {
      rule.in(operand, dim, factor);
    }
    rule.out(dim, factor);
  }
  rule.whole(0, batch);
  rule.whole(0, batch + 1);
  rule.factor(std::max(1LL, std::llround(operations)), Factor::Kind::need_replication);
  return rule.take();
}

FactorRule decompose_rule(const Node& node, std::span<const TensorType> operands) {
  const Shape& shape = operands[0].shape;
  const double least =
      static_cast<double>(std::min(shape[shape.size() - 2], shape[shape.size() - 1]));
  // A square matrix takes n^3 / 3 operations for Cholesky, 2/3, 4/3, and about 9 and 22.
  constexpr double kOperations[] = {1. / 6, 1. / 3, 2. / 3, 4.5, 11};
  const auto kind = std::get<DecompositionAttributes>(node.attributes).kind;
  return matrices_rule(node, operands, least * kOperations[static_cast<std::size_t>(kind)]);
}

FactorRule triangular_solve_rule(const Node& node, std::span<const TensorType> operands) {
  const bool right = std::get<TriangularAttributes>(node.attributes).right;
  const std::int64_t systems = node.type.shape[node.type.shape.size() - (right ? 2 : 1)];
  return matrices_rule(node, operands, static_cast<double>(systems) / 2);
}

Gradients refused_gradient(const GradientCall& call) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format(
          "{}{}: found a gradient of it, needed one from a captured step, which brings its own",
          name(call.result.graph->node(call.result.id).op), to_string(call.attributes)));
}

// ---- Kernels. LAPACK has columns one after the other.

template <class T>
struct Columns {
  T* data;
  int rows, cols;

  T& at(int row, int col) const { return data[static_cast<std::ptrdiff_t>(col) * rows + row]; }
};

template <class T>
bool decompose_with_lapack(Decomposition kind, const Columns<T>& a, T* u_and_vt, T* line) {
  int m = a.rows, n = a.cols, least = std::min(m, n), info = 0;
  const auto memory_of = [](std::int64_t count, std::size_t bytes) {
    return Scratch(as_size(count) * bytes);
  };
  const std::int64_t k = least;
  switch (kind) {
    case Decomposition::cholesky:
      lapack<T>("potrf", "L", &n, a.data, &n, &info);
      for (int i = 0; i < n; ++i)
        info += !(a.at(i, i) > 0 && std::isfinite(a.at(i, i)));  // both pass potrf
      return info == 0;
    case Decomposition::lu: {
      const Scratch pivots = memory_of(k, sizeof(int));
      lapack<T>("getrf", &m, &n, a.data, &m, pivots.as<int>(), &info);
      for (int i = 0; i < least; ++i) line[i] = static_cast<T>(pivots.as<int>()[i] - 1);
      return true;  // of a singular matrix, too
    }
    case Decomposition::qr: {
      int count = 32 * n;
      const Scratch work = memory_of(count, sizeof(T));
      lapack<T>("geqrf", &m, &n, a.data, &m, line, work.as<T>(), &count, &info);
      return info == 0;
    }
    case Decomposition::eigh: {
      int count = static_cast<int>(1 + 6 * k + 2 * k * k), integers = 3 + 5 * least;
      const Scratch work = memory_of(count, sizeof(T)), index = memory_of(integers, sizeof(int));
      lapack<T>("syevd", "V", "L", &n, a.data, &n, line, work.as<T>(), &count, index.as<int>(),
                &integers, &info);
      return info == 0;
    }
    case Decomposition::svd: {
      int count = static_cast<int>(std::max(m, n) + 10 * k + 5 * k * k);
      const Scratch work = memory_of(count, sizeof(T)), index = memory_of(8 * k, sizeof(int));
      T* const vt = u_and_vt + static_cast<std::ptrdiff_t>(m) * least;
      lapack<T>("gesdd", "S", &m, &n, a.data, &m, line, u_and_vt, &m, vt, &least, work.as<T>(),
                &count, index.as<int>(), &info);
      return info == 0;
    }
  }
  return false;
}

/// `in` and `out` are row-major. `count`: elements of `out`.
template <class T>
void decompose_matrix(Decomposition kind, const T* in, int rows, int cols, T* out,
                      std::int64_t count) {
  const std::int64_t least = std::min(rows, cols), elements = std::int64_t{rows} * cols;
  const Scratch memory(as_size(elements) * sizeof(T)), vectors(as_size(count) * sizeof(T)),
      last(as_size(std::int64_t{cols}) * sizeof(T));
  const Columns<T> a{memory.as<T>(), rows, cols};
  T* const line = last.as<T>();
  std::fill(line, line + cols, T{0});
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) a.at(row, col) = *in++;
  }
  const bool has_vectors = kind == Decomposition::eigh || kind == Decomposition::svd;
  const bool is_finite =
      std::all_of(a.data, a.data + elements, [](T x) { return std::isfinite(x); });
  if ((has_vectors && !is_finite) || !decompose_with_lapack(kind, a, vectors.as<T>(), line)) {
    std::fill(out, out + count, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  if (kind == Decomposition::svd) {
    const Columns<T> u{vectors.as<T>(), rows, static_cast<int>(least)};
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < least; ++i) *out++ = u.at(row, i);
    }
    out =
        std::copy_n(vectors.as<T>() + rows * least, cols * least, out);  // columns of v transposed
    std::copy_n(line, least, out);
    return;
  }
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) {
      *out++ = kind == Decomposition::cholesky && col > row ? T{0} : a.at(row, col);
    }
  }
  if (kind != Decomposition::cholesky) std::copy_n(line, cols, out);
}

/// Calls body with a zero of the elements' type.
template <class Body>
void with_float_type(DType dtype, Body&& body) {
  if (dtype == DType::f32) return body(float{});
  return body(double{});
}

/// The extents of the last two dims, and how many matrices there are.
struct Matrices {
  explicit Matrices(const Box& box)
      : rows(static_cast<int>(box.extent(box.rank() - 2))),
        cols(static_cast<int>(box.extent(box.rank() - 1))),
        elements(std::int64_t{rows} * cols),
        count(1) {
    for (std::size_t dim = 0; dim + 2 < box.rank(); ++dim) count *= box.extent(dim);
  }
  int rows, cols;
  std::int64_t elements, count;
};

void decompose_kernel(const KernelCall& call) {
  const Matrices in(call.operands[0].box), out(call.out.box);
  const OnCallingThread on_calling_thread;
  with_float_type(call.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = reinterpret_cast<const T*>(call.operands[0].data);
    T* to = reinterpret_cast<T*>(call.out.data);
    if (in.elements == 0) return std::fill(to, to + out.count * out.elements, T{0});
    for (std::int64_t i = 0; i < in.count; ++i, from += in.elements, to += out.elements) {
      decompose_matrix(call.get<DecompositionAttributes>().kind, from, in.rows, in.cols, to,
                       out.elements);
    }
  });
}

void triangular_solve_kernel(const KernelCall& call) {
  const auto& attributes = call.get<TriangularAttributes>();
  const Matrices a(call.operands[0].box), b(call.out.box);
  const OnCallingThread on_calling_thread;
  with_float_type(call.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* triangle = reinterpret_cast<const T*>(call.operands[0].data);
    T* to = reinterpret_cast<T*>(call.out.data);
    std::copy_n(reinterpret_cast<const T*>(call.operands[1].data), b.count * b.elements, to);
    if (b.elements == 0) return;
    // Fortran sees each matrix transposed, so the triangle is on the other side, and the other one.
    const char* const side = attributes.right ? "L" : "R";
    const char* const half = attributes.upper ? "L" : "U";
    const T one = 1;
    for (std::int64_t i = 0; i < b.count; ++i, triangle += a.elements, to += b.elements) {
      lapack<T>("trsm", side, half, attributes.transpose ? "T" : "N", attributes.unit ? "U" : "N",
                &b.cols, &b.rows, &one, triangle, &a.rows, to, &b.cols);
    }
  });
}

}  // namespace

std::vector<OpRow> linear_algebra_rows() {
  return {{Op::decompose,
           OpRow::Takes<DecompositionAttributes>(),
           decompose_type,
           decompose_rule,
           refused_gradient,
           decompose_kernel,
           {.is_product = true}},
          {Op::triangular_solve,
           OpRow::Takes<TriangularAttributes>(),
           triangular_solve_type,
           triangular_solve_rule,
           refused_gradient,
           triangular_solve_kernel,
           {.is_product = true}}};
}

}  // namespace shardwise::detail
