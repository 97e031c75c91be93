#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

bool is_unsigned_type(DType dtype);

/// Calls change(body) for each body of a node.
template <class Change>
void for_each_body(Node& node, const Change& change) {
  const auto changed = [&](std::shared_ptr<const Graph>& body) {
    Graph other = *body;
    change(other);
    body = std::make_shared<const Graph>(std::move(other));
  };
  if (auto* const scan = std::get_if<ScanAttributes>(&node.attributes)) changed(scan->body);
  if (auto* const cond = std::get_if<CondAttributes>(&node.attributes)) {
    changed(cond->body);
    changed(cond->otherwise);
  }
}

/// Up to this every integer is one of the dtype's numbers. Integer types wrap around: they have no
/// limit.
double exact_limit(DType dtype);

/// Makes programs of random ops on all dtypes whose values are small integers, so that every order
/// of additions gives the same bits. What does not give integers is rounded at once, element by
/// element. One in four has special values instead (NaN, infinities, -0, numbers too small to be
/// normal, the extremes of integers), and no sums of floats.
class RandomProgram {
 public:
  /// `recomputes`: half of the layers of gradients are blocks of checkpoint(). Else the program is
  /// the same.
  explicit RandomProgram(std::uint32_t seed, bool recomputes = true);

  bool has_special_values() const { return has_special_values_; }

  /// Marks some inputs and nodes, of bodies too, at random; in one program of eight only the
  /// results, and in one of eight only the last nodes and gradients, so that marks go backward.
  void mark(const Mesh& mesh);

  /// Of 1 to 8 devices and up to 3 axes; half of them with the devices in another order.
  Mesh random_mesh();

  PartitionSpec random_spec(const Mesh& mesh, const Shape& shape);

  /// Values for an input: integers from -8 to 8, and special values if the program has some.
  std::vector<std::byte> random_values(const TensorType& type);

  template <class Count>
  int below(Count count) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(count));
  }

  GraphBuilder graph;

 private:
  struct Value {
    NodeRef ref;
    double bound;  ///< of the absolute value
  };

  DType random_dtype();
  Scalar special_number(DType dtype);
  Shape random_shape();

  void keep(NodeRef ref, double bound);
  void keep_rounded(const NodeRef& x);

  Value any();
  Value number();
  Value floating();
  Value like(const Value& value);
  Value within(const Value& value, double most);
  void fit_product(Value& a, Value& b, double summed);
  NodeRef ids_like(const NodeRef& x, std::int64_t extent);

  int dim_of(const Shape& shape) { return below(shape.size()); }

  void add_op();
  void add_unary();
  void add_float_unary();
  void add_binary();
  void add_layout();
  void add_broadcast();
  void add_reshape();
  void add_reduction();
  void add_cumulative(Value value, std::int64_t dim);
  void add_product();
  void add_convolution();
  void add_windows();
  void add_sums();
  Value contract(const Value& value, std::int64_t dim);
  Value linear(const Value& value, const Value& source, std::int64_t dim);
  void add_indexed();
  void add_decomposition(NodeRef x);
  void add_scatter(Value value, const NodeRef& source, std::int64_t dim);
  void add_dynamic();
  void add_leaf();
  void add_flattened();
  Value layer(const Value& value, std::vector<NodeId>& weights);
  void add_gradient();
  NodeRef carried(const Value& value);
  void add_scan();
  void add_cond();
  void add_scan_gradient();

  std::mt19937 random_;
  NodeRef root_;
  const bool has_special_values_, recomputes_;
  std::vector<Value> values_;
  bool in_body_ = false;  ///< of a scan: without gradients
};

}  // namespace shardwise
