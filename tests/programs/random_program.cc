#include "random_program.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference.h"

namespace shardwise {
namespace {

/// The largest magnitude that values of the dtype may have.
double kept_limit(DType dtype) { return dtype == DType::bf16 ? 128 : 500; }

}  // namespace

bool is_unsigned_type(DType dtype) {
  return dtype == DType::u64 || dtype == DType::u32 || dtype == DType::u16 || dtype == DType::u8;
}

double exact_limit(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 9007199254740992;
    case DType::f32:
      return 16777216;
    case DType::f16:
      return 2048;
    case DType::bf16:
      return 256;
    default:
      return std::numeric_limits<double>::infinity();
  }
}

RandomProgram::RandomProgram(std::uint32_t seed, bool recomputes)
    : random_(seed), root_{&graph, 0}, has_special_values_(seed % 4 == 3), recomputes_(recomputes) {
  static const MemoryKind kKinds[] = {MemoryKind::array, MemoryKind::parameter, MemoryKind::loader,
                                      MemoryKind::optimizer};
  const int inputs = 1 + below(3);
  for (int i = 0; i < inputs; ++i) {
    const NodeId id = append_input(graph, {random_dtype(), random_shape()},
                                   "in" + std::to_string(i), kKinds[below(4)]);
    keep({&graph, id}, 8);
  }
  const int ops = 4 + below(24);
  for (int i = 0; i < ops; ++i) add_op();
  const std::size_t outputs = 1 + as_size(below(4));
  for (std::size_t i = 0; i < outputs; ++i) {
    const std::size_t at = i == 0 ? values_.size() - 1 : as_size(below(values_.size()));
    graph.outputs.push_back(values_[at].ref.id);
  }
}

void RandomProgram::mark(const Mesh& mesh) {
  if (below(8) == 0) {
    for (const NodeId id : graph.outputs) {
      graph.node(id).mark = random_spec(mesh, graph.node(id).type.shape);
    }
    return;
  }
  const bool only_late = below(8) == 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (only_late && !node.backward && 4 * i < 3 * graph.nodes.size()) continue;
    for_each_body(node, [&](Graph& body) {
      for (Node& inner : body.nodes) {
        if (below(6) == 0) inner.mark = random_spec(mesh, inner.type.shape);
      }
    });
    if (has_bodies(node.op)) continue;
    if (below(node.op == Op::input ? 2 : 7) == 0) node.mark = random_spec(mesh, node.type.shape);
  }
}

Mesh RandomProgram::random_mesh() {
  static const char* const kNames[] = {"x", "y", "z"};
  std::vector<Axis> axes;
  std::int64_t size = 1;
  for (int i = 1 + below(3); i > 0; --i) {
    const std::int64_t extent = 1 + below(8 / size);
    axes.push_back({kNames[axes.size()], extent});
    size *= extent;
  }
  std::shuffle(axes.begin(), axes.end(), random_);
  if (below(2) == 0) return Mesh(axes);
  std::vector<DeviceId> devices;
  for (DeviceId id = 0; id < 10; ++id) devices.push_back(id);
  std::shuffle(devices.begin(), devices.end(), random_);
  devices.resize(as_size(size));
  return Mesh(axes, std::move(devices));
}

PartitionSpec RandomProgram::random_spec(const Mesh& mesh, const Shape& shape) {
  std::vector<PartitionSpec::Entry> entries(shape.size());
  for (const Axis& axis : mesh.axes()) {
    if (shape.empty() || below(3) == 0) continue;
    entries[as_size(below(shape.size()))].push_back(axis.name);
  }
  return PartitionSpec(std::move(entries));
}

std::vector<std::byte> RandomProgram::random_values(const TensorType& type) {
  std::vector<long double> values(as_size(num_elements(type.shape)));
  for (long double& value : values) {
    value = below(17) - 8;
    if (is_unsigned_type(type.dtype)) value = std::abs(value);
    if (type.dtype == DType::boolean) value = value > 0 ? 1 : 0;
  }
  std::vector<std::byte> bytes = encode(type.dtype, values);
  if (!has_special_values_) return bytes;
  const std::size_t width = size_bytes(type.dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (below(3) == 0) special_number(type.dtype).write(type.dtype, bytes.data() + i * width);
  }
  return bytes;
}

/// One that the dtype has; not near others of it, so that it is rounded alike in one step or two.
Scalar RandomProgram::special_number(DType dtype) {
  using Floats = std::numeric_limits<double>;
  using Longs = std::numeric_limits<std::int64_t>;
  if (dtype == DType::boolean) return below(2);
  if (is_floating_type(dtype)) {
    const double least = dtype == DType::f64    ? Floats::denorm_min()
                         : dtype == DType::f16  ? 0x1p-24
                         : dtype == DType::bf16 ? 0x1p-133
                                                : 0x1p-149;
    const double numbers[] = {Floats::quiet_NaN(), -0.0,  0.0,    Floats::infinity(),
                              -Floats::infinity(), least, -least, 3 * least};
    return numbers[below(8)];
  }
  std::byte element[sizeof(std::int64_t)] = {};
  // Shifting the widest type's maximum gives the dtype's own extremes.
  const std::int64_t most = Longs::max() >> (64 - 8 * size_bytes(dtype));
  const std::int64_t numbers[] = {most, -most - 1, -most, -1, 0, 1};
  Scalar(numbers[below(6)]).write(dtype, element);
  if (is_unsigned_type(dtype)) {
    std::uint64_t value = 0;
    convert(dtype, element, DType::u64, reinterpret_cast<std::byte*>(&value), 1);
    return value;
  }
  std::int64_t value = 0;
  convert(dtype, element, DType::i64, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

DType RandomProgram::random_dtype() {
  if (below(2) == 0) return DType::f32;
  return compute_dtypes()[as_size(below(compute_dtypes().size()))];
}

Shape RandomProgram::random_shape() {
  static const std::int64_t kExtents[] = {1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 0};
  Shape shape;
  for (int rank = below(4); rank > 0; --rank) {
    // Nothing at all is rare, or most programs would be about it.
    shape.push_back(kExtents[below(below(12) == 0 ? 12 : 11)]);
  }
  return shape;
}

/// Into the pool; brought back to small numbers where they may get large.
void RandomProgram::keep(NodeRef ref, double bound) {
  const DType dtype = ref.type().dtype;
  if (dtype == DType::boolean) return values_.push_back({ref, 1});
  if (bound > kept_limit(dtype)) return values_.push_back({rem(ref, full_like(ref, 17)), 16});
  values_.push_back({ref, bound});
}

/// Whatever it was, it is an integer of at most 64 now.
void RandomProgram::keep_rounded(const NodeRef& x) {
  if (has_special_values_ && below(2) == 0) return keep(x, 64);
  const NodeRef some = select(is_finite(x), x, full_like(x, 0));
  keep(round(max(min(some * 4.0, full_like(x, 64)), full_like(x, -64))), 64);
}

/// Often the last one, so that there are chains.
RandomProgram::Value RandomProgram::any() {
  return below(3) == 0 ? values_.back() : values_[as_size(below(values_.size()))];
}

/// A number of any dtype; a boolean is converted.
RandomProgram::Value RandomProgram::number() {
  const Value value = any();
  if (value.ref.type().dtype != DType::boolean) return value;
  return {convert(value.ref, below(3) == 0 ? DType::i32 : DType::f32), 1};
}

RandomProgram::Value RandomProgram::floating() {
  Value value = any();
  if (!is_floating_type(value.ref.type().dtype)) {
    value.ref = convert(value.ref, below(3) == 0 ? DType::f64 : DType::f32);
  }
  return value;
}

/// Another value of this type: from the pool if there is one, else made from it.
RandomProgram::Value RandomProgram::like(const Value& value) {
  std::vector<Value> same;
  for (const Value& other : values_) {
    if (other.ref.type() == value.ref.type()) same.push_back(other);
  }
  if (!same.empty() && below(4) != 0) return same[as_size(below(same.size()))];
  if (value.ref.type().dtype == DType::boolean) return {logical_not(value.ref), 1};
  return {value.ref + 1.0, value.bound + 1};
}

RandomProgram::Value RandomProgram::within(const Value& value, double most) {
  if (value.bound <= most) return value;
  const double modulus = std::floor(most) + 1;
  if (!Scalar(modulus).of(value.ref.type().dtype)) return {value.ref, most};  // it has no more
  return {rem(value.ref, full_like(value.ref, modulus)), most};
}

/// Makes two numbers of one type so small that sums of `summed` of their products are exact.
void RandomProgram::fit_product(Value& a, Value& b, double summed) {
  const DType dtype = a.ref.type().dtype;
  if (!is_floating_type(dtype) || a.bound * b.bound * summed <= exact_limit(dtype)) return;
  if (exact_limit(dtype) < 4 * summed) {
    a.ref = convert(a.ref, DType::f32);
    b.ref = convert(b.ref, DType::f32);
  }
  const double most = std::sqrt(exact_limit(a.ref.type().dtype) / summed);
  a = within(a, most);
  b = within(b, most);
}

/// Integers in [0, extent) of i32 or i64, in the shape of x.
NodeRef RandomProgram::ids_like(const NodeRef& x, std::int64_t extent) {
  const DType dtype = below(2) == 0 ? DType::i32 : DType::i64;
  const NodeRef some = convert(x, dtype);
  const NodeRef whole = max(abs(some), full_like(some, 0));  // of the least integer it is negative
  return rem(whole, full_like(whole, static_cast<double>(extent)));
}

void RandomProgram::add_op() {
  const int which = below(14);
  if (has_special_values_ && (which == 6 || which == 8 || which == 11)) return add_binary();
  if (in_body_ && which == 11) return add_flattened();
  switch (which) {
    case 0:
      return add_unary();
    case 1:
      return add_float_unary();
    case 2:
    case 3:
      return add_binary();
    case 4:
      return add_layout();
    case 5:
      return add_reduction();
    case 6:
      return below(3) == 0 ? add_convolution() : below(2) == 0 ? add_windows() : add_product();
    case 7:
      return add_indexed();
    case 8:
      return add_sums();
    case 9:
    case 10:
      return add_flattened();
    case 11:
      return below(4) == 0 ? add_scan_gradient() : add_gradient();
    case 12:
      if (below(in_body_ ? 4 : 2) != 0) return add_leaf();
      return below(3) == 0 ? add_cond() : add_scan();
    default:
      return add_leaf();
  }
}

void RandomProgram::add_unary() {
  const Value value = number();
  const NodeRef& x = value.ref;
  const DType dtype = x.type().dtype;
  switch (below(10)) {
    case 8:
      // Integers only: -0 and NaN have bits of their own.
      if (is_floating_type(dtype)) return keep(clamp(-3.0, x, 4.0), value.bound + 4);
      return keep(population_count(x), 64);
    case 9: {
      if (is_floating_type(dtype)) return keep(abs(x), value.bound);
      static const DType kOthers[][2] = {{DType::i8, DType::u8},
                                         {DType::i16, DType::u16},
                                         {DType::i32, DType::u32},
                                         {DType::i64, DType::u64}};
      for (const auto& [with_sign, without] : kOthers) {
        if (with_sign == dtype) return keep(bitcast(x, without), 1e20);
        if (without == dtype) return keep(bitcast(x, with_sign), 1e20);
      }
      return;
    }
    case 0:
      return keep(neg(x), is_unsigned_type(dtype) ? 1e20 : value.bound);
    case 1:
      return keep(abs(x), value.bound);
    case 2:
      return keep(sign(x), 1);
    case 3:
      return keep(identity(x), value.bound);
    case 4:
      return keep(optimization_barrier(x), value.bound);
    case 5:
      return keep(stop_gradient(x), value.bound);
    case 6: {
      if (is_floating_type(dtype)) return keep(logical_not(gt(x, full_like(x, 1))), 1);
      return keep(logical_not(x), is_unsigned_type(dtype) ? 1e20 : value.bound + 1);
    }
    default: {
      // Integers wrap around; in a boolean all but 0 is true.
      const DType to = random_dtype();
      const bool floats = is_floating_type(dtype) || is_floating_type(to);
      const Value some = floats && !has_special_values_ ? within(value, kept_limit(to)) : value;
      return keep(convert(some.ref, to), floats ? value.bound : 1e20);
    }
  }
}

void RandomProgram::add_float_unary() {
  const Value value = floating();
  const NodeRef& x = value.ref;
  switch (below(17)) {
    case 11:
      return keep_rounded(exp2(x / 4.0));
    case 12:
      return keep_rounded(expm1(x / 4.0));
    case 13:
      return keep_rounded(log1p(x));
    case 14:
      return keep_rounded(erf_inv(x / 8.0));
    case 15:
      return keep_rounded(cbrt(x));
    case 16:
      return keep_rounded(atan2(x, x + 1.0));
    case 0:
      return keep(floor(x / 3.0), value.bound);
    case 1:
      return keep(ceil(x / 3.0), value.bound);
    case 2:
      return keep(round(x / 2.0), value.bound);
    case 3:
      return keep(is_finite(x / x), 1);
    case 4:
      return keep_rounded(exp(x / 4.0));
    case 5:
      return keep_rounded(log(x));
    case 6:
      return keep_rounded(tanh(x));
    case 7:
      return keep_rounded(logistic(x));
    case 8:
      return keep_rounded(erf(x / 8.0));
    case 9:
      return keep_rounded(sqrt(x) + rsqrt(x));
    default:
      return keep_rounded(sin(x) * cos(x));
  }
}

void RandomProgram::add_binary() {
  Value a = number(), b = like(a);
  const DType dtype = a.ref.type().dtype;
  const double larger = std::max(a.bound, b.bound);
  const double sum = is_unsigned_type(dtype) ? 1e20 : a.bound + b.bound;
  const int which = below(15);
  if (which == 2) fit_product(a, b, 1);
  const NodeRef &x = a.ref, &y = b.ref;
  const auto nonzero = [&] { return select(eq(y, full_like(y, 0)), full_like(y, 1), y); };
  switch (which) {
    case 0:
      return keep(x + y, sum);
    case 1:
      return keep(x - y, sum);
    case 2:
      return keep(x * y, a.bound * b.bound);
    case 3:
      if (has_special_values_) return keep(x / y, a.bound + 1);
      return keep(is_floating_type(dtype) ? floor(x / nonzero()) : x / y, a.bound + 1);
    case 4:
      return keep(rem(x, is_floating_type(dtype) && !has_special_values_ ? nonzero() : y), a.bound);
    case 5:
      return keep(max(x, y), larger);
    case 6:
      return keep(min(x, y), larger);
    case 7:
      if (is_floating_type(dtype)) return keep_rounded(pow(abs(x) / 8.0, y / 8.0));
      return keep(pow(x, has_special_values_ ? rem(y, full_like(y, 17)) : y), 1e20);
    case 14: {
      if (is_floating_type(dtype)) return keep(x - y, sum);
      const int direction = below(3);
      return keep(direction == 0   ? shift_left(x, y)
                  : direction == 1 ? shift_right_logical(x, y)
                                   : shift_right_arithmetic(x, y),
                  1e20);
    }
    case 8:
      return keep(logical_or(eq(x, y), lt(x, y)), 1);
    case 9:
      return keep(logical_and(ne(x, y), le(x, y)), 1);
    case 10:
      return keep(logical_xor(gt(x, y), ge(y, x)), 1);
    case 11:
      return keep(select(gt(x, y), x, y), larger);
    case 12: {
      if (is_floating_type(dtype)) return keep(select(gt(x, y), y, full_like(x, 5)), larger + 5);
      const NodeRef both = logical_xor(logical_and(x, y), logical_or(x, full_like(y, 3)));
      return keep(both, 1e20);
    }
    default: {
      // A smaller one is broadcast as numpy does.
      if (x.type().shape.empty()) return keep(x + y, sum);
      return keep(y * reduce_max(convert(gt(x, y), dtype), {0}) + 1.0,
                  x.type().shape[0] == 0 ? 1e20 : sum + 1);
    }
  }
}

void RandomProgram::add_layout() {
  const Value value = any();
  const NodeRef& x = value.ref;
  const Shape shape = x.type().shape;
  const std::size_t rank = shape.size();
  const double number = x.type().dtype == DType::boolean ? 1 : 3;
  Dims low, high, stride, order = all_dims(rank);
  switch (below(7)) {
    case 0:
      return add_broadcast();
    case 1: {
      std::shuffle(order.begin(), order.end(), random_);
      return keep(transpose(x, order), value.bound);
    }
    case 2:
      return add_reshape();
    case 3: {
      for (const std::int64_t extent : shape) {
        low.push_back(below(extent + 1));
        high.push_back(low[low.size() - 1] + below(extent - low[low.size() - 1] + 1));
        stride.push_back(1 + below(3));
      }
      return keep(slice(x, low, high, stride), value.bound);
    }
    case 4: {
      for (std::size_t d = 0; d < rank; ++d) {
        low.push_back(below(3));
        high.push_back(below(3));
        stride.push_back(1 + below(2));
      }
      return keep(pad(x, low, high, stride, below(2) * number), std::max(value.bound, 3.0));
    }
    case 5: {
      if (rank == 0) return;
      const Value other = like(value);
      return keep(concatenate<NodeRef>({x, other.ref, x}, dim_of(shape)),
                  std::max(value.bound, other.bound));
    }
    default: {
      Dims dims;
      for (const std::int64_t d : order) {
        if (below(2) == 0) dims.push_back(d);
      }
      return keep(reverse(x, dims), value.bound);
    }
  }
}

void RandomProgram::add_broadcast() {
  const Value value = any();
  const Shape shape = value.ref.type().shape;
  if (shape.size() > 3) return;
  Shape wider;
  Dims dims;
  for (const std::int64_t extent : shape) {
    if (below(3) == 0) wider.push_back(1 + below(5));
    dims.push_back(static_cast<std::int64_t>(wider.size()));
    wider.push_back(extent == 1 ? 1 + below(5) : extent);
  }
  if (below(2) == 0) wider.push_back(1 + below(3));
  keep(broadcast(value.ref, wider, dims), value.bound);
}

/// Splits the extents into factors and puts these together in another way.
void RandomProgram::add_reshape() {
  const Value value = any();
  std::vector<std::int64_t> factors;
  for (std::int64_t extent : value.ref.type().shape) {
    for (const std::int64_t prime : {2, 2, 3, 5, 7}) {
      if (extent % prime == 0 && extent > 0 && below(2) == 0) {
        factors.push_back(prime);
        extent /= prime;
      }
    }
    factors.push_back(extent);
  }
  Shape other;
  for (const std::int64_t factor : factors) {
    if (!other.empty() && (below(2) == 0 || other.size() == 5)) {
      other[other.size() - 1] *= factor;
    } else {
      other.push_back(factor);
    }
  }
  keep(reshape(value.ref, other), value.bound);
}

void RandomProgram::add_reduction() {
  Value value = below(4) == 0 ? any() : number();
  const Shape shape = value.ref.type().shape;
  Dims dims;
  double elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (below(2) == 0) continue;
    dims.push_back(static_cast<std::int64_t>(d));
    elements *= static_cast<double>(shape[d]);
  }
  // The least number of the dtype, where there is nothing to compare.
  const auto keep_extreme = [&](const NodeRef& y) {
    if (is_floating_type(y.type().dtype) && !has_special_values_) {
      return keep(select(is_finite(y), y, full_like(y, 0)), value.bound);
    }
    keep(y, elements == 0 ? 1e20 : value.bound);
  };
  const bool sums = value.ref.type().dtype != DType::boolean &&
                    !(has_special_values_ && is_floating_type(value.ref.type().dtype));
  switch (below(5)) {
    case 0: {
      if (!sums) return;
      Value one{full_like(value.ref, 1), 1};
      fit_product(value, one, elements);
      return keep(reduce_sum(value.ref, dims), std::max(1.0, value.bound * elements));
    }
    case 1:
      return keep_extreme(reduce_max(value.ref, dims));
    case 2:
      return keep_extreme(reduce_min(value.ref, dims));
    default: {
      if (shape.empty()) return;
      const std::int64_t dim = dim_of(shape);
      const auto extent = static_cast<double>(shape[as_size(dim)]);
      if (below(2) == 0) {
        if (extent == 0) return;
        return keep(below(2) == 0 ? argmax(value.ref, dim) : argmin(value.ref, dim), extent);
      }
      return add_cumulative(value, dim);
    }
  }
}

void RandomProgram::add_leaf() {
  const Shape shape = random_shape();
  const DType dtype = random_dtype();
  switch (below(4)) {
    case 3:
      return keep(literal(root_, {dtype, shape}, random_values({dtype, shape})), 8);
    case 0:
      if (has_special_values_ && below(2) == 0) {
        return keep(constant(root_, {dtype, shape}, special_number(dtype)), 4);
      }
      if (dtype == DType::boolean) return keep(constant(root_, {dtype, shape}, below(2)), 1);
      return keep(constant(root_, {dtype, shape}, below(9) - (is_unsigned_type(dtype) ? 0 : 4)), 8);
    case 1:
      if (shape.empty() || dtype == DType::boolean) return;
      return keep(iota(root_, {dtype, shape}, dim_of(shape)), 12);
    default: {
      const NodeRef key = constant(root_, {DType::u64, {}}, 7 + below(100));
      const NodeRef bits = random_bits(key, shape);
      return keep(convert(rem(bits, full_like(bits, 9)), dtype), 8);
    }
  }
}

}  // namespace shardwise
