// Guesses that do not compile, each with what its error must show: what to write.
// refused_guesses_test.py compiles this.
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "shardwise/shardwise.h"

using namespace shardwise;

void guesses(CheckpointManager& manager, const CheckpointReader& r, std::vector<float> w) {
  manager.save(1, {{"w", w}});                                          // shows: host_source()
  manager.save(1, {{"w", w}}, {.user_json = "{}"});                     // shows: host_source()
  manager.save(1, {}, {.user_json = std::map<std::string, double>()});  // shows: .metrics
  ManagerOptions orbax{.max_to_keep = 3};                               // shows: .keep = {.last
  ManagerOptions steps{.save_interval_steps = 10};                      // shows: .when = {.every
  ArraySpec spec{
      DType::f32, {12, 4}, Sharding()};       // shows: Sharding::replicated(Mesh::line(1), rank)
  CheckpointReader latest(manager.latest());  // shows: latest->step.directory
  CheckpointReader of_manager(manager);       // shows: which step? latest()
  r.read("w", Box::of({12, 4}), w);           // shows: Box::whole(shape)
  auto m = r.metadata();                      // shows: user_json(), or tensor(name)
  auto source = tensor_source("w", w);        // shows: host_source(name, shape, values)
  auto step = manager.restore_latest();       // shows: with what reads
  auto gone = host_source("w", {2}, std::vector<float>(2));  // shows: ElementRange
}

void guesses(Tracer& tracer, Tensor x, Tensor w, Tensor b, std::vector<Tensor> ws,
             const Batch& batch, CheckpointManager& manager,
             const std::map<std::string, Tensor>& params) {
  manager.save(1, params);                             // shows: tensor_sources(tensors)
  tracer.tensor(std::vector<float>(32), {8, 4}, "x");  // shows: tensor(shape, values, label)
  Tensor n = tracer.randn({4, 3});  // shows: normal(tracer, {DType::f32, {4, 3}}, 1, seed
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
  auto q1 = randn(tracer, {4, 3});          // shows: normal(tracer, {DType::f32, {4, 3}}, 1, seed
  auto q2 = zeros(tracer, {4, 3});          // shows: full(tracer, {DType::f32, {4, 3}}, 0, "b")
  auto q3 = ones(tracer, {4, 3});           // shows: full(tracer, {DType::f32, {4, 3}}, 1, "b")
  auto q4 =
      normal(tracer, {4, 3}, 0.1, 1, "w");  // shows: normal(tracer, {DType::f32, {4, 3}}, 0.1, seed
  auto q5 = full(tracer, {4, 3}, 0, "b");   // shows: full(tracer, {DType::f32, {4, 3}}, 0, "b")
  auto q6 = tracer.scalar(0.1F, "rate");    // shows: tensor<float>({}, {0.1}, "rate")
  tracer.run();                             // shows: mark_step()
  tracer.dump();                            // shows: dump(*tracer.last())
  tracer.explain("w");                      // shows: last()->explain("w1")
  auto s3 = reduce_sum(x, 1);               // shows: sum(x, 1)
  auto s4 = reduce_sum(x);                  // shows: sum(x)
  auto s5 = reduce_max(x, 1);               // shows: reduce_max(x, {1})
  auto s6 = reduce_min(x, 1);               // shows: reduce_min(x, {1})
  auto s7 = max(x);                         // shows: reduce_max(x, dims)
  auto s8 = min(x);                         // shows: reduce_min(x, dims)
  auto s9 = reduce_mean(x, 1);              // shows: mean(x, dim)
  auto w1 = where(x > 0, 1.0, 0.0);         // shows: one of the two is a tensor: full_like(x, 1)
  auto f1 = x.exp();                        // shows: exp(x)
  auto f2 = x.log();                        // shows: log(x)
  auto f3 = x.sqrt();                       // shows: sqrt(x)
  auto f4 = x.abs();                        // shows: abs(x)
  auto f5 = x.tanh();                       // shows: tanh(x)
  auto f6 = x.relu();                       // shows: relu(x)
  auto f7 = x.sigmoid();                    // shows: logistic(x)
  auto f8 = x.softmax(-1);                  // shows: softmax(x, dim)
  auto f9 = x.slice(0, 2);                  // shows: slice(x, begin, end)
  auto n2 = x.numel();                      // shows: num_elements(x.shape())
  auto n3 = x.rank();                       // shows: shape().size()
  auto n4 = x.ndim();                       // shows: shape().size()
  auto n5 = x.dim();                        // shows: shape().size()
  auto h2 = x.cpu();                        // shows: to_vector<float>()
  auto h3 = x.numpy();                      // shows: to_vector<float>()
  auto h4 = x.sharding();                   // shows: array().sharding()
  x.mark_sharding(Mesh::line(4), {"data"});  // shows: mark_sharding(x, mesh, {"data", "model"})
  auto o1 = x % 2;                           // shows: rem(x, y)
  auto o2 = x && w;                          // shows: logical_and(x, y)
  auto o3 = x || w;                          // shows: logical_or(x, y)
  auto o4 = !x;                              // shows: logical_not(x); has_value()
  auto p1 = permute(x, {1, 0});              // shows: transpose(x, {1, 0})
  auto p2 = swapaxes(x, 0, 1);               // shows: transpose(x, 0, 1)
  auto p3 = flatten(x);                      // shows: reshape(x, {-1})
  auto p4 = unsqueeze(x, 0);                 // shows: reshape(x, {1, 8, 4})
  auto p5 = expand_dims(x, 0);               // shows: reshape(x, {1, 8, 4})
  auto p6 = squeeze(x);                      // shows: reshape(x, {8, 4})
  auto p7 = mm(x, w);                        // shows: matmul(x, w)
  auto p8 = bmm(x, w);                       // shows: matmul(x, w)
  auto p9 = clip(x, 0, 1);                   // shows: min(max(x, low), high)
  auto r3 = embedding(x, w);                 // shows: take(table, ids, 0)
  auto r4 = gather(x, w);                    // shows: take_along(x, ids, dim)
  auto v1 = value_and_grad(x, ws);           // shows: grad(loss, weights)
  Adam other(ws, 1e-3);                // shows: adamw(weights, state, grad(loss, weights), rate)
  sgd(w, grad(mean(x), w), 0.1);       // shows: w -= grad(loss, w) * rate
  auto a1 = adamw_state(tracer, ws);   // shows: adamw_state(weights)
  auto x1 = x.max();                   // shows: reduce_max(x, dims)
  auto x2 = x.min(1);                  // shows: reduce_min(x, dims)
  auto x3 = x.argmax(-1);              // shows: argmax(x, dim)
  auto x4 = x.pow(2);                  // shows: pow(x, y)
  auto x5 = x.astype(DType::f32);      // shows: convert(x, DType::f32)
  auto x6 = Tensor::randn({4, 3});     // shows: normal(tracer, {DType::f32, {4, 3}}, 1, seed
  auto x7 = Tensor::zeros({4, 3});     // shows: full(tracer, {DType::f32, {4, 3}}, 0, "b")
  auto x8 = Tensor::ones({4, 3});      // shows: full(tracer, {DType::f32, {4, 3}}, 1, "b")
  auto l1 = rms_norm(x, b);            // shows: rmsnorm(x, gain)
  auto l2 = batch_norm(x, b, b);       // shows: batchnorm(x, gain, bias, running)
  auto l3 = group_norm(x, 2);          // shows: groupnorm(x, gain, bias, groups)
  auto l4 = cross_entropy_loss(x, w);  // shows: cross_entropy(x, labels)
  auto l5 = nll_loss(x, w);            // shows: cross_entropy(logits, labels)
  auto l6 = accuracy(x, w);         // shows: mean(convert(eq(argmax(x, -1), labels), DType::f32))
  auto l7 = softplus(x);            // shows: log(1 + exp(x))
  auto l8 = leaky_relu(x, 0.01);    // shows: where(x > 0, x, 0.01 * x)
  auto l9 = elu(x);                 // shows: where(x > 0, x, expm1(x))
  auto a2 = norm(x);                // shows: sqrt(sum(x * x))
  auto a3 = logsumexp(x, -1);       // shows: log(sum(exp(x), dim)), of x less its reduce_max
  auto a4 = prod(x, 0);             // shows: reduce_prod(x, dims)
  auto a5 = reduce_prod(x, 0);      // shows: reduce_prod(x, {1})
  auto a6 = var(x, 0);              // shows: variance(x, dims)
  auto a7 = any(x > 0);             // shows: reduce_max(x, dims)
  auto a8 = all(x > 0);             // shows: reduce_min(x, dims)
  auto a9 = isnan(x);               // shows: ne(x, x)
  auto b1 = isfinite(x);            // shows: is_finite(x)
  auto b2 = topk(x, 3);             // shows: top_k(x, dim, k)
  auto b3 = top_k(x, 3);            // shows: top_k(x, dim, k)
  auto b4 = index_select(x, 0, w);  // shows: take(x, ids, dim)
  auto b5 = outer(b, b);            // shows: einsum("a,b->ab", x, y)
  auto b6 = tensordot(x, w, 1);     // shows: einsum(equation, x, w)
  auto b7 = sum(x, -1, true);       // shows: reshape(sum(x, dim), {8, 1})
  auto b8 = mean(x, -1, true);      // shows: reshape(mean(x, dim), {8, 1})
  auto b9 = clamp(x, 0, 1);         // shows: clamp(low, x, high)
  auto i1 = flip(x, 0);             // shows: reverse(x, dims)
  auto i3 = roll(x, 1, 0);          // shows: concatenate({slice(x, begin, end), slice(
  auto i4 = split(x, 2, 0);         // shows: slice(x, begin, end)
  auto i5 = chunk(x, 2);            // shows: slice(x, begin, end)
  auto i6 = narrow(x, 0, 1, 2);     // shows: slice(x, begin, end)
  auto i7 = tile(x, 2);             // shows: concatenate({x, x}, dim)
  auto i8 = repeat(x, 2, 0);        // shows: broadcast_to(x, shape)
  auto i9 = expand(x, 4);           // shows: broadcast_to(x, shape)
  auto j1 = tril(x);                // shows: where(ge(rows, columns), x, 0)
  auto j2 = triu(x);                // shows: where(le(rows, columns), x, 0)
  auto j3 = one_hot(x, 10);         // shows: eq(broadcast(ids, shape, dims), iota(
  auto j4 = stack({x, x}, 0);       // shows: concatenate({reshape(x, {1, 8, 4}),
  auto j5 = stack(ws);              // shows: concatenate({reshape(x, {1, 8, 4}),
  auto j6 = remat(sum<Tensor>, x);  // shows: checkpoint(block, x)
  auto j7 = gradient(mean(x), w);   // shows: grad(loss, weights)
  auto j8 = fori_loop(0, 10, x);    // shows: scan(body, carry, xs, {.length = 10})
  auto j9 = while_loop(x, x);       // shows: scan(body, carry, xs)
  auto v3 = scaled_dot_product_attention(x, x, x);  // shows: attention(q, k, v)
  auto v4 = conv(x, w);                             // shows: conv2d(x, kernel, options)
  auto v5 = max_pool2d(x, 2);                       // shows: max_pool(x, dims, window)
  auto v6 = avg_pool2d(x, 2);                       // shows: avg_pool(x, dims, window)
  auto v7 = global_avg_pool(x);                     // shows: mean(x, {2, 3})
  auto v8 = interpolate(x, 2);                      // shows: resize(x, dims, extents, how)
  auto z3 = uniform(tracer, 2);                     // shows: normal(tracer, {DType::f32, {4, 3}}
  auto z4 = rand(tracer, 2);                        // shows: normal(tracer, {DType::f32, {4, 3}}
  auto z5 = arange(tracer, 10);                     // shows: iota(x, {DType::i32, {10}}, 0)
  auto z6 = eye(tracer, 3);                         // shows: eq(iota(x, type, 0), iota(x, type, 1))
  auto m4 = x.num_elements();                       // shows: num_elements(x.shape())
  auto m5 = x.values();                             // shows: to_vector<float>()
  auto m6 = x.spec();                               // shows: placement()
  if (x) return;                                    // shows: has_value(), item()
  mark_sharding({x, w}, Mesh::line(2), {"data"});   // shows: one tensor a call
  shard(x, Mesh::line(2));                          // shows: mark_sharding(x, mesh, spec)
  with_sharding_constraint(x, Mesh::line(2));       // shows: mark_sharding(x, mesh, spec)
  tracer.constant(1.0);                             // shows: tensor<float>({}, {0.1}, "rate")
  tracer.parameter(w, "w");      // shows: tensor(shape, values, "w", MemoryKind::parameter)
  tracer.input(w, "x");          // shows: tensor(shape, values, "x", MemoryKind::loader)
  tracer.from_vector(ws);        // shows: tensor(shape, values, "x")
  tracer.sync();                 // shows: mark_step()
  tracer.wait();                 // shows: mark_step()
  tracer.execute();              // shows: mark_step()
  tracer.last()->peak();         // shows: memory(position).peak_bytes
  tracer.last()->peak_bytes();   // shows: memory(position).peak_bytes
  tracer.plan()->peak_memory();  // shows: memory(position).peak_bytes
  tracer.last()->report();       // shows: report(executable, machine)
  std::cout << *tracer.last();   // shows: dump(executable)
}

void guesses(std::vector<std::int64_t> ids) {
  Devices devices(8, 1 << 20);                   // shows: {.capacity_bytes = 1 << 20}
  Mesh mesh(ids, {4, 2}, {"data", "model"});     // shows: Mesh(axes, device_ids)
  auto grid = Mesh::line(4).get_logical_mesh();  // shows: device_at(position)
  Mesh text("data=4,model=2");                   // shows: Mesh::parse("data=4,model=2")
  auto names = Mesh::line(4).axis_names();       // shows: axes()[i].name
  auto size = Mesh::line(4)["devices"];          // shows: axis_size("data")
  PartitionSpec spec("data", "model");           // shows: PartitionSpec{"data", "model"}
  PartitionSpec none("data", nullptr);           // shows: PartitionSpec{"data", "model"}
  Tracer of_mesh(devices, Mesh::line(8));        // shows: Tracer(devices, {.mesh = mesh})
  auto along = Mesh::line(4).size("devices");    // shows: axis_size("data")
  auto count = Mesh::line(4).num_devices();      // shows: size()
  auto made = make_mesh(4, "data");              // shows: Mesh({4, 2}, {"data", "model"})
}
