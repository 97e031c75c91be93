// What people wrote before they had read a header: it compiles, and does what they meant.
#include <gtest/gtest.h>

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

  // What the guess has saved as `name`.
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
}

TEST_F(FirstProgram, MixesTensorsAndNumbers) {
  const Tensor large = max(x, 0), small = min(2.0, x), square = pow(x, 2), rest = rem(x, 2);
  const Tensor positive = select(x > 0, x, x * 0), other = select(gt(0, x), x, 1 - x);
  const Tensor both = select(logical_and(x >= 2, 4 >= x), x, full_like(x, 0));
  EXPECT_EQ(values(large), (Values{0, 2, 0, 4, 5, 6}));
  EXPECT_EQ(values(small), (Values{-1, 2, -3, 2, 2, 2}));
  EXPECT_EQ(values(square), (Values{1, 4, 9, 16, 25, 36}));
  EXPECT_EQ(values(rest), (Values{-1, 0, -1, 0, 1, 0}));
  EXPECT_EQ(values(positive), (Values{0, 2, 0, 4, 5, 6}));
  EXPECT_EQ(values(other), (Values{-1, -1, -3, -3, -4, -5}));
  EXPECT_EQ(values(both), (Values{0, 2, 0, 4, 0, 0}));
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
  std::ostringstream out;
  out << x.shape() << ' ' << Box::whole(x.shape()) << ' ' << Mesh::parse("data=2") << ' '
      << PartitionSpec{{"data"}, {}};
  EXPECT_EQ(out.str(), "[2, 3] [0:2, 0:3] data=2 data,-");
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
