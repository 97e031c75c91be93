#include "training.h"

#include <utility>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"

namespace convnet {

using namespace shardwise;

namespace {

/// [images, channels, rows, columns], around 0 with deviation 1 for Fashion-MNIST.
Tensor normalized(const Tensor& image, std::int64_t channels) {
  const Shape& shape = image.shape();
  const Tensor pixels = (convert(image, DType::f32) / 255.0 - 0.286) / 0.353;
  const Shape wide{shape[0], channels, shape[1], shape[2]};
  return broadcast(pixels, wide, {0, 2, 3});
}

}  // namespace

Training::Training(Devices& devices, const Mesh& mesh, const Plan& plan, const Sizes& sizes)
    : mesh_(mesh), plan_(plan), sizes_(sizes), tracer_(devices, {.mesh = mesh}) {
  check(sizes);
}

void Training::make(const std::function<Tensor(const Weight&, MemoryKind)>& tensor) {
  const auto marked = [&](const Weight& weight, MemoryKind kind) {
    Tensor made = tensor(weight, kind);
    mark_sharding(made, PartitionSpec::parse(""));
    return made;
  };
  for (const Weight& weight : weights(sizes_)) {
    names_.push_back(weight.name);
    weights_.push_back(marked(weight, MemoryKind::parameter));
    velocities_.push_back(
        marked({weight.name + ".velocity", weight.shape, 0, 0}, MemoryKind::optimizer));
  }
  for (const Weight& weight : statistics(sizes_)) {
    statistics_[weight.name] = marked(weight, MemoryKind::optimizer);
  }
}

void Training::begin(std::uint64_t seed) {
  make([&](const Weight& weight, MemoryKind kind) {
    const TensorType type{DType::f32, weight.shape};
    return weight.deviation == 0
               ? full(tracer_, type, weight.value, weight.name, kind)
               : normal(tracer_, type, weight.deviation, seed * 1000 + names_.size(), weight.name);
  });
}

void Training::begin_abstract() {
  make([&](const Weight& weight, MemoryKind kind) {
    return tracer_.abstract_tensor({DType::f32, weight.shape}, weight.name, kind);
  });
}

std::vector<FieldPlacement> Training::placements() const {
  return {{"image", Sharding(mesh_, plan_.images())}, {"label", Sharding(mesh_, plan_.labels())}};
}

Tensor Training::record_step(const Tensor& image, const Tensor& label, const Tensor& rate) {
  Tensors by_name;
  for (std::size_t i = 0; i < names_.size(); ++i) by_name.emplace(names_[i], weights_[i]);
  const Tensor found = logits(tracer_, sizes_, by_name, statistics_,
                              normalized(image, sizes_.channels), /*is_training=*/true);
  const Tensor loss = cross_entropy(found, convert(label, DType::i32));
  by_name.clear();
  const std::vector<Tensor> gradients = grad(loss, weights_);
  const auto in_optimizer = tracer_.scope("optimizer");
  sgd_with_momentum(weights_, velocities_, gradients, rate);
  return loss;
}

double Training::step(const Batch& batch, double rate) {
  const Tensor loss = [&] {
    const Tensor image = tracer_.tensor(batch.field("image"), "image", MemoryKind::loader);
    const Tensor label = tracer_.tensor(batch.field("label"), "label", MemoryKind::loader);
    return record_step(image, label,
                       full(tracer_, {DType::f32, {}}, rate, "rate", MemoryKind::array));
  }();
  tracer_.mark_step();
  return loss.item();
}

std::shared_ptr<const Executable> Training::plan_step() {
  const Tensor loss = [&] {
    const Shape shape{sizes_.batch, sizes_.image, sizes_.image};
    Tensor image = tracer_.abstract_tensor({DType::u8, shape}, "image", MemoryKind::loader);
    Tensor label =
        tracer_.abstract_tensor({DType::u8, {sizes_.batch}}, "label", MemoryKind::loader);
    mark_sharding(image, plan_.images());
    mark_sharding(label, plan_.labels());
    return record_step(image, label, tracer_.abstract_tensor({DType::f32, {}}, "rate"));
  }();
  return tracer_.plan();
}

std::int64_t Training::count_correct(const Batch& batch) {
  const Tensor image = tracer_.tensor(batch.field("image"), "image", MemoryKind::loader);
  const Tensor label = tracer_.tensor(batch.field("label"), "label", MemoryKind::loader);
  const Tensor mask = tracer_.tensor(batch.mask, "mask", MemoryKind::loader);
  Tensors by_name;
  for (std::size_t i = 0; i < names_.size(); ++i) by_name.emplace(names_[i], weights_[i]);
  const Tensor found = logits(tracer_, sizes_, by_name, statistics_,
                              normalized(image, sizes_.channels), /*is_training=*/false);
  const Tensor hit =
      logical_and(eq(argmax(found, 1), convert(label, DType::i32)), convert(mask, DType::boolean));
  const Tensor correct = reduce_sum(convert(hit, DType::f32), {0});
  tracer_.mark_step();
  return static_cast<std::int64_t>(correct.item());
}

}  // namespace convnet
