#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "random_program.h"
#include "shardwise/runtime/nn/images.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/spmd/executable.h"

// Layers for pictures, and what layers_test.py is to ask torch for.

namespace shardwise {
namespace {

class LayerCase {
 public:
  explicit LayerCase(std::uint32_t seed) : random_(seed), marks_(seed) {}

  std::int64_t draw(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_()) % (most - least + 1);
  }

  /// An input of f64; gradients are wanted unless it is state.
  NodeRef input(Shape shape, bool is_state = false) {
    const NodeRef x{&graph_, append_input(graph_, {DType::f64, shape}, "x")};
    std::vector<double> values;
    for (std::int64_t i = 0; i < num_elements(shape); ++i) {
      values.push_back(static_cast<double>(draw(-1000, 1000)) / 700 + (is_state ? 2 : 0));
    }
    if (!is_state) wrt_.push_back(x.id);
    inputs_.push_back(std::move(values));
    return x;
  }

  void result(const NodeRef& x) { graph_.outputs.push_back(x.id); }

  /// The case as JSON: inputs, and results with gradients of the first one, each as one device and
  /// as others give them.
  std::string finish(const std::string& layer, const std::string& told) {
    const NodeRef first{&graph_, graph_.outputs.front()};
    const std::vector<NodeId> wrt = wrt_;
    const NodeRef weights = input(first.type().shape);
    for (const NodeId id : grad(graph_, sum(first * weights).id, wrt)) {
      graph_.outputs.push_back(id);
    }
    const std::string alone = run(Mesh::line(1));
    const Mesh mesh = marks_.random_mesh();
    for (Node& node : graph_.nodes) {
      if (draw(0, 3) == 0) node.mark = marks_.random_spec(mesh, node.type.shape);
    }
    std::string inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      inputs +=
          (i == 0 ? "" : ",") + array(graph_.node(graph_.inputs[i].node).type.shape, inputs_[i]);
    }
    return fmt::format(R"({{"layer":"{}",{},"inputs":[{}],"found":[{},{}]}})", layer, told, inputs,
                       alone, run(mesh));
  }

 private:
  static std::string array(const Shape& shape, const std::vector<double>& values) {
    return fmt::format("[[{}],[{}]]", fmt::join(shape.begin(), shape.end(), ","),
                       fmt::join(values, ","));
  }

  std::string run(const Mesh& mesh) const {
    Devices devices(10, {.threads = 1});
    const Executable executable(std::make_shared<const Graph>(graph_), mesh, {});
    std::vector<ShardedArray> arrays;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      arrays.push_back(ShardedArray::from_host(devices, executable.input_spec(i),
                                               std::as_bytes(std::span(inputs_[i]))));
    }
    std::vector<std::string> outputs;
    for (const ShardedArray& output : executable.run(devices, std::move(arrays))) {
      outputs.push_back(array(output.shape(), output.to_vector<double>()));
    }
    return fmt::format("[{}]", fmt::join(outputs, ","));
  }

  std::mt19937 random_;
  RandomProgram marks_;
  GraphBuilder graph_;
  std::vector<NodeId> wrt_;
  std::vector<std::vector<double>> inputs_;
};

std::string json(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ","));
}

std::string a_pool(LayerCase& one) {
  const bool is_max = one.draw(0, 1) == 0;
  const NodeRef x = one.input({one.draw(1, 3), one.draw(1, 4), one.draw(4, 11), one.draw(4, 9)});
  Dims window;
  PoolOptions options{.count_include_pad = one.draw(0, 1) == 0};
  for (int i = 0; i < 2; ++i) {
    window.push_back(one.draw(1, 3));
    options.stride.push_back(one.draw(1, 3));
    options.low.push_back(one.draw(0, window[window.size() - 1] / 2));
    options.dilation.push_back(is_max && window[window.size() - 1] < 3 ? one.draw(1, 2) : 1);
  }
  options.high = options.low;
  one.result(is_max ? max_pool(x, {2, 3}, window, options)
                    : avg_pool(x, {-2, -1}, window, options));
  return one.finish(
      is_max ? "max_pool" : "avg_pool",
      fmt::format(R"("window":{},"stride":{},"padding":{},"dilation":{},"count_include_pad":{})",
                  json(window), json(options.stride), json(options.low), json(options.dilation),
                  options.count_include_pad));
}

std::string a_resize(LayerCase& one) {
  const NodeRef x = one.input({one.draw(1, 2), one.draw(1, 3), one.draw(1, 9), one.draw(1, 8)});
  const Dims extents{one.draw(1, 18), one.draw(1, 8) * one.draw(1, 2)};
  const auto how = static_cast<Interpolation>(one.draw(0, 2));
  one.result(resize(x, {2, 3}, extents, how));
  constexpr const char* kNames[] = {"nearest-exact", "nearest", "bilinear"};
  return one.finish("resize", fmt::format(R"("extents":{},"mode":"{}")", json(extents),
                                          kNames[static_cast<int>(how)]));
}

std::string a_batchnorm(LayerCase& one, bool is_training) {
  const std::int64_t features = one.draw(1, 5);
  const NodeRef x = one.input({one.draw(2, 4), features, one.draw(1, 6), one.draw(1, 4)});
  const NodeRef gain = one.input({features}), bias = one.input({features});
  const Statistics<NodeRef> running{one.input({features}, true), one.input({features}, true)};
  if (!is_training) {
    one.result(normalize(x, running, gain, bias));
    return one.finish("batchnorm", R"("training":false)");
  }
  const BatchNormed<NodeRef> made = batchnorm(x, gain, bias, running);
  one.result(made.result);
  one.result(made.running.mean);
  one.result(made.running.variance);
  return one.finish("batchnorm", R"("training":true)");
}

std::string a_groupnorm(LayerCase& one) {
  const std::int64_t groups = one.draw(1, 3), features = groups * one.draw(1, 3);
  const NodeRef x = one.input({one.draw(1, 4), features, one.draw(2, 6), one.draw(1, 4)});
  const NodeRef gain = one.input({features}), bias = one.input({features});
  one.result(groupnorm(x, gain, bias, groups));
  return one.finish("groupnorm", fmt::format(R"("groups":{})", groups));
}

}  // namespace
}  // namespace shardwise

/// layer_cases PATH COUNT
int main(int, char** words) {
  using namespace shardwise;
  std::vector<std::string> cases;
  const auto count = static_cast<std::uint32_t>(std::stoi(words[2]));
  for (std::uint32_t seed = 0; seed < count; ++seed) {
    LayerCase one(seed);
    const std::uint32_t which = seed % 7;
    cases.push_back(which < 2   ? a_pool(one)
                    : which < 4 ? a_resize(one)
                    : which < 6 ? a_batchnorm(one, which == 4)
                                : a_groupnorm(one));
  }
  std::ofstream(words[1]) << fmt::format("[{}]\n", fmt::join(cases, ",\n"));
}
