#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// Makes programs of random ops whose values are small integers, so that every order of additions
/// gives the same bits. What does not give integers is rounded at once, element by element.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint32_t seed) : random_(seed), root_{&graph, 0} {
    const int inputs = 1 + below(3);
    for (int i = 0; i < inputs; ++i) {
      const NodeId id = append_input(graph, {DType::f32, random_shape()}, "in" + std::to_string(i));
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

  /// Marks some inputs and nodes at random.
  void mark(const Mesh& mesh) {
    for (Node& node : graph.nodes) {
      if (below(node.op == Op::input ? 2 : 7) == 0) node.mark = random_spec(mesh, node.type.shape);
    }
  }

  Mesh random_mesh() {
    static const char* const kMeshes[] = {
        "",        "x=2",     "x=3",         "x=5",     "x=8", "x=2,y=2", "x=2,y=3",
        "x=4,y=2", "x=2,y=4", "x=2,y=2,z=2", "x=3,y=2", "x=7", "x=1,y=4", "x=2,y=2@3,1,0,2"};
    return Mesh::parse(kMeshes[below(std::size(kMeshes))]);
  }

  PartitionSpec random_spec(const Mesh& mesh, const Shape& shape) {
    std::vector<PartitionSpec::Entry> entries(shape.size());
    for (const Axis& axis : mesh.axes()) {
      if (shape.empty() || below(3) == 0) continue;
      entries[as_size(below(shape.size()))].push_back(axis.name);
    }
    return PartitionSpec(std::move(entries));
  }

  /// Integers from -8 to 8.
  std::vector<float> random_values(std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(below(17) - 8));
    return values;
  }

  Graph graph;

 private:
  struct Value {
    NodeRef ref;
    double bound;  ///< of the absolute value
  };

  template <class Count>
  int below(Count count) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(count));
  }

  Shape random_shape() {
    static const std::int64_t kExtents[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 0};
    Shape shape;
    for (int rank = below(4); rank > 0; --rank) {
      // Nothing at all is rare, or most programs would be about it.
      shape.push_back(kExtents[below(below(12) == 0 ? 10 : 9)]);
    }
    return shape;
  }

  /// Into the pool; brought back to small numbers where they may get large.
  void keep(NodeRef ref, double bound) {
    const DType dtype = ref.type().dtype;
    if (dtype != DType::boolean && bound > 500) {
      ref = rem(ref, full_like(ref, 17));
      bound = 16;
    }
    values_.push_back({ref, bound});
  }

  /// Whatever it was, it is an integer of at most 64 now.
  void keep_rounded(const NodeRef& x) {
    const NodeRef some = select(is_finite(x), x, full_like(x, 0));
    keep(round(max(min(some * 4.0, full_like(x, 64)), full_like(x, -64))), 64);
  }

  Value any() { return values_[as_size(below(values_.size()))]; }

  /// A number of a floating dtype; an integer or boolean is converted.
  Value floating() {
    Value value = any();
    const DType dtype = value.ref.type().dtype;
    if (dtype != DType::f32 && dtype != DType::f64) {
      value.ref = convert(value.ref, below(3) == 0 ? DType::f64 : DType::f32);
    }
    return value;
  }

  /// Another value of this type: from the pool if there is one, else made from it.
  Value like(const Value& value) {
    std::vector<Value> same;
    for (const Value& other : values_) {
      if (other.ref.type() == value.ref.type()) same.push_back(other);
    }
    if (!same.empty() && below(4) != 0) return same[as_size(below(same.size()))];
    return {value.ref + 1.0, value.bound + 1};
  }

  /// Integers in [0, extent) of i32 or i64, in the shape of x.
  NodeRef ids_like(const NodeRef& x, std::int64_t extent) {
    const DType dtype = below(2) == 0 ? DType::i32 : DType::i64;
    const NodeRef whole = convert(abs(x), dtype);
    return rem(whole, full_like(whole, static_cast<double>(extent)));
  }

  int dim_of(const Shape& shape) { return below(shape.size()); }

  void add_op();
  void add_unary();
  void add_binary();
  void add_layout();
  void add_reduction();
  void add_product();
  void add_indexed();
  void add_leaf();

  std::mt19937 random_;
  NodeRef root_;
  std::vector<Value> values_;
};

}  // namespace shardwise
