#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/random_shardings.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAre;

HostTensor small(std::uint64_t seed = 1) {
  return host_tensor("w", DType::f32, {8, 6}, "data=4", "data,-", Values::noise, seed);
}

std::vector<std::string> entries_of(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

// Which devices a writer has, of four writers; one has none.
const std::vector<std::int64_t> kStarts{0, 2, 2, 3, 2048};

TEST(AnyPath, IsSavedOpenedRenamedAndReplaced) {
  const TempDir dir;
  const std::vector<HostTensor> tensors{small()};
  const fs::path path = dir / "runs" / "best model";
  const SaveStats stats = save_checkpoint(path / "", sources_of(tensors), Existing::fail, {},
                                          {.user_json = "[1]", .objects_json = "{\"a\": 2}"});
  EXPECT_EQ(stats.directory, path);
  EXPECT_TRUE(verify_checkpoint(path).ok());
  {
    const CheckpointReader reader(path);
    EXPECT_TRUE(holds(reader, tensors));
    EXPECT_EQ(reader.step(), -1);
    EXPECT_EQ(reader.user_json(), "[1]");
    EXPECT_EQ(reader.objects_json(), "{\"a\": 2}");
  }

  const std::vector<HostTensor> others{small(2)};
  EXPECT_THAT(
      message_of(ErrorCode::already_exists, [&] { save_checkpoint(path, sources_of(others)); }),
      HasSubstr("it is already there: Existing::replace takes its place, Existing::skip writes "
                "nothing"));
  const SaveStats skipped = save_checkpoint(path, sources_of(others), Existing::skip);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.directory, path);
  EXPECT_EQ(skipped.file_bytes, 0u);
  EXPECT_THROW(CheckpointAttempt(path, Existing::skip), Error);
  EXPECT_TRUE(holds(CheckpointReader(path), tensors));
  EXPECT_FALSE(save_checkpoint(dir / "new", sources_of(others), Existing::skip).skipped);
  EXPECT_TRUE(holds(CheckpointReader(dir / "new"), others));
  save_checkpoint(path, sources_of(others), Existing::replace);
  EXPECT_TRUE(holds(CheckpointReader(path), others));
  EXPECT_THAT(entries_of(path.parent_path()), UnorderedElementsAre("best model"));

  fs::remove_all(dir / "new");
  fs::rename(path, dir / "step-7");
  EXPECT_EQ(CheckpointReader(dir / "step-7").step(), 7);
  CheckpointManager manager(dir.path());
  const auto latest = manager.latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->step.step, 7);
  EXPECT_EQ(latest->step.directory, dir / "step-7");
  manager.save(8, sources_of(tensors));
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { manager.save(7, sources_of(tensors)); }),
              HasSubstr("step-7"));
  manager.remove(7);
  EXPECT_EQ(manager.steps().size(), 1u);
}

TEST(AnyPath, OnlyAValidCheckpointIsSkipped) {
  const TempDir dir;
  const std::vector<HostTensor> tensors{small()};
  const auto file_of = [](const fs::path& path) { return path / "shards-00000-of-00001.h5"; };
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> others{
      {"an empty folder",
       [](const fs::path& path) {
         fs::remove_all(path);
         fs::create_directory(path);
       }},
      {"a file",
       [](const fs::path& path) {
         fs::remove_all(path);
         std::ofstream(path) << "text";
       }},
      {"a dangling link",
       [](const fs::path& path) {
         fs::remove_all(path);
         fs::create_symlink("nowhere", path);
       }},
      {"no manifest", [](const fs::path& path) { fs::remove(path / "manifest.json"); }},
      {"a damaged manifest",
       [](const fs::path& path) { fs::resize_file(path / "manifest.json", 100); }},
      {"no shard file", [&](const fs::path& path) { fs::remove(file_of(path)); }},
      {"half a shard file", [&](const fs::path& path) { fs::resize_file(file_of(path), 100); }}};
  for (const auto& [what, make] : others) {
    SCOPED_TRACE(what);
    const fs::path path = dir / what;
    save_checkpoint(path, sources_of(tensors));
    EXPECT_TRUE(is_saved(path));
    make(path);
    const std::string said = message_of(ErrorCode::already_exists, [&] {
      save_checkpoint(path, sources_of(tensors), Existing::skip);
    });
    EXPECT_THAT(said, StartsWith("save " + path.string() +
                                 ": Existing::skip needs a valid checkpoint there, found none ("));
    EXPECT_THAT(said, EndsWith("); Existing::replace takes its place"));
    EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { is_saved(path); }), said);
  }
  EXPECT_FALSE(is_saved(dir / "none" / "of these"));
  EXPECT_FALSE(fs::exists(dir / "none"));
  fs::create_symlink("kept", dir / "a link");
  save_checkpoint(dir / "kept", sources_of(tensors));
  EXPECT_TRUE(save_checkpoint(dir / "a link", sources_of(tensors), Existing::skip).skipped);
}

TEST(AnyPath, ReplacesNothingThatIsNoCheckpoint) {
  const TempDir dir;
  fs::create_directory(dir / "photos");
  for (const bool is_directory : {true, false}) {
    SCOPED_TRACE(is_directory);
    const fs::path path = dir / "photos" / (is_directory ? "" : "me.png");
    if (!is_directory) std::ofstream(path) << "png";
    EXPECT_THAT(message_of(ErrorCode::already_exists,
                           [&] { save_checkpoint(path, {small().source()}, Existing::replace); }),
                HasSubstr("it is no checkpoint"));
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_THAT(entries_of(dir.path()), UnorderedElementsAre("photos"));
  for (const char* bad : {"", "/", ".trash-x.00000000000000000000000000000000"}) {
    EXPECT_ANY_THROW(save_checkpoint(*bad == '.' ? dir / bad : fs::path(bad), {})) << bad;
  }
}

// Where the file system cannot exchange, and where an operation of the replacement fails: one of
// the two is there, whole, and nothing else.
TEST(AnyPath, IsTheOldOneOrTheNewOneWhateverFails) {
  for (const bool can_exchange : {true, false}) {
    int failed = 0;
    for (int fails = 0;; ++fails) {
      SCOPED_TRACE(testing::Message() << can_exchange << ", operation " << fails);
      const TempDir dir;
      const std::vector<HostTensor> old{small(1)}, fresh{small(2)};
      save_checkpoint(dir / "a", sources_of(old));
      int left = fails;
      bool armed = false, met = false;
      const auto files =
          std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path&) {
            if (operation == "exchange" && !can_exchange) {
              throw Error(ErrorCode::unsupported, "exchange: no such call");
            }
            if (!armed || met || operation == "remove" || left-- > 0) return;
            met = true;
            throw Error(ErrorCode::io, "injected");
          });
      bool published = true;
      {
        CheckpointAttempt attempt(dir / "a", Existing::replace, files);
        const ShardRecord record = write_shards(attempt.directory(), {}, sources_of(fresh));
        armed = true;
        try {
          attempt.publish({&record, 1});
        } catch (const Error&) {
          published = false;
        }
        armed = false;
      }
      EXPECT_TRUE(holds(CheckpointReader(dir / "a"), published ? fresh : old));
      EXPECT_EQ(entries_of(dir.path()), std::vector<std::string>{"a"});
      if (!met) break;
      EXPECT_FALSE(published);
      ++failed;
    }
    EXPECT_GT(failed, can_exchange ? 4 : 6);
  }
}

// Writers that somebody else brings together: random shardings, and one tensor in listed boxes.
TEST(Attempt, IsWrittenByAnyWriters) {
  RandomShardings random(5);
  for (int round = 0; round < 40; ++round) {
    const TempDir dir;
    const Mesh mesh = random.mesh();
    std::vector<HostTensor> tensors;
    for (int t = 0; t < 3; ++t) {
      const Shape shape{random.draw(0, 300), random.draw(1, 300)};
      tensors.push_back(host_tensor("t" + std::to_string(t), DType::f32, shape,
                                    mesh.to_string().c_str(),
                                    random.spec_with_parts(mesh, 2).to_string().c_str()));
    }
    tensors.push_back(host_tensor("listed", DType::bf16, {40, 30}, "x=1", "-,-"));
    const std::int64_t cut = random.draw(0, 40);
    CheckpointAttempt attempt(dir / "a");
    std::vector<ShardRecord> records;
    for (std::int64_t w = 3; w >= 0; --w) {
      std::vector<TensorSource> sources = sources_of(tensors);
      TensorSource& listed = sources.back();
      listed.sharding.reset();
      listed.boxes.emplace();
      const Box upper({0, 0}, {cut, 30}), lower({cut, 0}, {40, 30});
      if (w == 1 && !upper.empty()) listed.boxes->push_back(upper);
      if (w == 3 && !lower.empty()) listed.boxes->push_back(lower);
      records.push_back(write_shards(attempt.directory(), {w, kStarts}, std::move(sources)));
    }
    EXPECT_THAT(entries_of(dir.path()), testing::Not(testing::Contains("a")));
    attempt.publish(records);
    EXPECT_TRUE(verify_checkpoint(dir / "a").ok());
    EXPECT_TRUE(holds(CheckpointReader(dir / "a"), tensors));
  }
}

TEST(Attempt, IsRefusedWhereRecordsDoNotFit) {
  const TempDir dir;
  CheckpointAttempt attempt(dir / "a");
  const auto write = [&](std::int64_t writer, std::vector<TensorSource> sources) {
    return write_shards(attempt.directory(), {writer, {0, 2, 4}}, std::move(sources));
  };
  const auto problem = [&](std::vector<ShardRecord> records) {
    std::string text;
    try {
      attempt.publish(records);
    } catch (const Error& e) {
      text = e.what();
    }
    EXPECT_FALSE(fs::exists(dir / "a"));
    return text;
  };
  const auto first = write(0, {small().source()});
  const auto second = write(1, {});
  EXPECT_THAT(problem({first}), HasSubstr("found records of 1 writers, needed 2"));
  EXPECT_THAT(problem({first, first}), HasSubstr("writer 0 of 2, needed one of writer 1"));
  EXPECT_THAT(problem({first, second}), HasSubstr("writer 1 was not given tensor \"w\""));
  EXPECT_THAT(problem({first, ShardRecord(16)}), HasSubstr("record"));

  CheckpointAttempt another(dir / "b");
  const auto half = [&](std::int64_t writer, std::vector<Box> boxes) {
    TensorSource source = small().source();
    source.sharding.reset();
    source.boxes = std::move(boxes);
    return write_shards(another.directory(), {writer, {0, 2, 4}}, {source});
  };
  const auto upper = half(0, {Box({0, 0}, {4, 6})});
  const std::vector<ShardRecord> holes{upper, half(1, {Box({5, 0}, {8, 6})})};
  EXPECT_THROW(another.publish(holes), Error);
  EXPECT_FALSE(fs::exists(dir / "b"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           half(1, {Box({5, 0}, {9, 6})});
                         }),
              HasSubstr("leaves its shape"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           write_shards(another.directory(), {2, {0, 2, 4}}, {small().source()});
                         }),
              HasSubstr("writer 2 of starts"));
}

TEST(Attempt, LeavesNothingWhereItIsNotPublished) {
  const TempDir dir;
  {
    CheckpointAttempt attempt(dir / "a");
    static_cast<void>(write_shards(attempt.directory(), {}, {small().source()}));
    EXPECT_THAT(message_of(ErrorCode::not_found, [&] { CheckpointReader(attempt.directory()); }),
                HasSubstr("it was not committed"));
  }
  EXPECT_THAT(entries_of(dir.path()), testing::IsEmpty());
}

TEST(Reader, FillsSeveralBoxesAndReadsEachChunkOnce) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("w", DType::f32, {1024, 1024}, "data=1", "data,-");
  save_checkpoint(dir / "a", {tensor.source()}, Existing::fail, {.codec = Codec::none});
  const CheckpointReader reader(dir / "a");
  std::vector<Box> boxes;
  std::vector<std::vector<std::byte>> found;
  for (std::int64_t row = 0; row < 1024; row += 64) {
    boxes.push_back(Box({row, 16}, {row + 1, 32}));
    found.emplace_back(16 * 4);
  }
  std::vector<BoxTarget> targets;
  for (std::size_t i = 0; i < boxes.size(); ++i) targets.push_back({0, boxes[i], found[i]});
  reader.read(targets);
  for (std::size_t i = 0; i < boxes.size(); ++i) EXPECT_EQ(found[i], tensor.part(boxes[i]));
  EXPECT_EQ(reader.stats().chunks, reader.tensors()[0].chunks);
}

}  // namespace
}  // namespace shardwise
