#include "shardwise/runtime/program/detail/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "shardwise/runtime/program/detail/run.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ValueId = Program::ValueId;

ArraySpec f32_spec(const Mesh& mesh, Shape shape, const char* spec) {
  return {DType::f32, std::move(shape), Sharding(mesh, PartitionSpec::parse(spec))};
}

std::vector<float> values_in(const ShardedArray& array) {
  const auto bytes = array.to_host();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::shared_ptr<Buffer>> shards_for(Devices& devices, const Program::Value& value) {
  std::vector<std::shared_ptr<Buffer>> shards;
  const Mesh& mesh = value.layout.mesh();
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const std::size_t bytes = num_bytes(value.box(position).shape(), size_bytes(value.dtype));
    shards.push_back(devices.at(mesh.device_at(position)).allocate(bytes, value.kind, value.label));
  }
  return shards;
}

void twice(const LocalContext& local) {
  const auto* from = reinterpret_cast<const float*>(local.inputs[0].data);
  auto* to = reinterpret_cast<float*>(local.outputs[0].data);
  for (std::int64_t i = 0; i < local.inputs[0].box.num_elements(); ++i) to[i] = 2 * from[i];
}

// One program and one schedule; each run binds other memory.
TEST(Program, RunsAgainOnOtherMemory) {
  for (const int threads : {1, 4}) {
    Devices devices(4, {.threads = threads});
    const Mesh mesh = Mesh::parse("x=2,y=2");
    Program program(mesh);
    const ValueId in = program.add_value({f32_spec(mesh, {5}, "x"), "in"});
    const ValueId doubled = program.add_value({f32_spec(mesh, {5}, "x"), "doubled"});
    const ValueId sum = program.add_value({f32_spec(mesh, {5}, "x"), "sum"});
    program.add_step(Program::Call{"twice", {in}, {doubled}, twice});
    const std::size_t axes[] = {1};
    const Sharding& sharding = program.value(in).layout.sharding();
    program.add_step(Program::Move{
        "add up",
        {{doubled, sum, plan_move(sharding, sharding, {5}, DType::f32, axes, Reduction::sum)}}});
    const Schedule schedule(program);
    EXPECT_EQ(schedule.graph().size(), schedule.tasks().size());
    for (float start = 1; start < 20; ++start) {
      Storage storage(mesh.size());
      const std::vector<float> values{start, start + 1, start + 2, start + 3, start + 4};
      storage.bind(in, ShardedArray::from_host(devices, program.value(in).spec(),
                                               std::as_bytes(std::span(values))));
      for (const ValueId value : {doubled, sum}) {
        storage.bind(value, shards_for(devices, program.value(value)));
      }
      EXPECT_FALSE(storage.array(sum));
      run(program, schedule, storage, devices);
      storage.finish(program, devices);
      EXPECT_THAT(
          values_in(*storage.array(sum)),
          ElementsAre(4 * start, 4 * start + 4, 4 * start + 8, 4 * start + 12, 4 * start + 16));
    }
    // In each of 19 runs, both devices of two pairs hand over 3 and 2 elements.
    std::size_t sent = 0;
    for (DeviceId id = 0; id < 4; ++id) sent += devices.at(id).traffic().sent_bytes;
    std::size_t planned = 0;
    for (const DeviceBytes& bytes :
         std::get<Program::Move>(program.steps()[1]).parts[0].plan.traffic) {
      planned += bytes.sent;
    }
    EXPECT_EQ(sent, 19 * planned);
    EXPECT_GT(planned, 0u);
  }
}

TEST(Program, AFillWritesZerosWhereItIsTold) {
  Devices devices(3);
  const Mesh mesh = Mesh::line(3);
  Program program(mesh);
  const ValueId value = program.add_value({f32_spec(mesh, {6}, "devices"), "v"});
  auto shards = shards_for(devices, program.value(value));
  for (const auto& shard : shards) std::memset(shard->data(), 0x3f, shard->size_bytes());
  Storage storage(3);
  storage.bind(value, shards);
  program.add_step(Program::Fill{"zeros", value, {0, 2}});
  run(program, Schedule(program), storage, devices);
  storage.finish(program, devices);
  const auto values = values_in(*storage.array(value));
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[5], 0);
  EXPECT_NE(values[2], 0);
}

TEST(Program, RefusesForeignMeshesAndUnknownValues) {
  Program program(Mesh::parse("x=2"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           program.add_value({f32_spec(Mesh::parse("z=3"), {4}, "z"), "w"});
                         }),
              AllOf(HasSubstr("\"w\""), HasSubstr("z=3"), HasSubstr("x=2")));
  program.add_value({f32_spec(program.mesh(), {4}, "x"), "w"});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           program.add_step(Program::Call{"f", {1}, {0}, twice});
                         }),
              AllOf(HasSubstr("\"f\""), HasSubstr("value 1")));
  EXPECT_THROW(program.add_step(Program::Move{"m", {{0, -1, {}}}}), Error);
  EXPECT_THROW(program.add_step(Program::Fill{"z", 7, {}}), Error);
  EXPECT_TRUE(program.steps().empty());
}

/// Runs a program whose one step throws on device 3.
void run_throwing(const std::function<void()>& thrower) {
  Devices devices(4, {.threads = 2});
  Program program(Mesh::parse("x=2@1,3"));
  program.add_step(Program::Call{"embed", {}, {}, [&](const LocalContext& local) {
                                   if (local.device == 3) thrower();
                                 }});
  run(program, Schedule(program), Storage(2), devices);
}

template <class Exception>
void expect_located(const std::function<void()>& thrower, const std::string& message) {
  try {
    run_throwing(thrower);
    FAIL() << "did not throw";
  } catch (const Exception& caught) {
    EXPECT_EQ(caught.what(), message);
  }
}

// Whatever a step throws says which step and device it was; what can be caught by its type still
// can.
TEST(Program, ErrorsCarryStepAndDeviceWhateverWasThrown) {
  struct Own : std::length_error {
    using std::length_error::length_error;
  };
  expect_located<Error>([] { throw Error(ErrorCode::corrupt, "chunk 7"); },
                        "embed on device 3: chunk 7");
  expect_located<std::out_of_range>([] { throw std::out_of_range("row 9"); },
                                    "embed on device 3: row 9");
  expect_located<std::length_error>([] { throw Own("long"); }, "embed on device 3: long");
  expect_located<std::logic_error>([] { throw std::logic_error("odd"); }, "embed on device 3: odd");
  expect_located<std::overflow_error>([] { throw std::overflow_error("big"); },
                                      "embed on device 3: big");
  expect_located<std::runtime_error>([] { throw std::runtime_error("bad"); },
                                     "embed on device 3: bad");
  expect_located<std::bad_alloc>([] { throw std::bad_alloc(); },
                                 "embed on device 3: out of memory");
  expect_located<std::runtime_error>([] { throw 7; },
                                     "embed on device 3: an exception of an unknown type");
}

TEST(Program, AForeignExceptionIsInsideTheOneThatIsThrown) {
  try {
    run_throwing([] { throw 7; });
    FAIL() << "did not throw";
  } catch (const std::exception& caught) {
    try {
      std::rethrow_if_nested(caught);
      FAIL() << "holds nothing";
    } catch (int number) {
      EXPECT_EQ(number, 7);
    }
  }
}

}  // namespace
}  // namespace shardwise
