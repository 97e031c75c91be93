#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "shardwise/runtime/nn/images.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/shard/error.h"

namespace convnet {

namespace sw = shardwise;

namespace {

constexpr std::int64_t kLargeImage = 64;

struct Depth {
  std::int64_t depth;
  bool is_bottleneck;  ///< 1x1, 3x3, 1x1 to four times as many features; else 3x3, 3x3
  std::vector<std::int64_t> blocks;  ///< by stage
};

const Depth& depth_of(const Sizes& sizes) {
  static const std::array<Depth, 3> all = {
      Depth{8, false, {1, 1, 1}}, Depth{18, false, {2, 2, 2, 2}}, Depth{50, true, {3, 4, 6, 3}}};
  const auto found = std::ranges::find(all, sizes.depth, &Depth::depth);
  if (found == all.end()) {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("found depth {}, needed 8, 18 or 50", sizes.depth));
  }
  return *found;
}

/// One convolution and the batchnorm after it.
struct Layer {
  std::string name;
  std::int64_t in, out, kernel, stride;
  bool is_relu;
};

/// A residual block: the layers in a row, and the shortcut if it is not x itself.
struct Block {
  std::string name;
  std::vector<Layer> layers;
  std::vector<Layer> shortcut;  ///< none or one
};

struct Architecture {
  Layer stem;
  bool pools;
  std::vector<Block> blocks;
  std::int64_t features;  ///< of the last block
};

Architecture architecture(const Sizes& sizes) {
  const Depth& depth = depth_of(sizes);
  const bool is_large = sizes.image >= kLargeImage;
  const std::int64_t stride = is_large || sizes.depth == 8 ? 2 : 1;
  Architecture made{{"stem", sizes.channels, sizes.width, is_large ? 7 : 3, stride, true},
                    is_large,
                    {},
                    sizes.width};
  for (std::size_t stage = 0; stage < depth.blocks.size(); ++stage) {
    const std::int64_t inner = sizes.width << stage, out = inner * (depth.is_bottleneck ? 4 : 1);
    for (std::int64_t number = 0; number < depth.blocks[stage]; ++number) {
      const std::int64_t in = made.features, by = stage > 0 && number == 0 ? 2 : 1;
      Block block{fmt::format("s{}.b{}", stage, number), {}, {}};
      const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t kernel,
                           std::int64_t step, bool is_relu) {
        block.layers.push_back({fmt::format("{}.conv{}", block.name, block.layers.size()), from, to,
                                kernel, step, is_relu});
      };
      if (depth.is_bottleneck) {
        add(in, inner, 1, 1, true);
        add(inner, inner, 3, by, true);
        add(inner, out, 1, 1, false);
      } else {
        add(in, out, 3, by, true);
        add(out, out, 3, 1, false);
      }
      if (in != out || by != 1) {
        block.shortcut.push_back({block.name + ".shortcut", in, out, 1, by, false});
      }
      made.blocks.push_back(std::move(block));
      made.features = out;
    }
  }
  return made;
}

void for_each_layer(const Architecture& all, const std::function<void(const Layer&)>& body) {
  body(all.stem);
  for (const Block& block : all.blocks) {
    for (const Layer& layer : block.layers) body(layer);
    for (const Layer& layer : block.shortcut) body(layer);
  }
}

}  // namespace

void check(const Sizes& sizes) { depth_of(sizes); }

std::vector<Weight> weights(const Sizes& sizes) {
  std::vector<Weight> all;
  const Architecture made = architecture(sizes);
  for_each_layer(made, [&](const Layer& layer) {
    const double fan_out = static_cast<double>(layer.out * layer.kernel * layer.kernel);
    all.push_back(
        {layer.name, {layer.out, layer.in, layer.kernel, layer.kernel}, std::sqrt(2 / fan_out)});
    // A block begins as its shortcut: its last gain is 0 (Goyal et al., 2017).
    const bool ends_block = !layer.is_relu && layer.name.find("shortcut") == std::string::npos;
    all.push_back({layer.name + ".gain", {layer.out}, 0, ends_block ? 0.0 : 1.0});
    all.push_back({layer.name + ".bias", {layer.out}, 0});
  });
  all.push_back(
      {"head", {made.features, sizes.classes}, 1 / std::sqrt(static_cast<double>(made.features))});
  all.push_back({"head.bias", {sizes.classes}, 0});
  return all;
}

std::vector<Weight> statistics(const Sizes& sizes) {
  std::vector<Weight> all;
  for_each_layer(architecture(sizes), [&](const Layer& layer) {
    all.push_back({layer.name + ".mean", {layer.out}, 0, 0});
    all.push_back({layer.name + ".variance", {layer.out}, 0, 1});
  });
  return all;
}

Plan::Plan(std::string_view name, const sw::Mesh& mesh) {
  const bool has_space =
      std::ranges::any_of(mesh.axes(), [](const sw::Axis& axis) { return axis.name == "space"; });
  if (name != "batch" && name != "spatial" && name != "both") {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("found plan \"{}\", needed batch, spatial or both", name));
  }
  if (name == "both" && !has_space) {
    throw sw::Error(
        sw::ErrorCode::invalid_argument,
        fmt::format("plan \"both\": found mesh \"{}\", needed one with an axis \"space\"",
                    mesh.to_string()));
  }
  for (const sw::Axis& axis : mesh.axes()) {
    const bool is_rows = name == "spatial" || (name == "both" && axis.name == "space");
    (is_rows ? rows_ : images_).push_back(axis.name);
  }
}

sw::PartitionSpec Plan::images() const { return {images_, rows_, {}}; }
sw::PartitionSpec Plan::labels() const { return {images_}; }

sw::Tensor logits(sw::Tracer& tracer, const Sizes& sizes, const Tensors& weights,
                  Tensors& statistics, const sw::Tensor& image, bool is_training) {
  const Architecture made = architecture(sizes);
  const auto apply = [&](const Layer& layer, const sw::Tensor& x) {
    const sw::Tensor y = sw::conv2d(x, weights.at(layer.name),
                                    {.stride = layer.stride, .padding = layer.kernel / 2});
    sw::Statistics<sw::Tensor> running{statistics.at(layer.name + ".mean"),
                                       statistics.at(layer.name + ".variance")};
    const sw::Tensor &gain = weights.at(layer.name + ".gain"),
                     &bias = weights.at(layer.name + ".bias");
    if (!is_training) {
      const sw::Tensor normed = sw::normalize(y, running, gain, bias);
      return layer.is_relu ? sw::relu(normed) : normed;
    }
    const sw::BatchNormed<sw::Tensor> normed = sw::batchnorm(y, gain, bias, running);
    statistics[layer.name + ".mean"] = normed.running.mean;
    statistics[layer.name + ".variance"] = normed.running.variance;
    return layer.is_relu ? sw::relu(normed.result) : normed.result;
  };
  sw::Tensor x;
  {
    const auto in_stem = tracer.scope("stem");
    x = apply(made.stem, image);
    if (made.pools) {
      x = sw::max_pool(x, {2, 3}, {3, 3}, {.stride = {2, 2}, .low = {1, 1}, .high = {1, 1}});
    }
  }
  for (const Block& block : made.blocks) {
    const auto in_block = tracer.scope(block.name);
    sw::Tensor y = x;
    for (const Layer& layer : block.layers) y = apply(layer, y);
    for (const Layer& layer : block.shortcut) x = apply(layer, x);
    x = sw::relu(x + y);
  }
  const auto in_head = tracer.scope("head");
  return sw::linear(sw::mean(x, {2, 3}), weights.at("head"), weights.at("head.bias"));
}

}  // namespace convnet
