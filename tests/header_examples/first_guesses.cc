// Code that people wrote before they had read a header: it compiles, and does as they meant.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "header_examples/example.h"
#include "shardwise/shardwise.h"

namespace shardwise {
namespace {

class FirstSave : public testing::Test {
 protected:
  InTempDir here;
  CheckpointManager manager{"checkpoints"};
  std::vector<float> w = std::vector<float>(48, 1.0F);
  std::int64_t step = 7;

  // The values that the guess has saved as `name`.
  template <class T = float>
  std::vector<T> saved(const char* name = "w") {
    return CheckpointReader(manager.latest()->step.directory).read<T>(name);
  }
};

TEST_F(FirstSave, OfAVector) {
  manager.save(1, {host_source("w", w)});
  EXPECT_EQ(saved(), w);
}
TEST_F(FirstSave, OfBytesWithoutASharding) {
  manager.save(1, {host_source("w", {DType::f32, {12, 4}}, std::as_bytes(std::span(w)))});
  EXPECT_EQ(saved(), w);
}
TEST_F(FirstSave, OfAVectorThatIsCut) {
  manager.save(
      1,
      {host_source(
          "w", {DType::f32, {12, 4}, Sharding(Mesh::parse(""), PartitionSpec::parse("-,-"))}, w)});
  EXPECT_EQ(saved(), w);
}
TEST_F(FirstSave, OfBytesThatAreReplicated) {
  manager.save(1, {host_source("w", {DType::f32, {12, 4}, Sharding::replicated(Mesh::line(1), 2)},
                               std::as_bytes(std::span(w)))});
  EXPECT_EQ(saved(), w);
}
TEST_F(FirstSave, OfAScalar) {
  manager.save(1, {host_source("step", {DType::i64, {}, Sharding::replicated(Mesh::line(1), 0)},
                               std::as_bytes(std::span(&step, 1)))});
  EXPECT_EQ(saved<std::int64_t>("step"), std::vector<std::int64_t>{7});
}
TEST_F(FirstSave, OfATypeByItsFunction) {
  manager.save(
      1, {host_source("w", {dtype_of<float>(), {12, 4}, Sharding::replicated(Mesh::line(1), 2)},
                      std::as_bytes(std::span(w)))});
  EXPECT_EQ(saved(), w);
}
TEST_F(FirstSave, ByDesignatedInitializers) {
  manager.save(1,
               {host_source("w",
                            {.dtype = DType::f32,
                             .shape = {12, 4},
                             .sharding = Sharding::replicated(Mesh::parse("data=4"), 2)},
                            std::as_bytes(std::span(w)))},
               {.user_json = R"({"loss": 1})"});
  EXPECT_EQ(saved(), w);
}

TEST_F(FirstSave, IsReadInto) {
  std::vector<float> found(w.size());
  manager.save(1, {host_source("w", {12, 4}, w)});
  const CheckpointReader r(manager.latest()->step.directory);
  r.read("w", found);
  EXPECT_EQ(found, w);
  r.read("w", std::as_writable_bytes(std::span(found)));
  r.read("w", Box{{0, 0}, {12, 4}}, std::as_writable_bytes(std::span(found)));
  r.read("w", Box::whole(r.tensor("w").shape), std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, w);
}

TEST_F(FirstSave, ThatFailsIsCaughtAsError) {
  try {
    manager.step(5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_such_name);
  }
}

class FirstProgram : public testing::Test {
 protected:
  // The elements of a tensor, once the step has run.
  std::vector<float> values(const Tensor& tensor) {
    if (!tensor.has_value()) tracer.mark_step();
    return tensor.to_vector<float>();
  }

  Devices devices{2};
  Tracer tracer{devices, {.mesh = Mesh::parse("data=2")}};
  const std::vector<float> numbers{-1, 2, -3, 4, 5, 6};
  Tensor x = tracer.tensor({2, 3}, numbers, "x");
};

using Values = std::vector<float>;

TEST_F(FirstProgram, MakesTensorsOfVectors) {
  const Tensor y = tracer.tensor({DType::f32, {2, 3}}, std::span<const float>(numbers), "y");
  const Tensor z = tracer.tensor({DType::f32, {6}}, std::vector<float>(6, 1.0F), "z");
  EXPECT_EQ(values(x + y), (Values{-2, 4, -6, 8, 10, 12}));
  EXPECT_EQ(values(z * 2), Values(6, 2.0F));
  EXPECT_THROW(tracer.tensor({DType::i32, {2, 3}}, numbers, "y"), Error);
  EXPECT_THROW(tracer.tensor({2, 2}, numbers, "y"), Error);
  EXPECT_EQ(values(tracer.tensor<float>({2, 3}, numbers, "x")), numbers);
  EXPECT_EQ(values(tracer.tensor({2}, {1.5F, 2.5F}, "x")), (Values{1.5, 2.5}));
  EXPECT_THROW(tracer.tensor<float>({2, 2}, numbers, "x"), Error);
  EXPECT_EQ(tracer.tensor({2, 3}, numbers).shape(), x.shape());
  EXPECT_EQ(normal(tracer, {DType::f32, {4, 3}}, 0.1, 1).shape(), (Shape{4, 3}));
  EXPECT_EQ(values(full(tracer, {DType::f32, {2}}, 3)), (Values{3, 3}));
}

TEST_F(FirstProgram, ReadsAScalarAsItsType) {
  const Tensor mean_of_all = mean(x), count = convert(sum(x), DType::i64);
  tracer.mark_step();
  const float as_float = mean_of_all.item<float>();
  const double as_double = mean_of_all.item();
  EXPECT_EQ(as_float, 13.0F / 6);
  EXPECT_EQ(as_double, 13.0F / 6);
  EXPECT_EQ(count.item<std::int64_t>(), 13);
  EXPECT_EQ(count.item<double>(), 13);
  EXPECT_THROW(count.item<float>(), Error);
  EXPECT_THROW(x.item<float>(), Error);
}

TEST_F(FirstProgram, MixesTensorsAndNumbers) {
  const Tensor large = max(x, 0), small = min(2.0, x), square = pow(x, 2), rest = rem(x, 2);
  const Tensor positive = where(x > 0, x, 0), other = where(gt(0, x), x, 1 - x);
  const Tensor both = where(logical_and(x >= 2, 4 >= x), x, full_like(x, 0));
  const Tensor row = where(x > 0, tracer.tensor<float>({3}, {1, 2, 3}, "row"), -1);
  const Tensor sure = select(gt(x, 0), x, x);
  EXPECT_EQ(values(large), (Values{0, 2, 0, 4, 5, 6}));
  EXPECT_EQ(values(small), (Values{-1, 2, -3, 2, 2, 2}));
  EXPECT_EQ(values(square), (Values{1, 4, 9, 16, 25, 36}));
  EXPECT_EQ(values(rest), (Values{-1, 0, -1, 0, 1, 0}));
  EXPECT_EQ(values(positive), (Values{0, 2, 0, 4, 5, 6}));
  EXPECT_EQ(values(other), (Values{-1, -1, -3, -3, -4, -5}));
  EXPECT_EQ(values(both), (Values{0, 2, 0, 4, 0, 0}));
  EXPECT_EQ(values(row), (Values{-1, 2, -1, 1, 2, 3}));
  EXPECT_EQ(values(sure), numbers);
  EXPECT_THROW(select(x > 0, x, x[0]), Error) << "of one shape";
  EXPECT_THROW(where(x > 0, x, reshape(x, {3, 2})), Error);
}

TEST_F(FirstProgram, AssignsWithAnOperator) {
  Tensor y = x;
  y += x;
  y *= 3;
  y -= 1.5;
  y /= 2;
  EXPECT_EQ(values(y), (Values{-3.75, 5.25, -9.75, 11.25, 14.25, 17.25}));
  EXPECT_EQ(values(x), numbers) << "the other handle keeps its tensor";
  Tensor w = tracer.tensor({3}, Values{1, 1, 1}, "w", MemoryKind::parameter);
  w -= grad(sum(x * w), {w})[0] * 0.5;
  EXPECT_EQ(values(w), (Values{-0.5, -2.5, -0.5}));
}

TEST_F(FirstProgram, SumsAndMeansAndCountsDimsFromTheEnd) {
  const Tensor all = sum(x), rows = sum(x, 1), columns = sum(x, {0}), last = mean(x, -1);
  const Tensor most = reduce_max(x, {-2}), both = reduce_sum(x, {0, -1}), running = cumsum(x, -1);
  const Tensor soft = softmax(x, -1), same = softmax(x, 1), logs = log_softmax(x, -2);
  const Tensor spread = variance(x, {-1});
  tracer.mark_step();
  EXPECT_EQ(values(all), Values{13});
  EXPECT_EQ(values(rows), (Values{-2, 15}));
  EXPECT_EQ(values(columns), (Values{3, 7, 3}));
  EXPECT_EQ(values(last), (Values{-2.0F / 3, 5}));
  EXPECT_EQ(values(most), (Values{4, 5, 6}));
  EXPECT_EQ(values(both), Values{13});
  EXPECT_EQ(values(running), (Values{-1, 1, -2, 4, 9, 15}));
  EXPECT_EQ(values(soft), values(same));
  EXPECT_EQ(logs.shape(), x.shape());
  EXPECT_NEAR(values(spread)[1], 2.0 / 3, 1e-6);
  EXPECT_THROW(sum(x, 2), Error);
  EXPECT_THROW(mean(x, -3), Error);
}

TEST_F(FirstProgram, CountsEveryDimFromTheEnd) {
  const Tensor ids = tracer.tensor<std::int32_t>({2}, {2, 0}, "ids");
  const Tensor best = convert(argmax(x, -1), DType::f32),
               worst = convert(argmin(x, -1), DType::f32);
  const auto [ordered, order] = sort(x, -1);
  const auto [largest, where_they_are] = top_k(x, -1, 2);
  const Tensor backwards = reverse(x, {-1}), turned = transpose(x, {-1, 0});
  const Tensor taken = take(x, ids, -1), nearest = take_clipped(x, ids + 1, -1);
  const Tensor zeros = take_or(x, ids + 1, -1, 0), columns = iota(x, {DType::f32, {2, 3}}, -1);
  const Tensor every = sum(x, {-1, 0}), spread_out = variance(x, -1);
  const Tensor along = take_along(x, order, -1), picked = take_along_clipped(x, order + 5, -1);
  EXPECT_EQ(values(best), (Values{1, 2}));
  EXPECT_EQ(values(worst), (Values{2, 0}));
  EXPECT_EQ(values(ordered), (Values{-3, -1, 2, 4, 5, 6}));
  EXPECT_EQ(values(largest), (Values{2, -1, 6, 5}));
  EXPECT_EQ(where_they_are.to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 0, 2, 1}));
  EXPECT_EQ(values(backwards), (Values{-3, 2, -1, 6, 5, 4}));
  EXPECT_EQ(values(turned), (Values{-1, 4, 2, 5, -3, 6}));
  EXPECT_EQ(values(taken), (Values{-3, -1, 6, 4}));
  EXPECT_EQ(values(nearest), (Values{-3, 2, 6, 5}));
  EXPECT_EQ(values(zeros), (Values{0, 2, 0, 5}));
  EXPECT_EQ(values(columns), (Values{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(values(every), Values{13});
  EXPECT_NEAR(values(spread_out)[1], 2.0 / 3, 1e-6);
  EXPECT_EQ(values(along), values(ordered));
  EXPECT_EQ(values(picked), (Values{-3, -3, -3, 6, 6, 6}));
  for (const std::int64_t none : {2, -3}) {
    EXPECT_THROW(argmax(x, none), Error);
    EXPECT_THROW(sort(x, none), Error);
    EXPECT_THROW(take_clipped(x, ids, none), Error);
    EXPECT_THROW(take_or(x, ids, none, 0), Error);
    EXPECT_THROW(take_along_clipped(x, order, none), Error);
    EXPECT_THROW(take_along_or(x, order, none, 0), Error);
    EXPECT_THROW(reverse(x, {none}), Error);
  }
}

TEST_F(FirstProgram, TakesNewValuesOfItsType) {
  x.set_value(Values{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(values(x * 2), (Values{2, 4, 6, 8, 10, 12}));
  EXPECT_THROW(x.set_value(std::vector<double>(6, 1.0)), Error);
  EXPECT_THROW(x.set_value(Values(5, 1.0F)), Error);
}

TEST_F(FirstProgram, MultipliesMatrices) {
  const Tensor w = tracer.tensor({3, 1}, Values{1, 10, 100}, "w");
  const Tensor a = reshape(x, {2, 1, 3}), b = reshape(x, {2, 3, 1});
  const Tensor product = matmul(x, w), batched = matmul(a, b), vector = matmul(reshape(w, {3}), w);
  EXPECT_EQ(product.shape(), (Shape{2, 1}));
  EXPECT_EQ(batched.shape(), (Shape{2, 1, 1}));
  EXPECT_EQ(values(product), (Values{-281, 654}));
  EXPECT_EQ(values(batched), (Values{14, 77}));
  EXPECT_EQ(values(vector), Values{10101});
  EXPECT_THROW(matmul(x, x), Error);
  EXPECT_THROW(matmul(x, a), Error);
}

TEST_F(FirstProgram, TakesARowByItsIndex) {
  const Tensor first = x[0], last = x[-1], element = x[1][2];
  Tensor w = tracer.tensor({2, 2}, Values{1, 2, 3, 4}, "w");
  const Tensor slope = grad(sum(w[1] * 5), w);
  EXPECT_EQ(values(first), (Values{-1, 2, -3}));
  EXPECT_EQ(values(last), (Values{4, 5, 6}));
  EXPECT_EQ(values(element), Values{6});
  EXPECT_EQ(values(slope), (Values{0, 0, 5, 5}));
  EXPECT_THROW(x[2], Error);
  EXPECT_THROW(x[-3], Error);
  try {
    static_cast<void>(sum(x)[0]);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("found index 0, needed one of the first dim's"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(FirstProgram, Transposes) {
  const Tensor matrix = transpose(x), swapped = transpose(x, 0, 1), same = transpose(x, -1, -2);
  const Tensor cube = reshape(x, {1, 2, 3});
  EXPECT_EQ(transpose(cube).shape(), (Shape{3, 2, 1}));
  EXPECT_EQ(transpose(cube, 0, 2).shape(), (Shape{3, 2, 1}));
  EXPECT_EQ(transpose(cube, {1, 0, 2}).shape(), (Shape{2, 1, 3}));
  EXPECT_THROW(transpose(x, 0, 2), Error);
  EXPECT_EQ(values(matrix), (Values{-1, 4, 2, 5, -3, 6}));
  EXPECT_EQ(values(swapped), values(matrix));
  EXPECT_EQ(values(same), values(matrix));
}

TEST_F(FirstProgram, HasLosses) {
  const Tensor square = mse_loss(x, x + 2), labels = tracer.tensor({3}, Values{0, 1, 1}, "labels");
  const Tensor logits = tracer.tensor({3}, Values{0, 2, -3}, "logits");
  const Tensor cross = binary_cross_entropy_with_logits(logits, labels);
  const Tensor slope = grad(cross, logits);
  tracer.mark_step();
  EXPECT_EQ(square.item(), 4);
  EXPECT_NEAR(cross.item(), (std::log(2) + std::log1p(std::exp(-2)) + std::log1p(std::exp(3))) / 3,
              1e-6);
  EXPECT_NEAR(values(slope)[2], (1 / (1 + std::exp(3)) - 1) / 3, 1e-6);
  EXPECT_NEAR(values(slope)[0], 0.5 / 3, 1e-6);
}

TEST_F(FirstProgram, DifferentiatesByOneTensorBySeveralOrByName) {
  Tensor w = tracer.tensor({3}, Values{1, 1, 1}, "w", MemoryKind::parameter);
  Tensor b = tracer.tensor({2}, Values{0, 0}, "b", MemoryKind::parameter);
  std::map<std::string, Tensor> params{{"w", w}, {"b", b}};
  const Tensor loss = sum(sum(x * w, 1) + b * 3);
  const Tensor one = grad(loss, w), first = grad(loss, {w})[0];
  const std::vector<Tensor> both = grad(loss, {w, b});
  std::map<std::string, Tensor> named = grad(loss, params);
  EXPECT_EQ(values(one), (Values{3, 7, 3}));
  EXPECT_EQ(values(first), values(one));
  EXPECT_EQ(values(both[1]), (Values{3, 3}));
  EXPECT_EQ(values(named.at("w")), values(one));
  EXPECT_EQ(values(named.at("b")), values(both[1]));
}

TEST_F(FirstProgram, MarksAsOneWouldWrite) {
  Devices four(4);
  const Mesh grid({2, 2}, {"data", "model"});
  const auto spec = [&](const auto& mark) {
    Tracer fresh(four, {.mesh = grid});
    Tensor t = fresh.tensor({4, 4}, Values(16, 1), "t");
    mark(t);
    fresh.mark_step();
    return t.array().sharding().spec().to_string();
  };
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {"data", "model"}); }), "data,model");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {"data", std::nullopt}); }), "data,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {nullptr, "data"}); }), "-,data");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {{}, {"model"}}); }), "-,model");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {{"data"}, {"model"}}); }), "data,model");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {"data", {}}); }), "data,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {{"data", "model"}}); }), "data+model,-");
  EXPECT_EQ(spec([&](Tensor& t) {
              mark_sharding(t, grid, {{"data", "model"}, {}});
            }),
            "data+model,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {"data"}); }), "data,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {{"data"}}); }), "data,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {0, 1}); }), "data,model");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {{0, 1}}); }), "data+model,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {{0}, {1}}); }), "data,model");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, {0, std::nullopt}); }), "data,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, "data,-"); }), "data,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, "data,model"); }), "data,model");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, grid, std::string("-,data")); }), "-,data");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, {"data+model", "-"}); }), "data+model,-");
  EXPECT_EQ(spec([&](Tensor& t) { mark_sharding(t, PartitionSpec::parse("data,-")); }), "data,-");
  Tensor b = tracer.tensor({2}, Values{1, 2}, "b");
  mark_sharding(b, Mesh::parse("data=2"), {{"data"}});
  try {
    mark_sharding(x, {"data,-"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "spec {\"data,-\"}: found 2 dims in the text of one, needed the text alone, or each "
        "dim as a text of its own");
  }
}

TEST(FirstMesh, IsMadeOfSizesAndNames) {
  const Mesh mesh({4, 2}, {"data", "model"});
  EXPECT_EQ(mesh, Mesh::parse("data=4,model=2"));
  EXPECT_EQ(mesh, Mesh({{"data", 4}, {"model", 2}}));
  EXPECT_EQ(mesh.shape(), (Shape{4, 2}));
  EXPECT_EQ(mesh.shape()[1], 2);
  EXPECT_EQ(Mesh({4, 2}), Mesh::parse("4,2"));
  EXPECT_EQ(Sharding(mesh, {"data", "model"}).shard_shape({8, 4}), (Shape{2, 2}));
  EXPECT_EQ(Sharding(mesh, "-,model").shard_shape({8, 4}), (Shape{8, 2}));
  try {
    const Mesh wrong({4, 2}, {"data"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "mesh [4, 2]: found 1 names, needed 2");
  }
}

TEST_F(FirstProgram, TrainsByNameWithAnOptimizer) {
  std::map<std::string, Tensor> params;
  params["w"] = tracer.tensor({3}, Values{1, 1, 1}, "w", MemoryKind::parameter);
  params["b"] = tracer.tensor({2}, Values{0, 0}, "b", MemoryKind::parameter);
  std::vector<Tensor> weights{tracer.tensor({2}, Values{0, 0}, "b", MemoryKind::parameter),
                              tracer.tensor({3}, Values{1, 1, 1}, "w", MemoryKind::parameter)};
  AdamWState<Tensor> state = adamw_state(params), in_order = adamw_state(weights);
  std::map<std::string, Tensor> momentum = params, plain = params;
  std::vector<Tensor> velocities{full_like(params.at("b"), 0), full_like(params.at("w"), 0)};
  const auto loss = [&](const Tensor& w, const Tensor& b) { return sum(sum(x * w, 1) + b * 3); };
  for (int step = 0; step < 2; ++step) {
    std::map<std::string, Tensor> gradients = grad(loss(params["w"], params["b"]), params);
    clip_by_global_norm(gradients, 1.0);
    adamw(params, state, gradients, 0.1);
    std::vector<Tensor> slopes = grad(loss(weights[1], weights[0]), weights);
    clip_by_global_norm(slopes, 1.0);
    adamw(weights, in_order, slopes, 0.1);
    sgd_with_momentum(momentum, velocities, grad(loss(momentum["w"], momentum["b"]), momentum), 1);
    sgd(plain, grad(loss(plain["w"], plain["b"]), plain), 0.5);
    tracer.mark_step();
  }
  EXPECT_EQ(values(params["w"]), values(weights[1]));
  EXPECT_EQ(values(params["b"]), values(weights[0]));
  EXPECT_LT(values(params["w"])[0], 0.9F);
  EXPECT_EQ(values(momentum["b"]), Values(2, -3 - 3 * 1.9F));
  EXPECT_EQ(values(plain["w"]), (Values{1 - 3, 1 - 7, 1 - 3}));
  const std::map<std::string, Tensor> all = with_state(params, state);
  ASSERT_EQ(all.size(), 7U);
  EXPECT_EQ(values(all.at("adamw/second/w")), values(in_order.second[1]));
  EXPECT_EQ(all.at("adamw/steps").item(), 2);
  EXPECT_EQ(state.first[0].label(), "adamw/first/b");
  EXPECT_THROW(sgd(params, {{"w", x}}, 0.1), Error);
}

// A job of two parameters by name, on a mesh.
struct NamedJob {
  explicit NamedJob(const char* grid) : mesh(Mesh::parse(grid)) {
    params["w"] = normal(tracer, {DType::f32, {8, 4}}, 0.5, 1, "w");
    params["b"] = full(tracer, {DType::f32, {4}}, 0, "b");
    state = adamw_state(params);
    mark_sharding(params["w"], {{}, {"model"}});
  }
  double step() {
    Tensor x = normal(tracer, {DType::f32, {4, 8}}, 1, 7, "x", MemoryKind::loader);
    mark_sharding(x, {{"data"}});
    const Tensor loss = mse_loss(matmul(x, params["w"]) + params["b"], full_like(params["b"], 1));
    adamw(params, state, grad(loss, params), 0.1);
    tracer.mark_step();
    return loss.item();
  }

  Mesh mesh;
  Devices devices{4};
  Tracer tracer{devices, {.mesh = mesh}};
  std::map<std::string, Tensor> params;
  AdamWState<Tensor> state;
};

TEST_F(FirstSave, OfAProgramByTheNamesOfItsTensors) {
  NamedJob straight("data=2,model=2"), resumed("data=1,model=4");
  manager.save(0, tensor_sources(with_state(straight.params, straight.state)));  // on the host
  EXPECT_EQ(saved("b"), std::vector<float>(4, 0.0F));
  straight.step();
  straight.step();
  manager.save(2, tensor_sources(with_state(straight.params, straight.state)));
  const auto found = manager.restore_latest([&](const CheckpointReader& reader) {
    reader.restore(resumed.devices, with_state(resumed.params, resumed.state));
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(resumed.state.steps.item(), 2);
  EXPECT_EQ(resumed.params["w"].to_vector<float>(), straight.params["w"].to_vector<float>());
  EXPECT_EQ(resumed.params["w"].array().sharding().spec().to_string(), "-,model");
  EXPECT_FALSE(resumed.state.first[1].placement()) << "the plan chooses";
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(resumed.step(), straight.step(), 1e-6);
  EXPECT_EQ(resumed.tracer.counters().hits, 2);
  EXPECT_EQ(straight.tracer.last_miss(), "");

  // In the middle of a job: tensors on devices stay cut as they are.
  resumed.tracer.mark_step();
  const CheckpointReader reader(manager.latest()->step.directory);
  reader.restore(resumed.devices, with_state(resumed.params, resumed.state));
  EXPECT_EQ(resumed.state.steps.item(), 2);
  resumed.step();
  EXPECT_EQ(resumed.tracer.counters().hits, 3);

  // A tensor that does not fit is refused, and changes nothing.
  std::map<std::string, Tensor> other = resumed.params;
  other["b"] = full(resumed.tracer, {DType::f32, {2, 2}}, 3, "b");
  EXPECT_THROW(reader.restore(resumed.devices, other), Error);
  other["b"] = full(resumed.tracer, {DType::f64, {4}}, 3, "b");
  EXPECT_THROW(reader.restore(resumed.devices, other), Error);
  other["b"] = resumed.params["b"];
  other["c"] = resumed.params["b"];
  EXPECT_THROW(reader.restore(resumed.devices, other), Error);
  EXPECT_NE(resumed.params["w"].to_vector<float>(), reader.read<float>("w"));
  const Tensor used = resumed.params["w"] * 2;
  EXPECT_THROW(reader.restore(resumed.devices, resumed.params), Error) << "the step has begun";
  manager.save(3, {tensor_source("w", resumed.params["w"])});
  EXPECT_EQ(saved("w"), resumed.params["w"].to_vector<float>());
}

TEST_F(FirstProgram, GivesATensorAnotherValue) {
  const Tensor same = x;
  const std::vector<float> others{6, 5, 4, 3, 2, 1};
  const auto bytes = std::as_bytes(std::span(others));
  x.set_value({bytes.begin(), bytes.end()});
  EXPECT_EQ(values(same), others) << "for all handles";
  Tensor planned = tracer.abstract_tensor({DType::f32, {2, 3}}, "planned");
  EXPECT_FALSE(planned.has_value());
  EXPECT_FALSE(planned.placement());
  planned.set_value({bytes.begin(), bytes.end()});
  EXPECT_EQ(values(planned + x), (Values{12, 10, 8, 6, 4, 2}));
  planned.set_value(x.array());
  EXPECT_EQ(values(planned), others);
  mark_sharding(x, {"data"});
  EXPECT_EQ(x.placement()->sharding, x.array().sharding());
  EXPECT_THROW(x.set_value(std::vector<std::byte>(4)), Error);
  const Tensor rows = sum(x, 1);
  tracer.mark_step();
  EXPECT_THROW(x.set_value(rows.array()), Error);
  const Tensor used = x + 1;
  EXPECT_THROW(x.set_value({bytes.begin(), bytes.end()}), Error);
}

TEST(FirstTracer, ExplainsByNameAndPrintsAllStages) {
  NamedJob job("data=2,model=2");
  job.step();
  const Executable& last = *job.tracer.last();
  EXPECT_EQ(last.explain("w").find("%"), 0U) << last.explain("w");
  EXPECT_NE(last.explain("w").find("input() \"w\""), std::string::npos) << last.explain("w");
  EXPECT_NE(last.explain("adamw/first/w"), last.explain("w"));
  try {
    static_cast<void>(last.explain("adamw/frist/w"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_such_name);
    EXPECT_STREQ(error.what(),
                 "explain: found no input \"adamw/frist/w\", needed one of adamw/first/w, "
                 "adamw/first/b");
  }
  EXPECT_EQ(dump(last), "== traced\n" + dump(last.graph()) + "== propagated\n" + dump_cuts(last) +
                            "== partitioned\n" + dump_steps(last) + "== planned\n" +
                            dump_plan(last));
}

TEST_F(FirstProgram, LeavesAnExtentOut) {
  EXPECT_EQ(reshape(x, {-1}).shape(), Shape{6});
  EXPECT_EQ(reshape(x, {3, -1}).shape(), (Shape{3, 2}));
  EXPECT_THROW(reshape(x, {4, -1}), Error);
  EXPECT_THROW(reshape(x, {-1, -1}), Error);
  EXPECT_THROW(reshape(x, {-2}), Error);
  EXPECT_EQ(concatenate({x, x}, -1).shape(), (Shape{2, 6}));
}

TEST_F(FirstProgram, HoldsTensorsThatAreAssignedLater) {
  Tensor y;
  std::map<std::string, Tensor> params;
  params["x"] = x;
  EXPECT_FALSE(y.has_value());
  for (const auto& use : std::initializer_list<std::function<void()>>{
           [&] { y.shape(); }, [&] { y.array(); }, [&] { static_cast<void>(y + 1); },
           [&] { static_cast<void>(x + y); }, [&] { mark_sharding(y, {{"data"}}); },
           [&] { clear_sharding(y); }, [&] { grad(y, {x}); }, [&] { grad(sum(x), {y}); }}) {
    EXPECT_THROW(use(), Error);
  }
  y = params["x"] + 1;
  EXPECT_EQ(values(y), (Values{0, 3, -2, 5, 6, 7}));
}

TEST_F(FirstProgram, PrintsShapes) {
  const Sharding sharding(Mesh::parse("data=2"), "data,-");
  std::ostringstream out;
  out << x.shape() << ' ' << Box::whole(x.shape()) << ' ' << Mesh::parse("data=2") << ' '
      << PartitionSpec{{"data"}, {}} << ' ' << x.type() << ' ' << x.dtype() << ' ' << sharding;
  EXPECT_EQ(out.str(), "[2, 3] [0:2, 0:3] data=2 data,- f32[2, 3] f32 data,- on data=2");
}

TEST_F(FirstProgram, TakesABatchsFieldByItsName) {
  const auto source = zip({memory_source({"image", DType::u8, {3}}, 4, std::vector<std::byte>(12)),
                           memory_source({"label", DType::u8, {}}, 4, std::vector<std::byte>(4))});
  const std::vector<FieldPlacement> places = cut_batch(*source, Mesh::parse("data=2"), "data");
  Loader loader(devices, source, places, {.batch_size = 2});
  const std::optional<Batch> batch = loader.next();
  EXPECT_EQ(batch->field("image").shape(), (Shape{2, 3}));
  EXPECT_EQ(tracer.tensor(batch->field("label"), "label").shape(), Shape{2});
  HostLoader host(source, places, {.batch_size = 2});
  EXPECT_EQ(host.next()->field("image").shape, (Shape{2, 3}));
  try {
    static_cast<void>(batch->field("images"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_such_name);
    EXPECT_STREQ(error.what(), "batch: found no field \"images\", needed one of image, label");
  }
}

}  // namespace
}  // namespace shardwise
