#include "model.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"

namespace fashion_mnist {
namespace {

using namespace shardwise;  // an example reads better without prefixes

Tensor logits(const Tensor& image, const std::vector<Tensor>& w) {
  const Tensor x = convert(reshape(image, {image.shape()[0], kPixels}), DType::f32) / 255.0;
  return linear(relu(linear(x, w[0], w[1])), w[2], w[3]);
}

/// Four of the state's arrays, from `first` on.
std::vector<Tensor> tensors(Tracer& tracer, const State& state, std::size_t first,
                            MemoryKind kind) {
  std::vector<Tensor> four;
  for (std::size_t i = first; i < first + 4; ++i) {
    four.push_back(tracer.tensor(state.arrays[i], state.names[i], kind));
  }
  return four;
}

}  // namespace

double train_step(Tracer& tracer, State& state, const Batch& batch, float learning_rate) {
  std::vector<Tensor> w = tensors(tracer, state, 0, MemoryKind::parameter);
  std::vector<Tensor> momenta = tensors(tracer, state, 4, MemoryKind::optimizer);
  state.arrays.clear();  // only the tensors hold them now, so a step can write over them
  const Tensor rate = full(tracer, {DType::f32, {}}, learning_rate, "rate", MemoryKind::array);
  const Tensor loss = [&] {
    const Tensor image = tracer.tensor(batch.fields[0], "image", MemoryKind::loader);
    const Tensor label = tracer.tensor(batch.fields[1], "label", MemoryKind::loader);
    const Tensor mean = cross_entropy(logits(image, w), convert(label, DType::i32));
    sgd_with_momentum(w, momenta, grad(mean, w), rate);
    return mean;
  }();
  tracer.mark_step();
  for (const Tensor& tensor : w) state.arrays.push_back(tensor.array());
  for (const Tensor& tensor : momenta) state.arrays.push_back(tensor.array());
  return loss.item();
}

std::int64_t count_correct(Tracer& tracer, const State& state, const Batch& batch) {
  const Tensor image = tracer.tensor(batch.fields[0], "image", MemoryKind::loader);
  const Tensor label = tracer.tensor(batch.fields[1], "label", MemoryKind::loader);
  const Tensor mask = tracer.tensor(batch.mask, "mask", MemoryKind::loader);
  const std::vector<Tensor> w = tensors(tracer, state, 0, MemoryKind::parameter);
  const Tensor hit = eq(argmax(logits(image, w), 1), convert(label, DType::i32));
  const Tensor valid = logical_and(hit, convert(mask, DType::boolean));
  const Tensor correct = reduce_sum(convert(valid, DType::f32), {0});
  tracer.mark_step();
  return static_cast<std::int64_t>(correct.item());
}

}  // namespace fashion_mnist
