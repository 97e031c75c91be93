#include "model.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"

namespace fashion_mnist {
namespace {

namespace sw = shardwise;

sw::Tensor logits(const sw::Tensor& image, const std::vector<sw::Tensor>& w) {
  const sw::Tensor x =
      sw::convert(sw::reshape(image, {image.shape()[0], kPixels}), sw::DType::f32) / 255.0;
  return sw::linear(sw::relu(sw::linear(x, w[0], w[1])), w[2], w[3]);
}

/// Four of the state's arrays, from `first` on.
std::vector<sw::Tensor> tensors(sw::Tracer& tracer, const State& state, std::size_t first,
                                sw::MemoryKind kind) {
  std::vector<sw::Tensor> four;
  for (std::size_t i = first; i < first + 4; ++i) {
    four.push_back(tracer.tensor(state.arrays[i], state.names[i], kind));
  }
  return four;
}

}  // namespace

double train_step(sw::Tracer& tracer, State& state, const sw::Batch& batch, float learning_rate) {
  std::vector<sw::Tensor> w = tensors(tracer, state, 0, sw::MemoryKind::parameter);
  std::vector<sw::Tensor> momenta = tensors(tracer, state, 4, sw::MemoryKind::optimizer);
  state.arrays.clear();  // now only the tensors hold them, so a step can overwrite them
  const sw::Tensor rate =
      sw::full(tracer, {sw::DType::f32, {}}, learning_rate, "rate", sw::MemoryKind::array);
  const sw::Tensor loss = [&] {
    const sw::Tensor image = tracer.tensor(batch.fields[0], "image", sw::MemoryKind::loader);
    const sw::Tensor label = tracer.tensor(batch.fields[1], "label", sw::MemoryKind::loader);
    const sw::Tensor mean = sw::cross_entropy(logits(image, w), sw::convert(label, sw::DType::i32));
    sw::sgd_with_momentum(w, momenta, sw::grad(mean, w), rate);
    return mean;
  }();
  tracer.mark_step();
  for (const sw::Tensor& tensor : w) state.arrays.push_back(tensor.array());
  for (const sw::Tensor& tensor : momenta) state.arrays.push_back(tensor.array());
  return loss.item();
}

std::int64_t count_correct(sw::Tracer& tracer, const State& state, const sw::Batch& batch) {
  const sw::Tensor image = tracer.tensor(batch.fields[0], "image", sw::MemoryKind::loader);
  const sw::Tensor label = tracer.tensor(batch.fields[1], "label", sw::MemoryKind::loader);
  const sw::Tensor mask = tracer.tensor(batch.mask, "mask", sw::MemoryKind::loader);
  const std::vector<sw::Tensor> w = tensors(tracer, state, 0, sw::MemoryKind::parameter);
  const sw::Tensor hit =
      sw::eq(sw::argmax(logits(image, w), 1), sw::convert(label, sw::DType::i32));
  const sw::Tensor valid = sw::logical_and(hit, sw::convert(mask, sw::DType::boolean));
  const sw::Tensor correct = sw::reduce_sum(sw::convert(valid, sw::DType::f32), {0});
  tracer.mark_step();
  return static_cast<std::int64_t>(correct.item());
}

}  // namespace fashion_mnist
