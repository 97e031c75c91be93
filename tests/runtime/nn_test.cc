#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/images.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using Doubles = std::vector<double>;
constexpr std::int64_t kMeshDevices = 4;
const char* const kMeshes[] = {"data=1", "data=2,model=2"};

Doubles numbers(const Tensor& tensor) {
  const std::vector<std::byte> bytes = tensor.array().to_host();
  Doubles values(as_size(num_elements(tensor.shape())));
  convert(tensor.dtype(), bytes.data(), DType::f64, reinterpret_cast<std::byte*>(values.data()),
          values.size());
  return values;
}

/// Doubles of about 1 that differ from each other.
Doubles some(const Shape& shape, std::size_t seed) {
  Doubles values(as_size(num_elements(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1.3 * std::sin(static_cast<double>(i + 1) * (2.1 + static_cast<double>(seed)));
  }
  return values;
}

Tensor tensor(Tracer& tracer, const Shape& shape, const Doubles& values, std::string_view label) {
  return tracer.tensor({DType::f64, shape}, std::as_bytes(std::span(values)), label);
}

void expect_near(const Doubles& found, const Doubles& needed, double tolerance) {
  ASSERT_EQ(found.size(), needed.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], needed[i], tolerance * (1 + std::abs(needed[i]))) << "element " << i;
  }
}

/// A composite, and the same by plain loops.
struct NnCase {
  std::string name;
  std::vector<Shape> shapes;
  std::vector<std::string> marks;
  std::function<Tensor(Tracer&, const std::vector<Tensor>&)> traced;
  std::function<Doubles(const std::vector<Doubles>&)> plain;
};

void PrintTo(const NnCase& one, std::ostream* out) { *out << one.name; }

/// Sum of the result's elements, each times its weight.
double weighted(const Doubles& result, const Doubles& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < result.size(); ++i) sum += result[i] * weights[i];
  return sum;
}

Doubles central_differences(const NnCase& one, std::vector<Doubles> inputs, std::size_t input,
                            const Doubles& weights) {
  constexpr double kStep = 1e-5;
  Doubles slopes;
  for (std::size_t i = 0; i < inputs[input].size(); ++i) {
    const double here = inputs[input][i];
    inputs[input][i] = here + kStep;
    const double above = weighted(one.plain(inputs), weights);
    inputs[input][i] = here - kStep;
    const double below = weighted(one.plain(inputs), weights);
    inputs[input][i] = here;
    slopes.push_back((above - below) / (2 * kStep));
  }
  return slopes;
}

class Composite : public testing::TestWithParam<NnCase> {};

TEST_P(Composite, EqualsPlainLoopsAndItsGradientIsTheirSlope) {
  const NnCase& one = GetParam();
  std::vector<Doubles> inputs;
  for (std::size_t i = 0; i < one.shapes.size(); ++i) inputs.push_back(some(one.shapes[i], i));
  for (const char* const mesh : kMeshes) {
    SCOPED_TRACE(mesh);
    Devices devices(kMeshDevices);
    const bool is_cut = Mesh::parse(mesh).size() > 1;
    Tracer tracer(devices, {.mesh = Mesh::parse(mesh)});
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      tensors.push_back(tensor(tracer, one.shapes[i], inputs[i], "x" + std::to_string(i)));
      if (is_cut) mark_sharding(tensors.back(), PartitionSpec::parse(one.marks[i]));
    }
    const Tensor result = one.traced(tracer, tensors);
    const Doubles weights = some(result.shape(), 7);
    const Tensor loss = reduce_sum(result * tensor(tracer, result.shape(), weights, "weights"),
                                   all_dims(result.shape().size()));
    const std::vector<Tensor> gradients = grad(loss, std::span<const Tensor>(tensors));
    tracer.mark_step();
    expect_near(numbers(result), one.plain(inputs), 1e-12);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      SCOPED_TRACE(i);
      expect_near(numbers(gradients[i]), central_differences(one, inputs, i, weights), 1e-7);
    }
  }
}

// ---- The plain loops.

template <class Function>
auto each(const Function& function) {
  return [function](const std::vector<Doubles>& in) {
    Doubles out;
    for (const double x : in[0]) out.push_back(function(x));
    return out;
  };
}

/// The log-softmax of rows of `width` numbers.
Doubles plain_log_softmax(const Doubles& x, std::size_t width) {
  Doubles out(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += std::exp(x[row + i]);
    for (std::size_t i = 0; i < width; ++i) out[row + i] = x[row + i] - std::log(sum);
  }
  return out;
}

Doubles plain_softmax(const Doubles& x, std::size_t width) {
  Doubles out = plain_log_softmax(x, width);
  for (double& y : out) y = std::exp(y);
  return out;
}

Doubles plain_layernorm(const std::vector<Doubles>& in) {
  const std::size_t width = in[1].size();
  Doubles out(in[0].size());
  for (std::size_t row = 0; row < out.size(); row += width) {
    double mean = 0, square = 0;
    for (std::size_t i = 0; i < width; ++i) mean += in[0][row + i] / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) {
      square += std::pow(in[0][row + i] - mean, 2) / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i) {
      out[row + i] = (in[0][row + i] - mean) / std::sqrt(square + 1e-5) * in[1][i] + in[2][i];
    }
  }
  return out;
}

Doubles plain_rmsnorm(const std::vector<Doubles>& in) {
  const std::size_t width = in[1].size();
  Doubles out(in[0].size());
  for (std::size_t row = 0; row < out.size(); row += width) {
    double square = 0;
    for (std::size_t i = 0; i < width; ++i) {
      square += std::pow(in[0][row + i], 2) / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i) {
      out[row + i] = in[0][row + i] / std::sqrt(square + 1e-6) * in[1][i];
    }
  }
  return out;
}

Doubles plain_linear(const std::vector<Doubles>& in) {
  const std::size_t wide = in[2].size(), narrow = in[1].size() / wide;
  Doubles out(in[0].size() / narrow * wide);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = in[2][i % wide];
    for (std::size_t k = 0; k < narrow; ++k) {
      out[i] += in[0][i / wide * narrow + k] * in[1][k * wide + i % wide];
    }
  }
  return out;
}

/// q [batch, queries, heads, width], k and v [batch, keys, groups, width].
Doubles plain_attention(const std::vector<Doubles>& in, const Shape& q, const Shape& k, Mask mask) {
  const auto at = [](const Shape& s, std::int64_t b, std::int64_t t, std::int64_t h,
                     std::int64_t w) { return as_size(((b * s[1] + t) * s[2] + h) * s[3] + w); };
  Doubles out(in[0].size(), 0.0);
  for (std::int64_t b = 0; b < q[0]; ++b) {
    for (std::int64_t h = 0; h < q[2]; ++h) {
      const std::int64_t g = h * k[2] / q[2];
      for (std::int64_t t = 0; t < q[1]; ++t) {
        const std::int64_t seen = mask == Mask::causal ? t + 1 + k[1] - q[1] : k[1];
        Doubles weights;
        for (std::int64_t s = 0; s < seen; ++s) {
          double score = 0;
          for (std::int64_t w = 0; w < q[3]; ++w) {
            score += in[0][at(q, b, t, h, w)] * in[1][at(k, b, s, g, w)];
          }
          weights.push_back(score / std::sqrt(static_cast<double>(q[3])));
        }
        weights = plain_softmax(weights, weights.size());
        for (std::int64_t s = 0; s < seen; ++s) {
          for (std::int64_t w = 0; w < q[3]; ++w) {
            out[at(q, b, t, h, w)] += weights[as_size(s)] * in[2][at(k, b, s, g, w)];
          }
        }
      }
    }
  }
  return out;
}

/// Of [2, 3, 2, 4].
Doubles plain_rotary(const std::vector<Doubles>& in) {
  Doubles out(in[0].size());
  for (std::size_t head = 0; head < out.size(); head += 4) {
    const double position = static_cast<double>(head / 8 % 3);
    for (std::size_t i = 0; i < 2; ++i) {
      const double angle = position * std::pow(10000.0, -static_cast<double>(i) / 2);
      const double a = in[0][head + i], b = in[0][head + i + 2];
      out[head + i] = a * std::cos(angle) - b * std::sin(angle);
      out[head + i + 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return out;
}

constexpr std::int32_t kLabels[] = {4, 0, 2, 2, 5, 1};

NnCase pointwise(const std::string& name, Tensor (*traced)(const Tensor&),
                 double (*plain)(double)) {
  return {name,
          {{4, 6}},
          {"data,model"},
          [traced](Tracer&, const std::vector<Tensor>& in) { return traced(in[0]); },
          each(plain)};
}

NnCase attending(const std::string& name, const Shape& q, const Shape& k, Mask mask) {
  return {name,
          {q, k, k},
          {"data,-,model,-", "data,-,model,-", "data,-,model,-"},
          [mask](Tracer&, const std::vector<Tensor>& in) {
            return attention(in[0], in[1], in[2], mask);
          },
          [q, k, mask](const std::vector<Doubles>& in) { return plain_attention(in, q, k, mask); }};
}

std::vector<NnCase> cases() {
  return {pointwise("relu", relu<Tensor>, [](double x) { return x > 0 ? x : 0; }),
          pointwise("gelu", gelu<Tensor>,
                    [](double x) {
                      const double inner =
                          std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
                      return 0.5 * x * (1 + std::tanh(inner));
                    }),
          pointwise("gelu_erf", gelu_erf<Tensor>,
                    [](double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }),
          pointwise("silu", silu<Tensor>, [](double x) { return x / (1 + std::exp(-x)); }),
          {"softmax",
           {{3, 4, 6}},
           {"data,-,model"},
           [](Tracer&, const auto& in) { return softmax(in[0], 2); },
           [](const auto& in) { return plain_softmax(in[0], 6); }},
          {"softmax_of_a_middle_dim",
           {{2, 6, 1}},
           {"data,model,-"},
           [](Tracer&, const auto& in) { return softmax(in[0], 1); },
           [](const auto& in) { return plain_softmax(in[0], 6); }},
          {"log_softmax",
           {{5, 6}},
           {"data,model"},
           [](Tracer&, const auto& in) { return log_softmax(in[0], 1); },
           [](const auto& in) { return plain_log_softmax(in[0], 6); }},
          {"variance",
           {{4, 6}},
           {"data,model"},
           [](Tracer&, const auto& in) { return variance(in[0], {1}); },
           [](const auto& in) {
             Doubles out(4, 0.0);
             for (std::size_t i = 0; i < 24; ++i) out[i / 6] += in[0][i] * in[0][i] / 6;
             for (std::size_t row = 0; row < 4; ++row) {
               double sum = 0;
               for (std::size_t i = 0; i < 6; ++i) sum += in[0][row * 6 + i] / 6;
               out[row] -= sum * sum;
             }
             return out;
           }},
          {"layernorm",
           {{2, 3, 8}, {8}, {8}},
           {"data,-,model", "model", "-"},
           [](Tracer&, const auto& in) { return layernorm(in[0], in[1], in[2]); },
           plain_layernorm},
          {"rmsnorm",
           {{2, 3, 8}, {8}},
           {"data,-,-", "model"},
           [](Tracer&, const auto& in) { return rmsnorm(in[0], in[1]); },
           plain_rmsnorm},
          {"linear",
           {{2, 3, 5}, {5, 4}, {4}},
           {"data,-,-", "-,model", "model"},
           [](Tracer&, const auto& in) { return linear(in[0], in[1], in[2]); },
           plain_linear},
          {"linear_of_a_vector",
           {{6}, {6, 4}, {4}},
           {"data", "data,model", "model"},
           [](Tracer&, const auto& in) { return linear(in[0], in[1], in[2]); },
           plain_linear},
          attending("attention", {2, 3, 4, 5}, {2, 3, 4, 5}, Mask::causal),
          attending("attention_without_a_mask", {2, 3, 2, 5}, {2, 4, 2, 5}, Mask::none),
          attending("attention_of_the_last_queries", {1, 2, 2, 3}, {1, 5, 2, 3}, Mask::causal),
          attending("attention_of_grouped_queries", {2, 3, 6, 2}, {2, 3, 2, 2}, Mask::causal),
          {"rotary_embedding",
           {{2, 3, 2, 4}},
           {"data,-,model,-"},
           [](Tracer&, const auto& in) { return rotary_embedding(in[0]); },
           plain_rotary},
          {"cross_entropy",
           {{2, 3, 6}},
           {"data,-,model"},
           [](Tracer& tracer, const auto& in) {
             Tensor labels =
                 tracer.tensor({DType::i32, {2, 3}}, std::as_bytes(std::span(kLabels)), "y");
             return cross_entropy(in[0], labels);
           },
           [](const auto& in) {
             const Doubles logs = plain_log_softmax(in[0], 6);
             double sum = 0;
             for (std::size_t row = 0; row < 6; ++row)
               sum -= logs[row * 6 + as_size(kLabels[row])] / 6;
             return Doubles{sum};
           }}};
}

INSTANTIATE_TEST_SUITE_P(All, Composite, testing::ValuesIn(cases()),
                         [](const auto& each_case) { return each_case.param.name; });

TEST(Relu, KeepsNanAndHasNoSlopeAtZero) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = tensor(tracer, {3}, {0, -1, std::nan("")}, "x");
  const Tensor y = relu(x);
  const std::vector<Tensor> slopes = grad(reduce_sum(y, {0}), {x});
  tracer.mark_step();
  EXPECT_TRUE(std::isnan(numbers(y)[2]));
  EXPECT_EQ(numbers(slopes[0])[0], 0);
  EXPECT_EQ(numbers(slopes[0])[1], 0);
}

TEST(Attention, NamesWhatDoesNotFit) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor q = full(tracer, {DType::f32, {1, 2, 6, 2}}, 1, "q");
  const Tensor k = full(tracer, {DType::f32, {1, 2, 4, 2}}, 1, "k");
  const Tensor flat = full(tracer, {DType::f32, {2, 3}}, 1, "flat");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { attention(q, k, k); }),
            "attention(%0 f32[1, 2, 6, 2], %1 f32[1, 2, 4, 2], %1 f32[1, 2, 4, 2]): found 6 heads "
            "of queries and 4 of keys, needed a multiple");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { attention(flat, flat, flat); }),
            "attention(%2 f32[2, 3], %2 f32[2, 3], %2 f32[2, 3]): found queries f32[2, 3] and keys "
            "f32[2, 3], needed [batch, position, head, width]");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { rotary_embedding(flat); }),
            "rotary_embedding(%2 f32[2, 3]): found f32[2, 3], needed [batch, position, head, "
            "width] of an even width");
}

TEST(Images, LayersNameWhatDoesNotFit) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = full(tracer, {DType::f32, {1, 6, 1, 1}}, 1, "x");
  const Tensor w = full(tracer, {DType::f32, {6}}, 1, "w");
  const auto message = [](const auto& function) {
    return message_of(ErrorCode::invalid_argument, function);
  };
  EXPECT_EQ(message([&] {
              max_pool(x, {2, 3}, {2});
            }),
            "pool(%0 f32[1, 6, 1, 1]): found a window [2] over dims [2, 3], needed dims of the "
            "operand and one number for each in every list");
  EXPECT_EQ(
      message([&] { avg_pool(x, {4}, {2}); }),
      "pool(%0 f32[1, 6, 1, 1]): found a window [2] over dims [4], needed dims of the operand "
      "and one number for each in every list");
  EXPECT_EQ(message([&] {
              resize(x, {2, 3}, {2, 0}, Interpolation::linear);
            }),
            "resize(%0 f32[1, 6, 1, 1]): found dims [2, 3] to be of [2, 0], needed dims of the "
            "operand that are not empty, and for each an extent of at least 1");
  EXPECT_EQ(message([&] {
              batchnorm(x, w, w, {w, w});
            }),
            "batchnorm(%0 f32[1, 6, 1, 1]): found 1 numbers of each feature, needed 2");
  EXPECT_EQ(message([&] { groupnorm(x, w, w, 4); }),
            "groupnorm(%0 f32[1, 6, 1, 1]): found 4 groups, needed [images, features, ..] and a "
            "number that divides the features");
}

TEST(Dropout, KeepsTheSameElementsOnEveryMesh) {
  const std::uint64_t key = 77;
  const Shape shape{64, 50};
  Doubles before;
  for (const char* const mesh : kMeshes) {
    SCOPED_TRACE(mesh);
    Devices devices(kMeshDevices);
    Tracer tracer(devices, {.mesh = Mesh::parse(mesh)});
    Tensor x = full(tracer, {DType::f64, shape}, 3, "x");
    mark_sharding(x, PartitionSpec::parse("data,-"));
    const Tensor seed = tracer.tensor({DType::u64, {}}, std::as_bytes(std::span(&key, 1)), "key");
    const Tensor y = dropout(x, seed, 0.25);
    const std::vector<Tensor> slopes = grad(reduce_sum(y, {0, 1}), {x});
    tracer.mark_step();
    const Doubles values = numbers(y), slope = numbers(slopes[0]);
    double kept = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      kept += values[i] == 0 ? 0 : 1;
      EXPECT_EQ(values[i], values[i] == 0 ? 0 : 4);
      EXPECT_NEAR(slope[i], values[i] / 3, 1e-12);
    }
    EXPECT_NEAR(kept / static_cast<double>(values.size()), 0.75, 0.03);
    if (!before.empty()) {
      EXPECT_EQ(values, before);
    }
    before = values;
  }
}

/// Weights that an optimizer changes by gradients of 2 w.
class Optimizers : public testing::Test {
 protected:
  Tensor state(const Doubles& values, std::string_view label, MemoryKind kind) {
    return tracer.tensor({DType::f64, {static_cast<std::int64_t>(values.size())}},
                         std::as_bytes(std::span(values)), label, kind);
  }

  /// `step` once with the gradients; the weights afterwards.
  template <class Step>
  Doubles run(const Step& step) {
    {
      const std::vector<Tensor> gradients{weights[0] * 2.0};
      step(gradients);
    }
    tracer.mark_step();
    return numbers(weights[0]);
  }

  void SetUp() override {
    weights.push_back(state(w, "w", MemoryKind::parameter));
    mark_sharding(weights[0], PartitionSpec::parse("data"));
  }

  Devices devices{kMeshDevices};
  Tracer tracer{devices, {.mesh = Mesh::parse("data=2,model=2")}};
  Doubles w{1, -2, 3, 0.5};
  std::vector<Tensor> weights;
};

TEST_F(Optimizers, SgdByANumberOrATensor) {
  const Tensor rate = full(tracer, {DType::f64, {}}, 0.1, "rate");
  for (int i = 0; i < 4; ++i) {
    for (double& x : w) x -= 0.1 * 2 * x;
    const Doubles found = run([&](const std::vector<Tensor>& g) {
      i % 2 == 0 ? sgd(weights, g, 0.1) : sgd(weights, g, rate);
    });
    expect_near(found, w, 1e-12);
  }
}

TEST_F(Optimizers, MomentumGathersSpeed) {
  std::vector<Tensor> velocities{state(Doubles(4, 0.0), "v", MemoryKind::optimizer)};
  Doubles v(4, 0.0);
  for (int i = 0; i < 4; ++i) {
    for (std::size_t k = 0; k < 4; ++k) {
      v[k] = 0.9 * v[k] + 2 * w[k];
      w[k] -= 0.1 * v[k];
    }
    const Doubles found =
        run([&](const std::vector<Tensor>& g) { sgd_with_momentum(weights, velocities, g, 0.1); });
    expect_near(found, w, 1e-12);
  }
}

TEST_F(Optimizers, AdamWIsCompiledOnceAndKeepsItsMemory) {
  AdamWState<Tensor> moments{{state(Doubles(4, 0.0), "m", MemoryKind::optimizer)},
                             {state(Doubles(4, 0.0), "v", MemoryKind::optimizer)},
                             full(tracer, {DType::f64, {}}, 0, "steps", MemoryKind::optimizer)};
  Doubles m(4, 0.0), v(4, 0.0);
  for (int t = 1; t <= 6; ++t) {
    for (std::size_t k = 0; k < 4; ++k) {
      const double g = 2 * w[k];
      m[k] = 0.9 * m[k] + 0.1 * g;
      v[k] = 0.999 * v[k] + 0.001 * g * g;
      const double step = m[k] / (1 - std::pow(0.9, t));
      w[k] = w[k] * (1 - 0.01 * 0.1) -
             0.1 * step / (std::sqrt(v[k] / (1 - std::pow(0.999, t))) + 1e-8);
    }
    const Doubles found =
        run([&](const std::vector<Tensor>& g) { adamw(weights, moments, g, 0.1); });
    expect_near(found, w, 1e-12);
  }
  EXPECT_GE(tracer.counters().hits, 4);
  EXPECT_EQ(moments.steps.item(), 6);
  const MemoryStats memory = devices.at(0).memory();
  EXPECT_EQ(memory.in_use_by_kind[static_cast<std::size_t>(MemoryKind::optimizer)], 2 * 16 + 8u);
  EXPECT_EQ(memory.in_use_by_kind[static_cast<std::size_t>(MemoryKind::parameter)], 16u);
}

TEST_F(Optimizers, ClippingBoundsTheNormOfAllTogether) {
  const Tensor other = state({2, 4, 4, 1}, "other", MemoryKind::array);
  for (const double most : {10.0, 0.5}) {
    std::vector<Tensor> gradients{weights[0], other};
    const Tensor norm = clip_by_global_norm(gradients, most);
    tracer.mark_step();
    const double length = std::sqrt(1 + 4 + 9 + 0.25 + 4 + 16 + 16 + 1);
    EXPECT_NEAR(norm.item(), length, 1e-12);
    const double factor = std::min(1.0, most / length);
    expect_near(numbers(gradients[0]), {factor, -2 * factor, 3 * factor, 0.5 * factor}, 1e-12);
    expect_near(numbers(gradients[1]), {2 * factor, 4 * factor, 4 * factor, factor}, 1e-12);
  }
}

TEST(Clipping, LeavesGradientsOfZeroAlone) {
  Devices devices(1);
  Tracer tracer(devices);
  std::vector<Tensor> gradients{full(tracer, {DType::f32, {3}}, 0, "g")};
  clip_by_global_norm(gradients, 1);
  tracer.mark_step();
  EXPECT_EQ(numbers(gradients[0]), Doubles(3, 0.0));
}

TEST(Init, NormalDependsOnTheSeedAlone) {
  Devices devices(1);
  Tracer tracer(devices);
  const auto values = [&](std::uint64_t seed) {
    const Tensor x = identity(normal(tracer, {DType::f32, {100, 100}}, 0.5, seed, "x"));
    tracer.mark_step();
    return numbers(x);
  };
  const Doubles first = values(3);
  EXPECT_EQ(first, values(3));
  EXPECT_NE(first, values(4));
  double sum = 0, square = 0;
  for (const double x : first) {
    sum += x / 1e4;
    square += x * x / 1e4;
  }
  EXPECT_NEAR(sum, 0, 0.02);
  EXPECT_NEAR(std::sqrt(square), 0.5, 0.02);
}

}  // namespace
}  // namespace shardwise
