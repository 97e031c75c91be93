// Traced mode: a two-layer perceptron written as if for one device. Only marks on the batch and on
// two weights say how it runs on eight: the other shardings, and the collectives, follow from them.

#include <cstdio>
#include <string>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/tracer.h"

namespace sw = shardwise;

int main() {
  sw::Devices devices(8);
  sw::Tracer tracer(devices, {.mesh = sw::Mesh::parse("data=4,model=2")});

  // To learn: |a - b| from 64 pairs (a, b).
  std::vector<float> pairs, answers;
  for (int i = 0; i < 64; ++i) {
    const float a = static_cast<float>(i % 8) / 8, b = static_cast<float>(i / 8) / 8;
    pairs.insert(pairs.end(), {a, b});
    answers.push_back(a > b ? a - b : b - a);
  }
  sw::Tensor x = tracer.tensor({sw::DType::f32, {64, 2}}, pairs, "pairs");
  sw::Tensor y = tracer.tensor({sw::DType::f32, {64}}, answers, "answers");
  std::vector<sw::Tensor> weights = {sw::normal(tracer, {sw::DType::f32, {2, 32}}, 0.7, 1, "w1"),
                                     sw::full(tracer, {sw::DType::f32, {32}}, 0, "b1"),
                                     sw::normal(tracer, {sw::DType::f32, {32}}, 0.2, 2, "w2")};

  sw::mark_sharding(x, {{"data"}, {}});
  sw::mark_sharding(weights[0], {{}, {"model"}});
  sw::mark_sharding(weights[2], {{"model"}});

  for (int step = 0; step <= 400; ++step) {
    sw::Tensor loss = [&] {
      const sw::Tensor hidden = sw::relu(sw::linear(x, weights[0], weights[1]));
      const sw::Tensor error = sw::einsum("bh,h->b", hidden, weights[2]) - y;
      const sw::Tensor mean_square = sw::mean(error * error);
      sw::sgd(weights, sw::grad(mean_square, weights), 0.2);
      return mean_square;
    }();
    tracer.mark_step();
    if (step % 100 == 0) std::printf("step %3d: loss %.3f\n", step, loss.item());
    if (step > 0) continue;
    std::printf("b1 is cut over \"%s\", which nobody has marked:\n",
                weights[1].array().sharding().spec().to_string().c_str());
    const sw::Executable& first = *tracer.last();
    std::printf("%s", first.explain(3).c_str());
  }

  const sw::Executable& program = *tracer.last();
  std::printf("traced %d steps, planned %d\n", static_cast<int>(tracer.counters().traces),
              static_cast<int>(tracer.counters().traces - tracer.counters().hits));
  for (const sw::CollectiveTotal& total : program.collectives()) {
    std::printf("%s of %d tensors: %zu bytes\n", std::string(sw::name(total.kind)).c_str(),
                static_cast<int>(total.tensors), total.bytes);
  }
  const bool planned = program.memory(0).peak_bytes == devices.at(0).memory().peak_bytes;
  std::printf("the peak of memory is %s\n", planned ? "as planned" : "not as planned");
}
