#include "shardwise/jobs/manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <stdexcept>
#include <thread>

#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/runtime/stopwatch.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<HostTensor> model(std::uint64_t seed) {
  return {
      host_tensor("w", DType::f32, {300, 200}, "data=4,model=2", "data,model", Values::noise, seed),
      host_tensor("b", DType::bf16, {200}, "data=4,model=2", "model", Values::ramp, seed),
      host_tensor("step", DType::i64, {}, "data=4,model=2", "", Values::ramp, seed)};
}

void expect_holds(const std::filesystem::path& directory, std::span<const HostTensor> tensors) {
  const CheckpointReader reader(directory);
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (const HostTensor& tensor : tensors) {
    std::vector<std::byte> found(tensor.data->size());
    reader.read(tensor.name, Box::whole(tensor.spec.shape), found);
    EXPECT_TRUE(found == *tensor.data) << tensor.name;
  }
}

std::vector<std::string> names_in(const std::filesystem::path& root) { return root_names(root); }

std::vector<std::int64_t> numbers(const std::vector<Step>& steps) {
  std::vector<std::int64_t> result;
  for (const Step& step : steps) result.push_back(step.step);
  return result;
}

void damage_manifest(const std::filesystem::path& directory) {
  std::ofstream(directory / "manifest.json", std::ios::app) << "x";
}

TEST(CheckpointManager, SavesWhatReadersFind) {
  const TempDir dir;
  CheckpointManager manager(dir / "new/root");
  EXPECT_FALSE(manager.latest());
  const auto tensors = model(1);
  const SaveStats stats =
      manager.save(100, sources_of(tensors), {.user_json = R"({"loss": [1, 2.50]})"});
  EXPECT_EQ(stats.directory, dir / "new/root/step-00000100");
  EXPECT_EQ(stats.logical_bytes, 300u * 200 * 4 + 400 + 8);
  EXPECT_EQ(stats.chunks, 8 + 1 + 1);
  EXPECT_GT(stats.stored_bytes, 200'000u);
  EXPECT_GT(stats.file_bytes, stats.stored_bytes);
  EXPECT_GT(stats.total_seconds, 0);
  EXPECT_EQ(stats.cleanup_error, "");
  EXPECT_THAT(names_in(dir / "new/root"), ElementsAre("stats-step-00000100.json", "step-00000100"));
  EXPECT_THAT(names_in(stats.directory),
              ElementsAre("index.h5", "manifest.json", "shards-00000-of-00001.h5"));
  expect_holds(stats.directory, tensors);
  EXPECT_EQ(CheckpointReader(stats.directory).user_json(), R"({"loss": [1, 2.50]})");
  ASSERT_TRUE(manager.latest());
  EXPECT_EQ(manager.latest()->step.step, 100);
  EXPECT_THAT(manager.latest()->rejected, IsEmpty());
}

// A path must keep its meaning if the program changes its directory: else retention would remove
// another run's steps.
TEST(CheckpointManager, ARelativeRootStaysWhereItWas) {
  const TempDir dir;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(dir / "elsewhere");
  CheckpointManager(dir / "elsewhere/root").save(1, sources_of(model(1)));
  std::filesystem::current_path(dir.path());
  CheckpointManager manager("root", {.keep = {.last = 1}});
  manager.save(1, sources_of(model(1)));
  std::filesystem::current_path(dir / "elsewhere");
  const SaveStats stats = manager.save(2, sources_of(model(2)));
  std::filesystem::current_path(before);
  EXPECT_EQ(stats.directory, dir / "root/step-00000002");
  EXPECT_THAT(names_in(dir / "root"), testing::Contains("step-00000002"));
  EXPECT_THAT(names_in(dir / "elsewhere/root"),
              ElementsAre("stats-step-00000001.json", "step-00000001"));
  EXPECT_EQ(manager.steps().front().directory, stats.directory);
}

TEST(CheckpointManager, SaysThatTheThreadThatSavesCannotBeStarted) {
  const TempDir dir;
  CheckpointManager manager(dir.path(), {.write = {.threads = 1}});
  pthread_attr_t usual, impossible;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&impossible), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&impossible, std::size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&impossible), 0);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { manager.save(7, sources_of(model(1))); }),
              HasSubstr("save step 7: start the thread that saves: Resource temporarily"));
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
  manager.save(7, sources_of(model(1)));
  expect_holds(dir / "step-00000007", model(1));
}

TEST(CheckpointManager, SavesShardedArrays) {
  const TempDir dir;
  Devices devices(8);
  const HostTensor tensor = host_tensor("x", DType::f16, {37, 53}, "data=4,model=2", "model,data");
  const auto array = ShardedArray::from_host(devices, tensor.spec, *tensor.data);
  CheckpointManager manager(dir.path());
  const SaveStats stats = manager.save(0, {tensor_source("x", array)});
  expect_holds(stats.directory, std::span(&tensor, 1));
}

TEST(CheckpointManager, SavesNothingAndEmptyTensors) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const SaveStats none = manager.save(1, {});
  EXPECT_THAT(names_in(none.directory), ElementsAre("index.h5", "manifest.json"));
  expect_holds(none.directory, {});
  const HostTensor empty = host_tensor("e", DType::f32, {3, 0}, "", "-,-");
  const SaveStats stats = manager.save(2, {empty.source()});
  EXPECT_EQ(stats.chunks, 0);
  expect_holds(stats.directory, std::span(&empty, 1));
}

TEST(CheckpointManager, RejectsWrongArgumentsBeforeItReturns) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const TensorSource good = model(1)[0].source();
  const auto named = [&](std::string name) {
    TensorSource source = good;
    source.name = std::move(name);
    return std::vector{source};
  };
  const auto shaped = [&](const Shape& shape) {
    return callback_tensor("w", {DType::f32, shape, *good.sharding}, [](const Box&, auto) {});
  };
  TensorSource no_reader, no_such_tensor = good;
  no_reader.name = "w";
  no_such_tensor.tensor = 1;
  const TensorSource wrong_rank = shaped({3});
  const TensorSource too_large = shaped({std::int64_t{1} << 40, std::int64_t{1} << 40});
  struct Case {
    const char* name;
    std::int64_t step;
    std::vector<TensorSource> tensors;
    SaveOptions options;
    std::vector<const char*> parts;
  };
  const Case cases[] = {
      {"negative step", -1, {good}, {}, {"step is -1"}},
      {"empty name", 1, named(""), {}, {"is empty"}},
      {"long name", 1, named(std::string(1025, 'x')), {}, {"1025 bytes", "1024"}},
      {"NUL", 1, named(std::string("a\0b", 3)), {}, {"NUL"}},
      {"not UTF-8", 1, named("\xff"), {}, {"UTF-8"}},
      {"twice", 1, {good, good}, {}, {"\"w\" is given twice"}},
      {"no reader", 1, {no_reader}, {}, {"tensor \"w\" has no reader"}},
      {"no such tensor", 1, {no_such_tensor}, {}, {"tensor \"w\" is number 1", "has 1"}},
      {"rank", 1, {wrong_rank}, {}, {"tensor \"w\"", "2 dims", "[3] has 1"}},
      {"too large", 1, {too_large}, {}, {}},
      {"user_json", 1, {good}, {.user_json = "{"}, {"user_json"}},
      {"user_json, empty", 1, {good}, {.user_json = ""}, {"user_json"}},
      {"budget", 1, {good}, {.memory_budget_bytes = 1000}, {"1000", "8388608"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string message = message_of(
        ErrorCode::invalid_argument, [&] { manager.save_async(c.step, c.tensors, c.options); });
    for (const char* part : c.parts) EXPECT_THAT(message, HasSubstr(part));
    EXPECT_THAT(names_in(dir.path()), IsEmpty());
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { CheckpointManager(dir.path(), {.keep = {.last = -1}}); }),
              HasSubstr("keep_last is -1"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { manager.step(7); }), HasSubstr("none"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { manager.remove(7); }), HasSubstr("step 7"));
}

TEST(CheckpointManager, KeepsOrReplacesWhatIsThere) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const auto first = model(1), second = model(2), third = model(3);
  manager.save(5, sources_of(first));
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { manager.save(5, sources_of(second)); }),
              HasSubstr("step-00000005 is already there; Existing::replace writes a new generation "
                        "of it, Existing::skip writes nothing"));
  expect_holds(manager.step(5).directory, first);

  EXPECT_EQ(manager.save(5, sources_of(second), {.existing = Existing::replace}).directory,
            dir / "step-00000005.g2");
  manager.collect_garbage();
  EXPECT_THAT(names_in(dir.path()), ElementsAre("stats-step-00000005.g2.json", "step-00000005.g2"));
  expect_holds(manager.step(5).directory, second);
  EXPECT_EQ(manager.step(5).generation, 2);
  EXPECT_THROW(manager.save(5, sources_of(third)), Error);

  manager.save(5, sources_of(third), {.existing = Existing::replace});
  manager.collect_garbage();
  EXPECT_THAT(names_in(dir.path()), ElementsAre("stats-step-00000005.g3.json", "step-00000005.g3"));
  manager.save(6, sources_of(third), {.existing = Existing::replace});
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(5, 6));
  expect_holds(manager.step(6).directory, third);
}

TEST(CheckpointManager, SkipsAStepThatIsThere) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const auto first = model(1), second = model(2);
  const SaveStats saved = manager.save(5, sources_of(first), {.existing = Existing::skip});
  EXPECT_FALSE(saved.skipped);
  EXPECT_GT(saved.logical_bytes, 0u);
  manager.save(5, sources_of(first), {.existing = Existing::replace});
  for (const SaveStats& stats :
       {manager.save(5, sources_of(second), {.existing = Existing::skip}),
        manager.save_async(5, sources_of(second), {.existing = Existing::skip}).wait()}) {
    EXPECT_TRUE(stats.skipped);
    EXPECT_EQ(stats.directory, dir / "step-00000005.g2");
    EXPECT_EQ(stats.logical_bytes + stats.stored_bytes + stats.file_bytes, 0u);
  }
  manager.collect_garbage();
  EXPECT_THAT(names_in(dir.path()), ElementsAre("stats-step-00000005.g2.json", "step-00000005.g2"));
  expect_holds(manager.step(5).directory, first);
}

TEST(CheckpointManager, RemovesAStepWithAllItsGenerations) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  manager.save(1, sources_of(model(1)));
  manager.save(2, sources_of(model(2)));
  std::filesystem::copy(dir / "step-00000001", dir / "step-00000001.g4");
  std::filesystem::create_directories(dir / "step-00000001.g4/notes/deeper");
  manager.remove(1);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("stats-step-00000002.json", "step-00000002"));
  manager.save(1, sources_of(model(3)));
  expect_holds(manager.step(1).directory, model(3));
}

TEST(CheckpointManager, KeepsTheNewestValidSteps) {
  const TempDir dir;
  CheckpointManager manager(dir.path(), {.keep = {.last = 2}});
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, sources_of(model(1)));
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(20, 30));
  // A damaged step does not count among those that are kept.
  damage_manifest(manager.step(30).directory);
  manager.save(40, sources_of(model(1)));
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(20, 30, 40));
  manager.save(50, sources_of(model(1)));
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(40, 50));
  // Steps may be saved in any order; the newest are those with the highest numbers.
  manager.save(45, sources_of(model(1)));
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(45, 50));
}

TEST(CheckpointManager, KeepsTheLastValidStepBesideDamagedNewerOnes) {
  const TempDir dir;
  CheckpointManager all(dir.path());
  for (const std::int64_t step : {1, 2, 3}) all.save(step, sources_of(model(1)));
  damage_manifest(all.step(2).directory);
  damage_manifest(all.step(3).directory);
  CheckpointManager one(dir.path(), {.keep = {.last = 1}});
  one.save(0, sources_of(model(1)));
  EXPECT_THAT(numbers(one.steps()), ElementsAre(0, 1, 2, 3)) << "not the one just saved either";
}

TEST(CheckpointManager, LatestPassesDamagedStepsOverAndSaysSo) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  for (const std::int64_t step : {1, 2, 3}) manager.save(step, sources_of(model(1)));
  damage_manifest(manager.step(3).directory);
  std::filesystem::remove(dir / "step-00000002/shards-00000-of-00001.h5");
  const auto latest = manager.latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->step.step, 1);
  ASSERT_THAT(latest->rejected, SizeIs(2));
  EXPECT_EQ(latest->rejected[0].directory, dir / "step-00000003");
  EXPECT_THAT(latest->rejected[0].reason, HasSubstr("manifest.json"));
  EXPECT_THAT(latest->rejected[1].reason, HasSubstr("shards-00000-of-00001.h5"));

  damage_manifest(manager.step(1).directory);
  const std::string message = message_of(ErrorCode::corrupt, [&] { manager.latest(); });
  for (const char* part : {"step-00000001", "step-00000002", "step-00000003", "none of 3"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

// That a step cannot be read now says nothing of its bytes: an older one would be a silent way
// back.
TEST(CheckpointManager, LatestIsTheNewestOrAnErrorWhateverReadFails) {
  const TempDir dir;
  const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
  CheckpointManager manager(dir.path(), {.file_system = files});
  for (const std::int64_t step : {1, 2}) manager.save(step, sources_of(model(1)));
  files->restart(0);
  manager.latest();
  const std::int64_t operations = files->operations();
  ASSERT_GT(operations, 5);
  std::int64_t failed = 0;
  for (std::int64_t at = 1; at <= operations; ++at) {
    SCOPED_TRACE(at);
    files->restart(at);
    try {
      const auto latest = manager.latest();
      ASSERT_TRUE(latest);
      EXPECT_EQ(latest->step.step, 2);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
      ++failed;
    }
  }
  EXPECT_GE(failed, operations - 2) << "but closing may fail without harm";
  const auto newest = std::make_shared<HookedFileSystem>(
      [](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "open" && path.parent_path().filename() == "step-00000002") {
          throw Error(ErrorCode::io, "too many open files");
        }
      });
  CheckpointManager other(dir.path(), {.file_system = newest});
  EXPECT_THAT(message_of(ErrorCode::io, [&] { other.latest(); }),
              AllOf(HasSubstr("step-00000002"), HasSubstr("too many open files")));
}

TEST(CheckpointManager, LatestTakesAnOlderGenerationWhereTheNewestIsDamaged) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  manager.save(1, sources_of(model(1)));
  std::filesystem::copy(dir / "step-00000001", dir / "step-00000001.g2");
  damage_manifest(dir / "step-00000001.g2");
  EXPECT_EQ(manager.latest()->step.directory, dir / "step-00000001");
  EXPECT_THAT(manager.latest()->rejected, SizeIs(1));
}

TEST(CheckpointManager, ListsOnlyWhatIsSpeltAsAStep) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  manager.save(123456789, sources_of(model(1)));
  for (const char* name :
       {"step-1x", "step-", "step-00000001.g1", "step-00000001.g", "step-00000001.g02",
        "step--0000001", "notes", "Step-00000001", "step-00000001.tmp", ".step-00000001"}) {
    std::filesystem::create_directory(dir / name);
  }
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(123456789));
}

// The save is asynchronous: it is under way while its caller goes on, and the caller's arrays are
// shared until it is done, not copied.
TEST(CheckpointManager, GoesOnBehindItsCallersBack) {
  const TempDir dir;
  std::latch started(1), go_on(1);
  CheckpointManager manager(dir.path());
  Devices devices(1);
  const HostTensor tensor = host_tensor("x", DType::f32, {1000, 300}, "", "-,-");
  std::optional<ShardedArray> array = ShardedArray::from_host(devices, tensor.spec, *tensor.data);
  const std::size_t in_use = devices.at(0).memory().in_use_bytes;
  std::atomic<bool> waited = false;
  SaveOptions options;
  options.progress = [&](const Progress&) {
    if (waited.exchange(true)) return;
    started.count_down();
    go_on.wait();
  };
  const Stopwatch watch;
  const PendingSave pending = manager.save_async(3, {tensor_source("x", *array)}, options);
  const double returned = watch.seconds();
  array.reset();
  started.wait();
  EXPECT_FALSE(pending.done());
  EXPECT_THAT(manager.steps(), IsEmpty());
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, in_use);
  go_on.count_down();
  const SaveStats stats = pending.wait();
  EXPECT_TRUE(pending.done());
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
  EXPECT_LE(stats.blocked_seconds, returned);
  expect_holds(stats.directory, std::span(&tensor, 1));
}

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TensorSource throwing_source(const char* what) {
  const HostTensor tensor = model(1)[0];
  return callback_tensor(tensor.name, tensor.spec,
                         [what](const Box&, std::span<std::byte>) { throw Boom(what); });
}

std::string boom_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Boom& boom) {
    return boom.what();
  }
  return "nothing thrown";
}

TEST(CheckpointManager, CallersErrorsComeBackUnchanged) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  EXPECT_EQ(boom_of([&] { manager.save(1, {throwing_source("read")}); }), "read");
  SaveOptions options;
  options.progress = [](const Progress&) { throw Boom("progress"); };
  EXPECT_EQ(boom_of([&] { manager.save(1, sources_of(model(1)), options); }), "progress");
  options.progress = [](const Progress&) { throw Error(ErrorCode::cancelled, "stop here"); };
  EXPECT_EQ(
      message_of(ErrorCode::cancelled, [&] { manager.save(1, sources_of(model(1)), options); }),
      "stop here");
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

TEST(CheckpointManager, ErrorsSurfaceOnceAtWaitNextSaveOrClose) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const PendingSave first = manager.save_async(1, {throwing_source("first")});
  EXPECT_EQ(boom_of([&] { first.wait(); }), "first");
  EXPECT_EQ(boom_of([&] { first.wait(); }), "first") << "as often as it is asked";
  manager.close();

  manager.save_async(2, {throwing_source("second")});
  EXPECT_EQ(boom_of([&] { manager.save_async(3, sources_of(model(1))); }), "second");
  EXPECT_THAT(manager.steps(), IsEmpty()) << "the save that told of it has not begun";

  manager.save_async(4, {throwing_source("third")});
  EXPECT_EQ(boom_of([&] { manager.close(); }), "third");
  manager.close();
  manager.save(5, sources_of(model(1)));
  EXPECT_THAT(numbers(manager.steps()), ElementsAre(5));
}

TEST(CheckpointManager, DestructionTellsOfErrorsThatNobodyHasSeen) {
  const TempDir dir;
  const auto full = std::make_shared<HookedFileSystem>(
      [](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "create" && path.extension() == ".h5" &&
            path.string().find("step-00000007") != std::string::npos) {
          throw Error(ErrorCode::io, "create shards: No space left on device");
        }
      });
  const auto end_of = [&](const std::function<void(CheckpointManager&)>& body) {
    testing::internal::CaptureStderr();
    {
      CheckpointManager manager(dir.path(), {.file_system = full});
      body(manager);
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(end_of([](auto& manager) { manager.save_async(7, sources_of(model(1))); }),
            "shardwise: save step 7: create shards: No space left on device; found by a "
            "destructor: close() throws it\n");
  EXPECT_EQ(
      end_of([](auto& manager) { manager.save_async(8, {throwing_source("of the caller")}); }),
      "shardwise: of the caller; found by a destructor: close() throws it\n");
  EXPECT_EQ(end_of([](auto& manager) {
              const PendingSave pending = manager.save_async(7, sources_of(model(1)));
              EXPECT_THROW(pending.wait(), Error);
              manager.save_async(7, sources_of(model(1)));
              EXPECT_THROW(manager.close(), Error);
            }),
            "");
}

TEST(CheckpointManager, DestructionWaitsForTheSaveUnderWay) {
  const TempDir dir;
  {
    CheckpointManager manager(dir.path());
    manager.save_async(1, sources_of(model(1)));
  }
  EXPECT_THAT(names_in(dir.path()), ElementsAre("stats-step-00000001.json", "step-00000001"));
  expect_holds(dir / "step-00000001", model(1));
}

TEST(CheckpointManager, ProgressEndsAtTheTotal) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {2048, 1025}, "2,2", "0,1");
  std::size_t last = 0;
  int calls = 0;
  SaveOptions options{.memory_budget_bytes = std::size_t{8} << 20};
  options.progress = [&](const Progress& progress) {
    ++calls;
    EXPECT_GT(progress.done_bytes, last);
    last = progress.done_bytes;
    EXPECT_EQ(progress.total_bytes, tensor.data->size());
  };
  manager.save(1, {tensor.source()}, options);
  EXPECT_EQ(last, tensor.data->size());
  EXPECT_GE(calls, 1);
}

TEST(CheckpointManager, TwoManagersOnOneRootLeaveEachOtherAlone) {
  const TempDir dir;
  std::latch started(1), go_on(1);
  CheckpointManager first(dir.path());
  SaveOptions options;
  options.progress = [&, waited = false](const Progress&) mutable {
    if (std::exchange(waited, true)) return;
    started.count_down();
    go_on.wait();
  };
  const PendingSave pending = first.save_async(1, sources_of(model(1)), options);
  started.wait();

  CheckpointManager second(dir.path());
  EXPECT_THAT(second.collect_garbage().removed, IsEmpty());
  EXPECT_THAT(second.collect_garbage().kept, SizeIs(2));
  EXPECT_THAT(second.steps(), IsEmpty());
  second.save(2, sources_of(model(2)));
  // Both save step 1; the second is faster, so the first must not replace it.
  second.save(1, sources_of(model(3)));
  go_on.count_down();
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { pending.wait(); }),
              HasSubstr("save step 1"));
  EXPECT_THAT(names_in(dir.path()),
              ElementsAre("stats-step-00000001.json", "stats-step-00000002.json", "step-00000001",
                          "step-00000002"));
  expect_holds(first.step(1).directory, model(3));
}

TEST(CheckpointManager, ManyManagersReplaceOneStepAtOnce) {
  const TempDir dir;
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      threads.emplace_back([&dir, seed] {
        CheckpointManager manager(dir.path(), {.write = {.threads = 1}});
        for (int i = 0; i < 3; ++i) {
          manager.save(1, sources_of(model(seed)), {.existing = Existing::replace});
        }
      });
    }
  }
  CheckpointManager manager(dir.path());
  ASSERT_THAT(manager.steps(), SizeIs(1));
  const CheckpointReader reader(manager.latest()->step.directory, {.pin = false});
  EXPECT_THAT(manager.latest()->rejected, IsEmpty());
  EXPECT_THAT(names_in(dir.path()), SizeIs(2)) << "with what its save did";
}

}  // namespace
}  // namespace shardwise
