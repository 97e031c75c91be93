#include "training.h"

#include <utility>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"

namespace convnet {

namespace sw = shardwise;

namespace {

/// [images, channels, rows, columns], around 0 with deviation 1 for Fashion-MNIST.
sw::Tensor normalized(const sw::Tensor& image, std::int64_t channels) {
  const sw::Shape& shape = image.shape();
  const sw::Tensor pixels = (sw::convert(image, sw::DType::f32) / 255.0 - 0.286) / 0.353;
  const sw::Shape wide{shape[0], channels, shape[1], shape[2]};
  return sw::broadcast(pixels, wide, {0, 2, 3});
}

}  // namespace

Training::Training(sw::Devices& devices, const sw::Mesh& mesh, const Plan& plan, const Sizes& sizes)
    : mesh_(mesh), plan_(plan), sizes_(sizes), tracer_(devices, {.mesh = mesh}) {
  check(sizes);
}

void Training::make(const std::function<sw::Tensor(const Weight&, sw::MemoryKind)>& tensor) {
  const auto marked = [&](const Weight& weight, sw::MemoryKind kind) {
    sw::Tensor made = tensor(weight, kind);
    sw::mark_sharding(made, sw::PartitionSpec::parse(""));
    return made;
  };
  for (const Weight& weight : weights(sizes_)) {
    names_.push_back(weight.name);
    weights_.push_back(marked(weight, sw::MemoryKind::parameter));
    velocities_.push_back(
        marked({weight.name + ".velocity", weight.shape, 0, 0}, sw::MemoryKind::optimizer));
  }
  for (const Weight& weight : statistics(sizes_)) {
    statistics_[weight.name] = marked(weight, sw::MemoryKind::optimizer);
  }
}

void Training::begin(std::uint64_t seed) {
  make([&](const Weight& weight, sw::MemoryKind kind) {
    const sw::TensorType type{sw::DType::f32, weight.shape};
    return weight.deviation == 0 ? sw::full(tracer_, type, weight.value, weight.name, kind)
                                 : sw::normal(tracer_, type, weight.deviation,
                                              seed * 1000 + names_.size(), weight.name);
  });
}

void Training::begin_abstract() {
  make([&](const Weight& weight, sw::MemoryKind kind) {
    return tracer_.abstract_tensor({sw::DType::f32, weight.shape}, weight.name, kind);
  });
}

std::vector<sw::FieldPlacement> Training::placements() const {
  return {{"image", sw::Sharding(mesh_, plan_.images())},
          {"label", sw::Sharding(mesh_, plan_.labels())}};
}

sw::Tensor Training::record_step(const sw::Tensor& image, const sw::Tensor& label,
                                 const sw::Tensor& rate) {
  Tensors by_name;
  for (std::size_t i = 0; i < names_.size(); ++i) by_name.emplace(names_[i], weights_[i]);
  const sw::Tensor found = logits(tracer_, sizes_, by_name, statistics_,
                                  normalized(image, sizes_.channels), /*is_training=*/true);
  const sw::Tensor loss = sw::cross_entropy(found, sw::convert(label, sw::DType::i32));
  by_name.clear();
  const std::vector<sw::Tensor> gradients = sw::grad(loss, weights_);
  const auto in_optimizer = tracer_.scope("optimizer");
  sw::sgd_with_momentum(weights_, velocities_, gradients, rate);
  return loss;
}

double Training::step(const sw::Batch& batch, double rate) {
  const sw::Tensor loss = [&] {
    const sw::Tensor image = tracer_.tensor(batch.field("image"), "image", sw::MemoryKind::loader);
    const sw::Tensor label = tracer_.tensor(batch.field("label"), "label", sw::MemoryKind::loader);
    return record_step(
        image, label, sw::full(tracer_, {sw::DType::f32, {}}, rate, "rate", sw::MemoryKind::array));
  }();
  tracer_.mark_step();
  return loss.item();
}

std::shared_ptr<const sw::Executable> Training::plan_step() {
  const sw::Tensor loss = [&] {
    const sw::Shape shape{sizes_.batch, sizes_.image, sizes_.image};
    sw::Tensor image =
        tracer_.abstract_tensor({sw::DType::u8, shape}, "image", sw::MemoryKind::loader);
    sw::Tensor label =
        tracer_.abstract_tensor({sw::DType::u8, {sizes_.batch}}, "label", sw::MemoryKind::loader);
    sw::mark_sharding(image, plan_.images());
    sw::mark_sharding(label, plan_.labels());
    return record_step(image, label, tracer_.abstract_tensor({sw::DType::f32, {}}, "rate"));
  }();
  return tracer_.plan();
}

std::int64_t Training::count_correct(const sw::Batch& batch) {
  const sw::Tensor image = tracer_.tensor(batch.field("image"), "image", sw::MemoryKind::loader);
  const sw::Tensor label = tracer_.tensor(batch.field("label"), "label", sw::MemoryKind::loader);
  const sw::Tensor mask = tracer_.tensor(batch.mask, "mask", sw::MemoryKind::loader);
  Tensors by_name;
  for (std::size_t i = 0; i < names_.size(); ++i) by_name.emplace(names_[i], weights_[i]);
  const sw::Tensor found = logits(tracer_, sizes_, by_name, statistics_,
                                  normalized(image, sizes_.channels), /*is_training=*/false);
  const sw::Tensor hit =
      sw::logical_and(sw::eq(sw::argmax(found, 1), sw::convert(label, sw::DType::i32)),
                      sw::convert(mask, sw::DType::boolean));
  const sw::Tensor correct = sw::reduce_sum(sw::convert(hit, sw::DType::f32), {0});
  tracer_.mark_step();
  return static_cast<std::int64_t>(correct.item());
}

}  // namespace convnet
