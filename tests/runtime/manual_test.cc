#include "shardwise/runtime/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/values.h"
#include "shardwise/runtime/gemm.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Output = ManualRegion::Output;
using Value = ManualRegion::Value;

std::vector<float> to_floats(const ShardedArray& array) {
  const auto bytes = array.to_host();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

ShardedArray make_array(Devices& devices, const Mesh& mesh, const std::string& spec,
                        const Shape& shape, const std::vector<float>& values,
                        std::string_view label = "array") {
  return ShardedArray::from_host(devices,
                                 {DType::f32, shape, Sharding(mesh, PartitionSpec::parse(spec))},
                                 std::as_bytes(std::span(values)), label);
}

const float* floats(const ConstBoxView& view) { return reinterpret_cast<const float*>(view.data); }
float* floats(const BoxView& view) { return reinterpret_cast<float*>(view.data); }

ManualRegion::LocalFunction write_position() {
  return [](const LocalContext& local) {
    const std::int64_t count = local.outputs[0].box.num_elements();
    std::fill_n(floats(local.outputs[0]), count, static_cast<float>(local.position));
  };
}

TEST(ManualRegion, MapSeesItsPlaceItsBoxesAndItsData) {
  Devices devices(8, {.threads = 4});
  const Mesh mesh = Mesh::parse("data=2,model=2@5,3,6,0");
  ManualRegion region(devices, mesh);
  const auto x = region.input(make_array(devices, mesh, "data,-", {3, 2}, {1, 2, 3, 4, 5, 6}));
  const auto outputs = region.map(
      "row sums", {x},
      {{DType::f32, {3}, PartitionSpec{{"data"}}}, {DType::i64, {2, 2}, {{"data"}, {"model"}}}},
      [&](const LocalContext& local) {
        EXPECT_EQ(local.mesh, mesh);
        EXPECT_EQ(local.device, mesh.device_at(local.position));
        const std::int64_t row = local.axis_index("data"), column = local.axis_index("model");
        EXPECT_EQ(local.position, row * 2 + column);
        const Box rows({row * 2, 0}, {row == 0 ? 2 : 3, 2});
        EXPECT_EQ(local.inputs[0].box, rows);
        for (std::int64_t i = 0; i < rows.extent(0); ++i) {
          floats(local.outputs[0])[i] =
              floats(local.inputs[0])[2 * i] + floats(local.inputs[0])[2 * i + 1];
        }
        put(DType::i64, local.outputs[1].data, 0, local.device);
      });
  region.run();
  EXPECT_THAT(to_floats(region.output(outputs[0])), ElementsAre(3, 7, 11));
  const auto ids = region.output(outputs[1]).to_host();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(get(DType::i64, ids.data(), i), mesh.device_at(static_cast<std::int64_t>(i)));
  }
}

TEST(ManualRegion, InputsAreSharedAndMayBeOutputs) {
  Devices devices(2);
  const Mesh mesh = Mesh::line(2);
  const auto array = make_array(devices, mesh, "devices", {4}, {1, 2, 3, 4});
  const std::size_t before = in_use(devices);
  ManualRegion region(devices, mesh);
  const auto x = region.input(array);
  EXPECT_EQ(in_use(devices), before);
  EXPECT_EQ(region.output(x).buffer(1), array.buffer(1));
}

TEST(ManualRegion, StepsMayBeAddedAfterARun) {
  Devices devices(4, {.threads = 2});
  ManualRegion region(devices, Mesh::line(4));
  const Output out{DType::f32, {4}, {{"devices"}}};
  const auto a = region.map("a", {}, {out}, write_position())[0];
  region.run();
  std::atomic<int> calls{0};
  const auto b = region.map("b", {a}, {out}, [&](const LocalContext& local) {
    ++calls;
    *floats(local.outputs[0]) = *floats(local.inputs[0]) * 10;
  })[0];
  region.run();
  region.run();  // nothing more to do
  EXPECT_EQ(calls, 4);
  EXPECT_THAT(to_floats(region.output(a)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(to_floats(region.output(b)), ElementsAre(0, 10, 20, 30));
}

TEST(ManualRegion, MemoryIsTakenWhenRecordedAndCountedExactly) {
  Devices devices(4);
  const Mesh mesh = Mesh::parse("a=2,b=2");
  {
    auto array = make_array(devices, mesh, "a,b", {3, 3}, std::vector<float>(9), "x");
    ManualRegion region(devices, mesh);
    const auto x = region.input(array);
    region.all_gather(x, "b", 1);
    region.map("pair", {x}, {{DType::f64, {5}, {{}}}, {DType::u8, {7}, {{"b"}}}},
               [](const LocalContext&) {});
    // [3, 3] f32 in blocks of 2: 4, 2, 2 and 1 elements; gathered along b: rows of 3; f64 [5]
    // whole; u8 [7] in 4 and 3.
    const std::size_t expected[] = {16 + 24 + 40 + 4, 8 + 24 + 40 + 3, 8 + 12 + 40 + 4,
                                    4 + 12 + 40 + 3};
    for (std::int64_t id = 0; id < 4; ++id) {
      EXPECT_EQ(devices.at(id).memory().in_use_bytes, expected[id]) << id;
    }
    region.run();
    for (std::int64_t id = 0; id < 4; ++id) {
      EXPECT_EQ(devices.at(id).memory().peak_bytes, expected[id]) << id;
    }
    region.clear();
    EXPECT_EQ(in_use(devices), 36u);
  }
  EXPECT_EQ(in_use(devices), 0u);
}

TEST(ManualRegion, AStepThatDoesNotFitFailsBeforeAnythingRuns) {
  Devices devices(2, {.capacity_bytes = 1000});
  ManualRegion region(devices, Mesh::line(2));
  std::atomic<int> calls{0};
  const auto a = region.map("hidden", {}, {{DType::f32, {400}, {{"devices"}}}},
                            [&](const LocalContext&) { ++calls; })[0];
  EXPECT_THAT(
      message_of(ErrorCode::resource_exhausted, [&] { region.all_gather(a, "devices", 0); }),
      AllOf(HasSubstr("\"all_gather of hidden\""),
            HasSubstr("device 0: found 200 bytes free, needed 1600; in use are 800 of 1000"),
            HasSubstr("\"hidden\" (array, 800 bytes)")));
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(in_use(devices), 1600u);
  region.run();  // nodes recorded before still run
  EXPECT_EQ(calls, 2);
}

TEST(ManualRegion, AnExceptionInTheMiddleKeepsItsTypeAndLeavesNoMemory) {
  for (const int threads : {1, 4}) {
    Devices devices(8, {.threads = threads});
    const Mesh mesh = Mesh::line(8);
    ManualRegion region(devices, mesh);
    const Output out{DType::f32, {800}, {{"devices"}}};
    const auto a = region.map("a", {}, {out}, write_position())[0];
    const auto b = region.map("b", {a}, {out}, [](const LocalContext& local) {
      if (local.position == 5) throw std::out_of_range("five");
    })[0];
    const auto c = region.all_gather(b, "devices", 0);
    EXPECT_THROW(region.run(), std::out_of_range);
    EXPECT_EQ(in_use(devices), 0u);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { region.output(c); }),
                HasSubstr("value 2 is not in this region"));
    // The region can be used again, with new values.
    const auto d = region.map("d", {}, {out}, write_position())[0];
    region.run();
    EXPECT_EQ(to_floats(region.output(d))[799], 7);
  }
}

TEST(ManualRegion, AnErrorInAStepIsToldWithStepAndDevice) {
  Devices devices(4);
  ManualRegion region(devices, Mesh::parse("x=2@3,1"));
  region.map("decode", {}, {}, [](const LocalContext& local) {
    if (local.position == 0) throw Error(ErrorCode::corrupt, "chunk 7");
  });
  EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { region.run(); }), "decode on device 3: chunk 7");
}

TEST(ManualRegion, RefusesForeignMeshesValuesAndUnfinishedOutputs) {
  Devices devices(4);
  const Mesh mesh = Mesh::parse("a=2,b=2");
  ManualRegion region(devices, mesh);
  const auto other = make_array(devices, Mesh::line(4), "devices", {4}, {1, 2, 3, 4});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { region.input(other); }),
              AllOf(HasSubstr("devices=4"), HasSubstr("a=2,b=2")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { region.map("step", {Value{9}}, {}, [](const LocalContext&) {}); }),
              AllOf(HasSubstr("step"), HasSubstr("value 9")));
  const auto a = region.map("a", {}, {{DType::f32, {4}, {{"a"}}}}, write_position())[0];
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { region.output(a); }),
              AllOf(HasSubstr("\"a\""), HasSubstr("has not been run")));
  region.clear();
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { region.all_gather(a, "a", 0); }),
              HasSubstr("value 0 is not in this region"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name,
                         [&] {
                           region.map("b", {}, {{DType::f32, {4}, {{"c"}}}}, write_position());
                         }),
              HasSubstr("\"c\""));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { region.map("empty", {}, {}, nullptr); }),
      HasSubstr("empty: no function"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { ManualRegion(devices, Mesh::line(5)); }),
              HasSubstr("device 4"));
}

TEST(ManualRegion, ClearForgetsWhatWasNotRun) {
  Devices devices(2);
  ManualRegion region(devices, Mesh::line(2));
  region.map("a", {}, {{DType::f32, {4}, {{"devices"}}}}, [](const LocalContext&) { FAIL(); });
  region.clear();
  EXPECT_EQ(in_use(devices), 0u);
  region.run();
}

/// y = relu(x w1) w2, the gradient of |y - t|^2 / 2 by hand, and a step of rate 1.
struct Step {
  std::vector<float> w1, w2;
};

constexpr std::int64_t kRows = 10, kIn = 6, kHidden = 7, kOut = 3;

std::vector<float> small_integers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 5) - 2);
  return values;
}

void multiply(const LocalContext& local, Transpose ta = Transpose::no,
              Transpose tb = Transpose::no) {
  const auto matrix = [](const ConstBoxView& view, Transpose transpose) {
    return ConstMatrix{floats(view), view.box.extent(0), view.box.extent(1), transpose};
  };
  const BoxView& out = local.outputs[0];
  gemm(matrix(local.inputs[0], ta), matrix(local.inputs[1], tb),
       {floats(out), out.box.extent(0), out.box.extent(1)});
}

/// out = f(a, b), element by element.
ManualRegion::LocalFunction each(float (*f)(float, float)) {
  return [f](const LocalContext& local) {
    const std::int64_t count = local.outputs[0].box.num_elements();
    for (std::int64_t i = 0; i < count; ++i) {
      floats(local.outputs[0])[i] = f(floats(local.inputs[0])[i], floats(local.inputs[1])[i]);
    }
  };
}

Step train(const Mesh& mesh, int threads) {
  Devices devices(mesh.size(), {.threads = threads});
  ManualRegion region(devices, mesh);
  const auto input = [&](const char* spec, std::int64_t rows, std::int64_t columns, unsigned seed) {
    return region.input(
        make_array(devices, mesh, spec, {rows, columns}, small_integers(rows * columns, seed)));
  };
  const auto map = [&](const char* name, std::initializer_list<Value> inputs, const char* spec,
                       std::int64_t rows, std::int64_t columns, ManualRegion::LocalFunction f) {
    return region.map(name, inputs, {{DType::f32, {rows, columns}, PartitionSpec::parse(spec)}},
                      std::move(f))[0];
  };
  const Value x = input("data,-", kRows, kIn, 1), t = input("data,-", kRows, kOut, 2);
  const Value w1 = input("-,model", kIn, kHidden, 3), w2 = input("model,-", kHidden, kOut, 4);
  const auto product = [](const LocalContext& local) { multiply(local); };
  const auto subtract = each([](float a, float b) { return a - b; });

  const Value z = map("x w1", {x, w1}, "data,model", kRows, kHidden, product);
  const Value h = map("relu", {z, z}, "data,model", kRows, kHidden,
                      each([](float a, float) { return a > 0 ? a : 0; }));
  const Value part = map("h w2", {h, w2}, "data,-", kRows, kOut, product);
  const Value y = region.all_reduce(part, {"model"}, Reduction::sum);
  const Value dy = map("y - t", {y, t}, "data,-", kRows, kOut, subtract);
  const Value dw2 = map("hT dy", {h, dy}, "model,-", kHidden, kOut,
                        [](const LocalContext& local) { multiply(local, Transpose::yes); });
  const Value dh =
      map("dy w2T", {dy, w2}, "data,model", kRows, kHidden,
          [](const LocalContext& local) { multiply(local, Transpose::no, Transpose::yes); });
  const Value dz = map("relu'", {dh, z}, "data,model", kRows, kHidden,
                       each([](float gradient, float a) { return a > 0 ? gradient : 0; }));
  const Value dw1 = map("xT dz", {x, dz}, "-,model", kIn, kHidden,
                        [](const LocalContext& local) { multiply(local, Transpose::yes); });
  const Value new_w1 = map("w1'", {w1, region.all_reduce(dw1, {"data"}, Reduction::sum)}, "-,model",
                           kIn, kHidden, subtract);
  const Value new_w2 = map("w2'", {w2, region.all_reduce(dw2, {"data"}, Reduction::sum)}, "model,-",
                           kHidden, kOut, subtract);
  region.run();
  return {to_floats(region.output(new_w1)), to_floats(region.output(new_w2))};
}

TEST(ManualRegion, ATrainingStepOfIntegersIsTheSameOnAnyMesh) {
  const Step alone = train(Mesh::parse("data=1,model=1"), 1);
  EXPECT_NE(alone.w1, small_integers(kIn * kHidden, 3));
  EXPECT_NE(alone.w2, small_integers(kHidden * kOut, 4));
  for (const char* mesh : {"data=4,model=2", "data=2,model=3", "data=1,model=5", "data=3,model=1",
                           "data=16,model=1", "model=2,data=4", "data=2,model=2@2,0,3,1"}) {
    for (const int threads : {1, 4}) {
      SCOPED_TRACE(mesh);
      const Step step = train(Mesh::parse(mesh), threads);
      EXPECT_EQ(step.w1, alone.w1);
      EXPECT_EQ(step.w2, alone.w2);
    }
  }
}

}  // namespace
}  // namespace shardwise
