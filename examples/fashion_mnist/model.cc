#include "model.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/manual.h"
#include "shardwise/shard/host/random.h"

namespace fashion_mnist {
namespace {

namespace sw = shardwise;
using Value = sw::ManualRegion::Value;

constexpr float kMomentum = 0.9f;

const float* floats(const sw::ConstBoxView& view) {
  return reinterpret_cast<const float*>(view.data);
}
float* floats(const sw::BoxView& view) { return reinterpret_cast<float*>(view.data); }

sw::ConstMatrix matrix(const sw::ConstBoxView& view, sw::Transpose transpose = sw::Transpose::no) {
  return {floats(view), view.box.extent(0), view.box.extent(1), transpose};
}
sw::Matrix matrix(const sw::BoxView& view) {
  return {floats(view), view.box.extent(0), view.box.extent(1)};
}
sw::ConstMatrix read_back(const sw::BoxView& view, sw::Transpose transpose = sw::Transpose::no) {
  return {floats(view), view.box.extent(0), view.box.extent(1), transpose};
}

sw::ManualRegion::Output f32(const sw::Shape& shape, const char* spec) {
  return {sw::DType::f32, shape, sw::PartitionSpec::parse(spec)};
}

/// A number in [0, 1) from a counter.
double uniform(std::uint64_t counter) {
  return static_cast<double>(sw::splitmix64(counter) >> 11) * 0x1.0p-53;
}

void fill(const sw::BoxView& view, std::int64_t columns, double scale, std::uint64_t stream) {
  float* out = floats(view);
  for (std::int64_t row = view.box.begin(0); row < view.box.end(0); ++row) {
    for (std::int64_t column = view.box.begin(1); column < view.box.end(1); ++column) {
      const auto index = static_cast<std::uint64_t>(row * columns + column);
      *out++ = static_cast<float>(scale * (2 * uniform((stream << 32) + index) - 1));
    }
  }
}

/// x = image / 255, hidden = relu(x w1 + b1), partial logits = hidden w2 (a part of the sum per
/// device along "model").
void forward(const sw::LocalContext& c) {
  const auto& image = c.inputs[0];
  const std::int64_t rows = image.box.extent(0);
  float* x = floats(c.outputs[0]);
  for (std::int64_t i = 0; i < rows * kPixels; ++i) {
    x[i] = static_cast<float>(std::to_integer<int>(image.data[i])) * (1.0f / 255);
  }
  sw::gemm(read_back(c.outputs[0]), matrix(c.inputs[1]), matrix(c.outputs[1]));
  const float* b1 = floats(c.inputs[2]);
  float* hidden = floats(c.outputs[1]);
  const std::int64_t width = c.outputs[1].box.extent(1);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    hidden[i] = std::max(hidden[i] + b1[i % width], 0.0f);
  }
  sw::gemm(read_back(c.outputs[1]), matrix(c.inputs[3]), matrix(c.outputs[2]));
}

/// Softmax cross entropy: the rows' summed loss, and the gradient of the mean loss by the logits.
double cross_entropy(const float* logits, const float* b2, const std::byte* labels,
                     std::int64_t rows, std::int64_t batch, float* gradient) {
  double loss = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* z = logits + row * kClasses;
    float* g = gradient + row * kClasses;
    std::array<double, kClasses> shifted;
    for (std::int64_t k = 0; k < kClasses; ++k) shifted[static_cast<std::size_t>(k)] = z[k] + b2[k];
    const double top = *std::max_element(shifted.begin(), shifted.end());
    double sum = 0;
    for (double& s : shifted) sum += std::exp(s -= top);
    const auto label = std::to_integer<std::size_t>(labels[row]);
    loss += std::log(sum) - shifted[label];
    for (std::size_t k = 0; k < shifted.size(); ++k) {
      const double target = k == label ? 1 : 0;
      g[k] = static_cast<float>((std::exp(shifted[k]) / sum - target) / static_cast<double>(batch));
    }
  }
  return loss;
}

void sum_rows(const float* matrix_data, std::int64_t rows, std::int64_t columns, float* out) {
  std::fill(out, out + columns, 0.0f);
  for (std::int64_t i = 0; i < rows * columns; ++i) out[i % columns] += matrix_data[i];
}

/// inputs: logits, labels, x, hidden, w2, b2; outputs: loss, dlogits, dhidden, dw1, db1, dw2, db2.
void backward(const sw::LocalContext& c, std::int64_t batch) {
  const std::int64_t rows = c.inputs[0].box.extent(0);
  float* dlogits = floats(c.outputs[1]);
  floats(c.outputs[0])[0] =
      static_cast<float>(cross_entropy(floats(c.inputs[0]), floats(c.inputs[5]), c.inputs[1].data,
                                       rows, batch, dlogits) /
                         static_cast<double>(batch));

  sw::gemm(read_back(c.outputs[1]), matrix(c.inputs[4], sw::Transpose::yes), matrix(c.outputs[2]));
  const float* hidden = floats(c.inputs[3]);
  float* dhidden = floats(c.outputs[2]);
  const std::int64_t width = c.inputs[3].box.extent(1);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    if (hidden[i] <= 0) dhidden[i] = 0;
  }
  sw::gemm(matrix(c.inputs[2], sw::Transpose::yes), read_back(c.outputs[2]), matrix(c.outputs[3]));
  sum_rows(dhidden, rows, width, floats(c.outputs[4]));
  sw::gemm(matrix(c.inputs[3], sw::Transpose::yes), read_back(c.outputs[1]), matrix(c.outputs[5]));
  sum_rows(dlogits, rows, kClasses, floats(c.outputs[6]));
}

/// inputs: parameter, momentum, gradient; outputs: the new parameter and momentum.
void descend(const sw::LocalContext& c, float learning_rate) {
  const std::int64_t count = c.inputs[0].box.num_elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const float momentum = kMomentum * floats(c.inputs[1])[i] + floats(c.inputs[2])[i];
    floats(c.outputs[1])[i] = momentum;
    floats(c.outputs[0])[i] = floats(c.inputs[0])[i] - learning_rate * momentum;
  }
}

struct Forward {
  Value x, hidden, logits;
};

Forward record_forward(sw::ManualRegion& region, Value image, std::int64_t batch, Value w1,
                       Value b1, Value w2) {
  const auto made =
      region.map("forward", {image, w1, b1, w2},
                 {f32({batch, kPixels}, "data,-"), f32({batch, kHidden}, "data,model"),
                  f32({batch, kClasses}, "data,-")},
                 forward);
  return {made[0], made[1], region.all_reduce(made[2], {"model"}, sw::Reduction::sum)};
}

}  // namespace

State describe(const sw::Mesh& mesh) {
  State state;
  const auto add = [&](const std::string& name, const sw::Shape& shape, const char* spec) {
    state.names.push_back(name);
    state.specs.push_back(
        {sw::DType::f32, shape, sw::Sharding(mesh, sw::PartitionSpec::parse(spec))});
  };
  for (const char* suffix : {"", ".momentum"}) {
    add(std::string("w1") + suffix, {kPixels, kHidden}, "-,model");
    add(std::string("b1") + suffix, {kHidden}, "model");
    add(std::string("w2") + suffix, {kHidden, kClasses}, "model,-");
    add(std::string("b2") + suffix, {kClasses}, "-");
  }
  return state;
}

State initial_state(sw::Devices& devices, const sw::Mesh& mesh, std::uint64_t seed) {
  State state = describe(mesh);
  for (std::size_t i = 0; i < state.specs.size(); ++i) {
    const sw::Shape& shape = state.specs[i].shape;
    const bool weight = i < 4 && shape.size() == 2;
    state.arrays.push_back(sw::ShardedArray::from_callback(
        devices, state.specs[i],
        [&](const sw::BoxView& view) {
          if (weight) {
            fill(view, shape[1], std::sqrt(6.0 / static_cast<double>(shape[0])), seed * 8 + i);
          } else {
            std::fill_n(floats(view), view.box.num_elements(), 0.0f);
          }
        },
        state.names[i]));
  }
  return state;
}

State restore(sw::Devices& devices, const sw::Mesh& mesh, const sw::CheckpointReader& reader) {
  State state = describe(mesh);
  std::vector<sw::TensorRequest> requests;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    requests.push_back({state.names[i], state.specs[i]});
  }
  state.arrays = reader.restore(devices, requests);
  return state;
}

std::vector<sw::TensorSource> sources(const State& state) {
  std::vector<sw::TensorSource> list;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    list.push_back(sw::tensor_source(state.names[i], state.arrays[i]));
  }
  return list;
}

double train_step(sw::Devices& devices, State& state, const sw::Batch& batch, float learning_rate) {
  const std::int64_t rows = batch.fields[0].shape()[0];
  sw::ManualRegion region(devices, state.specs[0].sharding.mesh());
  std::vector<Value> in;
  for (const sw::ShardedArray& array : state.arrays) in.push_back(region.input(array));
  const Value image = region.input(batch.fields[0]), label = region.input(batch.fields[1]);

  const Forward f = record_forward(region, image, rows, in[0], in[1], in[2]);
  const auto made = region.map(
      "backward", {f.logits, label, f.x, f.hidden, in[2], in[3]},
      {f32({1}, "-"), f32({rows, kClasses}, "data,-"), f32({rows, kHidden}, "data,model"),
       f32({kPixels, kHidden}, "-,model"), f32({kHidden}, "model"),
       f32({kHidden, kClasses}, "model,-"), f32({kClasses}, "-")},
      [rows](const sw::LocalContext& c) { backward(c, rows); });

  const Value loss = region.all_reduce(made[0], {"data"}, sw::Reduction::sum);
  std::vector<Value> updated(state.arrays.size());
  for (std::size_t i = 0; i < 4; ++i) {
    const Value gradient = region.all_reduce(made[3 + i], {"data"}, sw::Reduction::sum);
    const auto& spec = state.specs[i];
    const auto next =
        region.map("descend " + state.names[i], {in[i], in[i + 4], gradient},
                   {{spec.dtype, spec.shape, spec.sharding.spec()},
                    {spec.dtype, spec.shape, spec.sharding.spec()}},
                   [learning_rate](const sw::LocalContext& c) { descend(c, learning_rate); });
    updated[i] = next[0];
    updated[i + 4] = next[1];
  }
  region.run();
  for (std::size_t i = 0; i < updated.size(); ++i) state.arrays[i] = region.output(updated[i]);
  return floats(region.output(loss).shard(0))[0];
}

std::int64_t count_correct(sw::Devices& devices, const State& state, const sw::Batch& batch) {
  const std::int64_t rows = batch.fields[0].shape()[0];
  sw::ManualRegion region(devices, state.specs[0].sharding.mesh());
  const Value b2 = region.input(state.arrays[3]), label = region.input(batch.fields[1]);
  const Value mask = region.input(batch.mask);
  const Forward f =
      record_forward(region, region.input(batch.fields[0]), rows, region.input(state.arrays[0]),
                     region.input(state.arrays[1]), region.input(state.arrays[2]));
  const auto counted = region.map(
      "count", {f.logits, label, mask, b2}, {{sw::DType::i64, {1}, sw::PartitionSpec::parse("-")}},
      [](const sw::LocalContext& c) {
        const float* bias = floats(c.inputs[3]);
        std::int64_t correct = 0;
        for (std::int64_t row = 0; row < c.inputs[0].box.extent(0); ++row) {
          std::array<float, kClasses> z;
          for (std::size_t k = 0; k < z.size(); ++k) {
            z[k] = floats(c.inputs[0])[row * kClasses + static_cast<std::int64_t>(k)] + bias[k];
          }
          const auto best = std::max_element(z.begin(), z.end()) - z.begin();
          const bool valid = std::to_integer<int>(c.inputs[2].data[row]) != 0;
          correct +=
              valid && best == std::to_integer<std::ptrdiff_t>(c.inputs[1].data[row]) ? 1 : 0;
        }
        *reinterpret_cast<std::int64_t*>(c.outputs[0].data) = correct;
      });
  const Value total = region.all_reduce(counted[0], {"data"}, sw::Reduction::sum);
  region.run();
  return *reinterpret_cast<const std::int64_t*>(region.output(total).shard(0).data);
}

}  // namespace fashion_mnist
