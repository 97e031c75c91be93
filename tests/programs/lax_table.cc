#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "lax_cases.h"
#include "shardwise/runtime/kernels/detail/elementwise.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/functions.h"

namespace shardwise {
namespace {

using Bytes = std::vector<std::byte>;

const Mesh& mesh() {
  static const Mesh mesh = Mesh::parse("x=8");
  return mesh;
}

/// A graph of one op, with its inputs.
class OneOp {
 public:
  NodeRef input(DType dtype, const Shape& shape, Bytes bytes) {
    const NodeId id = append_input(graph_, {dtype, shape}, "x");
    inputs_.push_back(std::move(bytes));
    return {&graph_, id};
  }

  /// The last dim of each input is cut.
  void add_to(LaxCases& cases, const NodeRef& result) {
    for (const GraphInput& input : graph_.inputs) {
      Node& node = graph_.node(input.node);
      if (node.type.shape.empty()) continue;
      std::vector<PartitionSpec::Entry> entries(node.type.shape.size());
      entries.back().push_back("x");
      node.mark = PartitionSpec(std::move(entries));
    }
    graph_.outputs = {result.id};
    cases.add("table", graph_, inputs_, mesh(), true);
  }

  /// For ops that have no operand.
  NodeRef root() { return input(DType::f32, {}, Bytes(sizeof(float))); }

 private:
  GraphBuilder graph_;
  std::vector<Bytes> inputs_;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Each element once.
Bytes distinct(const Bytes& bytes, std::size_t width) {
  std::vector<std::string> elements;
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    elements.emplace_back(reinterpret_cast<const char*>(bytes.data() + at), width);
  }
  std::sort(elements.begin(), elements.end());
  elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
  Bytes kept;
  for (const std::string& element : elements) {
    const auto* const data = reinterpret_cast<const std::byte*>(element.data());
    kept.insert(kept.end(), data, data + width);
  }
  return kept;
}

// Where functions of one operand are easily wrong.
constexpr double kMoreFloats[] = {
    0.25, 0.5, 0.499, 1.5, 2.0, 2.5, 3.0, 3.5, 0.1, 0.3, 0.7, 1e-3, 1e-5, 1e-8, 1e-20, 1e-38,
    // around where exp, logistic and tanh overflow, underflow and saturate, by dtype
    9.0, 9.01, 8.3, 11.08, 11.09, 11.1, 16.6, 17.3, 19.1, 88.7, 88.72, 88.73, 87.3, 87.4, 103.9,
    104.0, 709.7, 709.78, 709.79, 708.3, 708.4, 745.1, 745.2, 3.9, 4.0, 5.9, 26.5, 27.3,
    // near multiples of pi / 2, and past where they are easily reduced
    1.5707963267948966, 3.141592653589793, 6.283185307179586, 22.0, 355.0, 1e3, 1e4, 39000.0,
    105615.0, 1e6, 1e9, 1e16, 1e22, 1e30, 1e38, 1e100, 1e300,
    // the ends of integers
    127.0, 127.5, 128.0, 255.0, 255.5, 256.0, 257.0, 32767.0, 32768.0, 65504.0, 65535.0, 65536.0,
    16777215.0, 16777217.0, 2147483520.0, 2147483647.0, 2147483648.0, 4294967295.0, 4294967296.0,
    0x1p53, 0x1p63, 0x1p64, 0x1.fffffffffffffp62,
    // that narrower floats have not: ties, and numbers that are ties only after another rounding
    0x1.01p0, 0x1.03p0, 0x1.0100000000001p0, 0x1.000001p0, 0x1.00000100000001p0, 0x1.002p0,
    0x1.0020000000001p0, 0x1.ffffffp127, 65519.0, 65520.0, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1p-149,
    0x1p-150, 0x1.8p-150, 0x1p-133, 0x1p-134, 0x1.0000000000001p-134};

/// Special floats of either sign.
std::vector<double> special_floats(DType dtype) {
  // Bits of mantissa, and the least exponent of a normal number.
  const auto [mantissa, least] = dtype == DType::f64   ? std::pair(52, -1022)
                                 : dtype == DType::f32 ? std::pair(23, -126)
                                 : dtype == DType::f16 ? std::pair(10, -14)
                                                       : std::pair(7, -126);
  const double normal = std::ldexp(1.0, least), denormal = std::ldexp(1.0, least - mantissa);
  const double unit = std::ldexp(1.0, -mantissa);
  const double largest = std::ldexp(2 - unit, -least + 1);
  std::vector<double> values{0,
                             denormal,
                             3 * denormal,
                             normal - denormal,
                             normal,
                             normal + denormal,
                             largest,
                             largest * (1 - unit),
                             std::ldexp(1.0, -least),
                             1,
                             1 + unit,
                             1 - unit / 2,
                             std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()};
  for (const double value : {0.1, 0.5, 1.5, 2.0, 2.5, 3.0, 9.0, 100.0, 65504.0, 1e9, 1e30}) {
    values.push_back(value);
  }
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

/// Special values of a dtype that is computed with.
Bytes special_values(DType dtype) {
  const std::size_t width = size_bytes(dtype);
  Bytes bytes;
  const auto push = [&](Scalar value) {
    bytes.resize(bytes.size() + width);
    value.write(dtype, bytes.data() + bytes.size() - width);
  };
  if (dtype == DType::boolean) {
    push(0);
    push(1);
  } else if (is_floating(dtype)) {
    for (const double value : special_floats(dtype)) push(value);
  } else {
    for (const std::int64_t value : {0, 1, 2, 3, 5, 7, 10, 12, 31, 100}) {
      push(value);
      push(-value);
    }
    for (const int bits : {7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64}) {
      const std::uint64_t power = bits == 64 ? 0 : std::uint64_t{1} << bits;
      for (const std::uint64_t value : {power, power - 1, power + 1}) {
        push(value);
        push(0 - value);
      }
    }
    push((std::uint64_t{1} << 60) + (std::uint64_t{1} << 52));  // a tie of bf16
    push((std::uint64_t{1} << 60) + (std::uint64_t{1} << 52) + 1);
  }
  return distinct(bytes, width);
}

/// All there are of 1 and 2 bytes; of others the special ones and many more.
Bytes many_values(DType dtype) {
  const std::size_t width = size_bytes(dtype);
  if (dtype == DType::boolean) return special_values(dtype);
  if (width <= 2) {
    Bytes bytes;
    for (std::uint32_t bits = 0; bits < 1u << (8 * width); ++bits) {
      for (std::size_t b = 0; b < width; ++b) bytes.push_back(std::byte(bits >> (8 * b) & 0xff));
    }
    return bytes;
  }
  Bytes bytes = special_values(dtype);
  const auto push = [&](Scalar value) {
    bytes.resize(bytes.size() + width);
    value.write(dtype, bytes.data() + bytes.size() - width);
  };
  for (const double value : kMoreFloats) {
    if (!is_floating(dtype)) break;
    push(value);
    push(-value);
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t bits = random();
    if (i % 2 == 0 && is_floating(dtype)) {  // of moderate size
      push((std::ldexp(static_cast<double>(bits >> 11), -53) - 0.5) * std::ldexp(1.0, i % 13));
    } else {
      const std::span<const std::byte> any = std::as_bytes(std::span(&bits, 1)).first(width);
      bytes.insert(bytes.end(), any.begin(), any.end());
    }
  }
  return bytes;
}

/// Every pair of elements of two lists, as two lists.
std::pair<Bytes, Bytes> pairs(const Bytes& a, std::size_t a_width, const Bytes& b,
                              std::size_t b_width) {
  std::pair<Bytes, Bytes> made;
  for (auto i = a.begin(); i != a.end(); i += static_cast<std::ptrdiff_t>(a_width)) {
    for (auto j = b.begin(); j != b.end(); j += static_cast<std::ptrdiff_t>(b_width)) {
      made.first.insert(made.first.end(), i, i + static_cast<std::ptrdiff_t>(a_width));
      made.second.insert(made.second.end(), j, j + static_cast<std::ptrdiff_t>(b_width));
    }
  }
  return made;
}

Shape line(const Bytes& bytes, DType dtype) {
  return {static_cast<std::int64_t>(bytes.size() / size_bytes(dtype))};
}

/// rows x columns elements: windows of the special values.
Bytes windows(DType dtype, std::int64_t rows, std::int64_t columns) {
  const std::size_t width = size_bytes(dtype);
  const Bytes values = is_computed(dtype) ? special_values(dtype) : [&] {
    Bytes any(64 * width);
    for (std::size_t i = 0; i < any.size(); ++i) any[i] = std::byte(i * 37 % 251);
    return any;
  }();
  const std::size_t count = values.size() / width;
  Bytes made;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::size_t at = as_size(row * 5 + column * (1 + row % 7)) % count * width;
      made.insert(made.end(), values.begin() + static_cast<std::ptrdiff_t>(at),
                  values.begin() + static_cast<std::ptrdiff_t>(at + width));
    }
  }
  return made;
}

/// rows x columns elements: a special value in each row, the rest small; so that no order of
/// additions overflows where another does not.
Bytes one_special(DType dtype, std::int64_t rows, std::int64_t columns) {
  const std::size_t width = size_bytes(dtype);
  const Bytes values = special_values(dtype);
  Bytes made(as_size(rows * columns) * width);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const std::int64_t row = i / columns;
    if (i % columns != row % columns) {
      Scalar(1 + i % 3).write(dtype, made.data() + as_size(i) * width);
      continue;
    }
    const std::size_t at = as_size(row) % (values.size() / width) * width;
    std::memcpy(made.data() + as_size(i) * width, values.data() + at, width);
  }
  return made;
}

std::int64_t rows_of(DType dtype) { return line(special_values(dtype), dtype)[0]; }

void add_leaves(LaxCases& cases) {
  for (const DType dtype : all_dtypes()) {
    OneOp one;
    one.add_to(cases, literal(one.root(), {dtype, {4, 6}}, windows(dtype, 4, 6)));
  }
  for (const DType dtype : compute_dtypes()) {
    const Bytes values = special_values(dtype);
    for (std::size_t at = 0; at < values.size(); at += size_bytes(dtype)) {
      OneOp one;
      Scalar number;
      if (is_floating(dtype)) {
        double value = 0;
        convert(dtype, values.data() + at, DType::f64, reinterpret_cast<std::byte*>(&value), 1);
        number = value;
      } else {
        std::uint64_t bits = 0;
        convert(dtype, values.data() + at, DType::u64, reinterpret_cast<std::byte*>(&bits), 1);
        number = bits;
        if (!number.of(dtype)) number = static_cast<std::int64_t>(bits);
      }
      one.add_to(cases, constant(one.root(), {dtype, {3}}, number));
    }
    if (dtype == DType::boolean) continue;
    OneOp one;
    one.add_to(cases, iota(one.root(), {dtype, {3, 300}}, 1));
  }
  for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{42}, ~std::uint64_t{0}}) {
    OneOp one;
    one.add_to(cases, random_bits(one.input(DType::u64, {}, bytes_of(std::vector{key})), {5, 7}));
  }
}

void add_elementwise(LaxCases& cases, Op op) {
  for (const DType dtype : compute_dtypes()) {
    const std::size_t width = size_bytes(dtype);
    if (op == Op::convert) {
      for (const DType to : compute_dtypes()) {
        if (to == dtype) continue;
        OneOp one;
        const Bytes values = many_values(dtype);
        one.add_to(cases, convert(one.input(dtype, line(values, dtype), values), to));
      }
      continue;
    }
    if (op == Op::select) {
      OneOp one;
      const Bytes values = many_values(dtype);
      const Shape shape = line(values, dtype);
      Bytes conditions(as_size(shape[0]));
      for (std::size_t i = 0; i < conditions.size(); ++i) conditions[i] = std::byte(i % 3 == 0);
      Bytes others(values.rbegin(), values.rend());
      if (dtype != DType::boolean) others = windows(dtype, shape[0], 1);
      const NodeRef condition = one.input(DType::boolean, shape, conditions);
      const NodeRef x = one.input(dtype, shape, values);
      one.add_to(cases, select(condition, x, one.input(dtype, shape, others)));
      continue;
    }
    if (!ElementwiseKernel::supports(op, dtype)) continue;
    if (op < Op::add) {
      OneOp one;
      const Bytes values = many_values(dtype);
      const NodeRef x = one.input(dtype, line(values, dtype), values);
      one.add_to(cases, append_to(x, op, {x}));
      continue;
    }
    for (const DType other : compute_dtypes()) {
      if (other != dtype && !(op == Op::pow && ElementwiseKernel::takes_exponent(dtype, other))) {
        continue;
      }
      OneOp one;
      const auto [a, b] =
          pairs(special_values(dtype), width, special_values(other), size_bytes(other));
      const NodeRef x = one.input(dtype, line(a, dtype), a);
      one.add_to(cases, append_to(x, op, {x, one.input(other, line(b, other), b)}));
    }
  }
}

/// Ops that give elements as they are, of every dtype.
void add_movement(LaxCases& cases, Op op) {
  for (const DType dtype : all_dtypes()) {
    if (op == Op::pad && !is_computed(dtype)) continue;
    OneOp one;
    const NodeRef x = one.input(dtype, {4, 6}, windows(dtype, 4, 6));
    const auto index = [&](const Shape& shape, const std::vector<std::int64_t>& values) {
      return one.input(DType::i64, shape, bytes_of(values));
    };
    const auto result = [&]() -> NodeRef {
      switch (op) {
        case Op::broadcast:
          return broadcast(x, {4, 2, 6}, {0, 2});
        case Op::transpose:
          return transpose(x, {1, 0});
        case Op::reshape:
          return reshape(x, {3, 8});
        case Op::slice:
          return slice(x, {1, 0}, {4, 5}, {2, 3});
        case Op::pad:
          return pad(x, {1, 0}, {0, 2}, {2, 1},
                     dtype == DType::boolean || !is_floating(dtype) ? 1.0 : -0.0);
        case Op::concatenate:
          return concatenate<NodeRef>({x, one.input(dtype, {4, 2}, windows(dtype, 4, 2)), x}, 1);
        case Op::reverse:
          return reverse(x, {1});
        case Op::take:
          return take(x, index({2, 3}, {5, 0, 3, 3, 1, 2}), 1);
        case Op::take_along:
          return take_along(x, index({4, 2}, {5, 0, 3, 3, 1, 2, 4, 4}), 1);
        case Op::dynamic_slice:
          return dynamic_slice<NodeRef>(x, {index({}, {1}), index({}, {9})}, {2, 3});
        case Op::dynamic_update_slice: {
          const NodeRef update = one.input(dtype, {2, 3}, windows(dtype, 2, 3));
          return dynamic_update_slice<NodeRef>(x, update, {index({}, {-3}), index({}, {2})});
        }
        case Op::bitcast:
          for (const DType to : all_dtypes()) {
            if (to != dtype && size_bytes(to) == size_bytes(dtype)) return bitcast(x, to);
          }
          return bitcast(x, dtype);
        default:  // identity, stop_gradient, optimization_barrier
          return append_to(x, op, {x});
      }
    }();
    one.add_to(cases, result);
  }
}

void add_reduction(LaxCases& cases, Op op) {
  const bool is_sum = op == Op::reduce_sum || op == Op::reduce_window_sum ||
                      op == Op::reduce_prod || op == Op::cumsum || op == Op::cumprod ||
                      op == Op::cumlogsumexp;
  for (const DType dtype : compute_dtypes()) {
    const bool needs_numbers = is_sum || op == Op::cummax || op == Op::cummin;
    if (needs_numbers && dtype == DType::boolean) continue;
    if (op == Op::cumlogsumexp && !is_floating(dtype)) continue;
    const std::int64_t rows = rows_of(dtype), columns = 9;
    for (const bool last : {true, false}) {
      OneOp one;
      const Bytes values =
          is_sum ? one_special(dtype, rows, columns) : windows(dtype, rows, columns);
      NodeRef x = one.input(dtype, {rows, columns}, values);
      if (!last) x = transpose(x, {1, 0});
      const std::int64_t dim = last ? 1 : 0;
      switch (op) {
        case Op::index_of:
          one.add_to(cases, argmax(x, dim));
          one.add_to(cases, argmin(x, dim));
          break;
        case Op::cumsum:
        case Op::cumprod:
        case Op::cummax:
        case Op::cummin:
        case Op::cumlogsumexp:
          one.add_to(cases, append_to(x, op, {x}, CumulativeAttributes{dim, !last}));
          break;
        case Op::argsort:
          one.add_to(cases, argsort(x, dim, !last));
          break;
        case Op::reduce_window_sum:
        case Op::reduce_window_max:
          one.add_to(cases, append_to(x, op, {x},
                                      WindowAttributes{.window = last ? Dims{1, 3} : Dims{3, 1},
                                                       .stride = {1, 2},
                                                       .low = {0, 1},
                                                       .high = {2, 0},
                                                       .dilation = {1, 1}}));
          break;
        default:
          one.add_to(cases, append_to(x, op, {x}, DimsAttributes{{dim}}));
      }
    }
  }
}

void add_sums(LaxCases& cases, Op op) {
  for (const DType dtype : compute_dtypes()) {
    if (dtype == DType::boolean) continue;
    const std::int64_t rows = rows_of(dtype), columns = 6;
    OneOp one;
    const NodeRef x = one.input(dtype, {rows, columns}, one_special(dtype, rows, columns));
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      ids.push_back(static_cast<std::int32_t>(i * 5 % 7));
    }
    if (op == Op::select_and_scatter_add) {
      // Without NaN, which XLA does not take for the largest.
      const WindowAttributes a{
          .window = {1, 3}, .stride = {1, 2}, .low = {0, 1}, .high = {0, 1}, .dilation = {1, 1}};
      const NodeRef y = iota(x, {dtype, {rows, columns}}, 1);
      one.add_to(cases, select_and_scatter_add(y, slice(x, {0, 0}, {rows, 3}), a));
    } else if (op == Op::dot_general || op == Op::convolution) {
      Bytes small(as_size(columns * 2) * size_bytes(dtype));
      for (std::int64_t i = 0; i < columns * 2; ++i) {
        Scalar(1 + i % 2).write(dtype, small.data() + as_size(i) * size_bytes(dtype));
      }
      const NodeRef y = one.input(dtype, {columns, 2}, small);
      if (op == Op::dot_general) {
        one.add_to(cases, einsum("bi,io->bo", x, y));
        constexpr std::pair<DType, DType> kWider[] = {{DType::bf16, DType::f32},
                                                      {DType::f16, DType::f32},
                                                      {DType::f32, DType::f64},
                                                      {DType::i8, DType::i32},
                                                      {DType::u8, DType::u32}};
        for (const auto& [narrow, wide] : kWider) {
          if (narrow != dtype) continue;
          OneOp wider;
          const NodeRef p = wider.input(dtype, {rows, columns}, one_special(dtype, rows, columns));
          const NodeRef q = wider.input(dtype, {columns, 2}, small);
          wider.add_to(cases, einsum("bi,io->bo", p, q, wide));
        }
      } else {
        // Rows are images of one feature; three taps of a kernel with two features. XLA multiplies
        // infinities with padding zeros, so no infinities are here.
        const NodeRef z = one.input(dtype, {columns, 2}, small);
        const NodeRef images = reshape(z, {2, 1, columns});
        const NodeRef kernel = slice(reshape(y, {2, 1, columns}), {0, 0, 0}, {2, 1, 3});
        one.add_to(cases, convolution(images, kernel,
                                      {.lhs = {0, 1, 2},
                                       .rhs = {0, 1, 2},
                                       .out = {0, 1, 2},
                                       .stride = {1},
                                       .low = {1},
                                       .high = {1},
                                       .lhs_dilation = {1},
                                       .rhs_dilation = {1}}));
      }
    } else if (op == Op::scatter) {
      ids.resize(as_size(columns));
      for (std::int32_t& id : ids) id -= 1;
      const NodeRef y = iota(x, {dtype, {rows, 4}}, 1);
      for (int combination = 0; combination < 5; ++combination) {
        OneOp each;
        const NodeRef z = each.input(dtype, {rows, columns}, one_special(dtype, rows, columns));
        const NodeRef at = each.input(DType::i32, {columns}, bytes_of(ids));
        each.add_to(cases, scatter(iota(z, {dtype, {rows, 4}}, 1), at, z, 1,
                                   static_cast<Combination>(combination),
                                   combination % 2 == 0 ? OutOfRange::drop : OutOfRange::clip));
      }
      const NodeRef at = one.input(DType::i32, {columns}, bytes_of(ids));
      one.add_to(cases, scatter(y, at, x, 1, Combination::set, OutOfRange::drop));
    } else if (op == Op::scatter_add) {
      ids.resize(as_size(columns));
      const NodeRef at = one.input(DType::i32, {columns}, bytes_of(ids));
      one.add_to(cases, scatter_add(at, x, 1, 7));
    } else {
      const NodeRef at = one.input(DType::i32, {rows, columns}, bytes_of(ids));
      one.add_to(cases, scatter_add_along(at, x, 1, 7));
    }
  }
}

/// Each device has a column; a reduction combines them.
void add_region(LaxCases& cases, Op op) {
  for (const DType dtype : compute_dtypes()) {
    const std::int64_t rows = rows_of(dtype), columns = mesh().size();
    for (const Reduction reduction : {Reduction::max, Reduction::min, Reduction::sum}) {
      if (op != Op::manual_all_reduce && reduction != Reduction::max) continue;
      if (dtype == DType::boolean && reduction == Reduction::sum) continue;
      GraphBuilder graph;
      const NodeRef x{&graph, append_input(graph, {dtype, {rows, columns}}, "x")};
      const NodeRef mine =
          append_to(x, Op::enter_manual, {x}, ManualAttributes{PartitionSpec::parse("-,x")},
                    {dtype, {rows, 1}});
      NodeRef last = mine, at = mine;
      if (op == Op::manual_all_reduce) {
        last = at = append_to(mine, op, {mine}, ReduceAttributes{{"x"}, reduction});
      }
      last = append_to(last, Op::leave_manual, {last},
                       ManualAttributes{PartitionSpec::parse("-,x")}, {dtype, {rows, columns}});
      if (op == Op::leave_manual) at = last;
      graph.outputs = {last.id};
      const Bytes values = reduction == Reduction::sum ? one_special(dtype, rows, columns)
                                                       : windows(dtype, rows, columns);
      cases.add_region(graph, {values}, mesh(), at.id);
    }
  }
}

void add_op(LaxCases& cases, Op op) {
  if (is_elementwise(op)) return add_elementwise(cases, op);
  switch (op) {
    case Op::input:  // in every case
      return;
    case Op::constant:
      return add_leaves(cases);
    case Op::literal:
    case Op::iota:
    case Op::random_bits:
    case Op::decompose:  // python/tests/test_decompositions.py
    case Op::triangular_solve:
    case Op::scan:
    case Op::cond:
    case Op::result:
      return;
    case Op::reduce_sum:
    case Op::reduce_max:
    case Op::reduce_min:
    case Op::reduce_prod:
    case Op::index_of:
    case Op::cumsum:
    case Op::cumprod:
    case Op::cummax:
    case Op::cummin:
    case Op::cumlogsumexp:
    case Op::argsort:
    case Op::reduce_window_sum:
    case Op::reduce_window_max:
      return add_reduction(cases, op);
    case Op::dot_general:
    case Op::convolution:
    case Op::select_and_scatter_add:
    case Op::scatter:
    case Op::scatter_add:
    case Op::scatter_add_along:
      return add_sums(cases, op);
    case Op::enter_manual:
    case Op::leave_manual:
    case Op::manual_all_reduce:
      return add_region(cases, op);
    default:
      return add_movement(cases, op);
  }
}

}  // namespace

void add_lax_table(LaxCases& cases) {
  for (std::size_t op = 0; op < kOps; ++op) add_op(cases, static_cast<Op>(op));
}

}  // namespace shardwise
