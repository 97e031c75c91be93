// Guesses that do not compile, each with what its error must show: what to write.
// refused_guesses_test.py compiles this.
#include <cstdint>
#include <iostream>
#include <vector>

#include "shardwise/shardwise.h"

using namespace shardwise;

void guesses(CheckpointManager& manager, const CheckpointReader& r, std::vector<float> w) {
  manager.save(1, {{"w", w}});                       // shows: host_source()
  manager.save(1, {{"w", w}}, {.user_json = "{}"});  // shows: host_source()
  ArraySpec spec{
      DType::f32, {12, 4}, Sharding()};       // shows: Sharding::replicated(Mesh::line(1), rank)
  CheckpointReader latest(manager.latest());  // shows: latest->step.directory
  CheckpointReader of_manager(manager);       // shows: of which step? latest()
  r.read("w", Box::of({12, 4}), w);           // shows: Box::whole(shape)
  auto m = r.metadata();                      // shows: user_json(), or tensor(name)
  auto source = tensor_source("w", w);        // shows: host_source(name, shape, values)
  auto step = manager.restore_latest();       // shows: with what reads
  auto gone = host_source("w", {2}, std::vector<float>(2));  // shows: ElementRange
}

void guesses(Tracer& tracer, Tensor x, Tensor w, Tensor b, std::vector<Tensor> ws,
             const Batch& batch) {
  tracer.tensor(std::vector<float>(32), {8, 4}, "x");  // shows: tensor(shape, values, label)
  Tensor n = tracer.randn({4, 3});  // shows: normal(tracer, {DType::f32, {4, 3}}, deviation, seed
  Tensor z = tracer.zeros({4, 3});  // shows: full(tracer, {DType::f32, {4, 3}}, 0, "b")
  Tensor o = tracer.ones({4, 3});   // shows: full(tracer, {DType::f32, {4, 3}}, 1, "b")
  auto t = tracer.tensor(batch["image"], "x");  // shows: field("image")
  tracer.step();                                // shows: mark_step()
  auto z2 = zeros_like(x);                      // shows: full_like(x, 0)
  auto o2 = ones_like(x);                       // shows: full_like(x, 1)
  auto m1 = x.matmul(w);                        // shows: matmul(x, w)
  auto m2 = dot(x, w);                          // shows: matmul(x, w), or einsum(
  auto s1 = x.sum();                            // shows: sum(x), sum(x, dim)
  auto s2 = x.mean(1);                          // shows: mean(x), mean(x, dim)
  auto r1 = x.reshape({4, 8});                  // shows: reshape(x, {4, -1})
  auto r2 = x.view({4, 8});                     // shows: reshape(x, {4, -1})
  auto t1 = x.T();                              // shows: transpose(x)
  auto t2 = x.t();                              // shows: transpose(x)
  auto t3 = x.transpose(0, 1);                  // shows: transpose(x), transpose(x, dim, dim)
  auto n1 = x.size(0);                          // shows: shape()[dim]
  auto h = w.to_host();                         // shows: to_vector<float>()
  auto d1 = x.detach();                         // shows: stop_gradient(x)
  auto d2 = detach(x);                          // shows: stop_gradient(x)
  auto c1 = x.to(DType::bf16);                  // shows: convert(x, DType::f32)
  auto c2 = astype(x, DType::bf16);             // shows: convert(x, DType::f32)
  auto c3 = cast(x, DType::bf16);               // shows: convert(x, DType::f32)
  auto y1 = sigmoid(x);                         // shows: logistic(x)
  auto y2 = maximum(x, 0);                      // shows: max(x, y)
  auto y3 = minimum(x, w);                      // shows: min(x, y)
  auto y4 = power(x, 2);                        // shows: pow(x, y)
  auto y5 = square(x);                          // shows: x * x
  auto y6 = layer_norm(x, b, b);                // shows: layernorm(x, gain, bias)
  auto y7 = binary_cross_entropy(x, w);         // shows: binary_cross_entropy_with_logits(
  auto k1 = concat({x, x}, 0);                  // shows: concatenate({x, y}, dim)
  auto k2 = cat({x, x});                        // shows: concatenate({x, y}, dim)
  auto k3 = concat(ws, 0);                      // shows: concatenate({x, y}, dim)
  auto k4 = cat(ws, 0);                         // shows: concatenate({x, y}, dim)
  auto e1 = x == w;                             // shows: eq(x, y), by element
  auto e2 = x == 0;                             // shows: eq(x, y), by element
  auto e3 = x != 0;                             // shows: eq(x, y), by element
  std::cout << x;                               // shows: x.to_vector<float>(), x.shape()
  mean(x).backward();                           // shows: grad(loss, {w, b})
  auto g = w.grad();                            // shows: grad(loss, w)
  AdamW adam(ws, 1e-3);  // shows: adamw(weights, state, grad(loss, weights), rate)
  SGD plain(ws, 0.1);    // shows: sgd(weights, grad(loss, weights), rate)
  sgd({w, b}, grad(mean(x), {w, b}), 0.1);  // shows: w -= grad(loss, w) * rate
}

void guesses(std::vector<std::int64_t> ids) {
  Devices devices(8, 1 << 20);                   // shows: {.capacity_bytes = 1 << 20}
  Mesh mesh(ids, {4, 2}, {"data", "model"});     // shows: Mesh(axes, device_ids)
  auto grid = Mesh::line(4).get_logical_mesh();  // shows: device_at(position)
}
