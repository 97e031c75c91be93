// Several processes together save the same as one alone.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/errors.h"
#include "testing/group_checkpoint.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/random_shardings.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& directory) {
  const std::vector<std::string> names = root_names(directory);
  return {names.begin(), names.end()};
}

/// The files are the same bytes, and the manifests but for the attempt's id.
void expect_equal_checkpoints(const fs::path& found, const fs::path& expected) {
  ASSERT_EQ(names_in(found), names_in(expected));
  for (const std::string& name : names_in(expected)) {
    if (name == detail::kManifestName) {
      auto a = detail::parse_manifest(file_text(found / name), "found");
      const auto b = detail::parse_manifest(file_text(expected / name), "expected");
      a.id = b.id;
      EXPECT_EQ(detail::print_manifest(a), detail::print_manifest(b));
    } else {
      EXPECT_EQ(file_bytes(found / name) == file_bytes(expected / name), true) << name;
    }
  }
}

std::vector<HostTensor> random_tensors(RandomShardings& random, const Mesh& mesh) {
  std::vector<HostTensor> tensors;
  const std::int64_t count = random.draw(1, 6);
  for (std::int64_t t = 0; t < count; ++t) {
    const auto rank = static_cast<std::size_t>(random.draw(0, 3));
    const bool large = random.draw(0, 2) == 0;
    Shape shape;
    for (std::size_t d = 0; d < rank; ++d) {
      shape.push_back(random.draw(0, large ? (rank == 1 ? 900'000 : 120) : 9));
    }
    const std::string spec = random.spec(mesh, rank).to_string();
    tensors.push_back(host_tensor("t" + std::to_string(t), DType::f32, shape, mesh.to_string(),
                                  spec, t % 2 == 0 ? Values::ramp : Values::noise,
                                  static_cast<std::uint64_t>(t) + 1));
  }
  return tensors;
}

/// The tensors as a rank of `ranks` has them: the boxes of its devices of `devices`, no others.
std::vector<TensorSource> held_by(int rank, int ranks, std::int64_t devices,
                                  const std::vector<HostTensor>& tensors) {
  std::vector<TensorSource> sources;
  for (const HostTensor& tensor : tensors) {
    const auto read = [=](const Box& box, std::span<std::byte> out) {
      const Sharding& sharding = tensor.spec.sharding;
      std::int64_t held = 0;  // elements
      for (const DistinctPiece& piece : sharding.distinct_pieces(tensor.spec.shape)) {
        const bool is_here = std::ranges::any_of(piece.positions, [&](std::int64_t position) {
          return sharding.mesh().device_at(position) * ranks / devices == rank;
        });
        if (is_here) held += intersect(piece.box, box).num_elements();
      }
      if (held < box.num_elements()) {
        throw std::runtime_error("rank " + std::to_string(rank) + " does not hold that");
      }
      const std::vector<std::byte> part = tensor.part(box);
      std::ranges::copy(part, out.begin());
    };
    sources.push_back(callback_tensor(tensor.name, tensor.spec, read));
  }
  return sources;
}

std::int64_t devices_of(const Mesh& mesh) {
  std::int64_t devices = 0;
  for (std::int64_t p = 0; p < mesh.size(); ++p) devices = std::max(devices, mesh.device_at(p) + 1);
  return devices;
}

TEST(GroupSave, IsByteForByteWhatOneProcessSaves) {
  RandomShardings random(17);
  std::set<std::size_t> files;
  for (int round = 0; round < 60; ++round) {
    const TempDir dir;
    const Mesh mesh = random.mesh();
    const std::vector<HostTensor> tensors = random_tensors(random, mesh);
    GroupSaveOptions options{.ranks = static_cast<int>(random.draw(1, 6))};
    options.sources = [&](int rank) {
      return held_by(rank, options.ranks, devices_of(mesh), tensors);
    };
    options.save.writers = random.draw(1, 3);
    options.save.user_json = R"({"epoch":1})";
    options.save.codec = random.draw(0, 1) == 0 ? Codec::none : Codec::zstd;
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << mesh.to_string() << ", "
                                    << options.ranks << " ranks of " << options.save.writers);
    const GroupOutcome outcome = group_save(dir / "group", 3, {}, options);
    ASSERT_THAT(outcome.errors, Each(""));

    CheckpointManager one(dir / "one");
    SaveOptions alone = options.save;
    alone.writers *= options.ranks;
    const SaveStats stats = one.save(3, sources_of(tensors), alone);
    expect_equal_checkpoints(dir / "group/step-00000003", stats.directory);
    for (const SaveStats& of_rank : outcome.stats) {
      EXPECT_EQ(of_rank.directory, dir / "group/step-00000003");
      EXPECT_EQ(of_rank.logical_bytes, stats.logical_bytes);
      EXPECT_EQ(of_rank.stored_bytes, stats.stored_bytes);
      EXPECT_EQ(of_rank.chunks, stats.chunks);
      EXPECT_EQ(of_rank.file_bytes, stats.file_bytes);
    }
    EXPECT_THAT(verify_checkpoint(dir / "group/step-00000003").damage, IsEmpty());
    EXPECT_TRUE(holds(CheckpointReader(dir / "group/step-00000003"), tensors));
    EXPECT_THAT(names_in(dir / "group"),
                testing::ElementsAre("stats-step-00000003.json", "step-00000003"));
    files.insert(names_in(dir / "group/step-00000003").size());
  }
  EXPECT_GT(files.size(), 5u);
}

// Stage s has devices 2 s and 2 s + 1, and tensors of its own; some are on all devices.
std::vector<HostTensor> stage_tensors(int stage) {
  const std::string mesh =
      "data=2@" + std::to_string(2 * stage) + "," + std::to_string(2 * stage + 1);
  return {host_tensor("embedding", DType::f32, {40, 3}, "data=6", "data,-"),
          host_tensor("layer" + std::to_string(stage), DType::f32, {70, 300}, mesh, "data,-"),
          host_tensor("bias" + std::to_string(stage), DType::bf16, {300}, mesh, "-")};
}

TEST(GroupSave, TakesTheTensorsOfPipelineStages) {
  const TempDir dir;
  std::vector<HostTensor> all;
  for (int stage = 0; stage < 3; ++stage) {
    for (HostTensor& tensor : stage_tensors(stage)) {
      if (stage == 0 || tensor.name != "embedding") all.push_back(std::move(tensor));
    }
  }
  GroupSaveOptions options{.ranks = 6, .devices = 6};
  options.sources = [](int rank) { return sources_of(stage_tensors(rank / 2)); };
  const GroupOutcome outcome = group_save(dir / "group", 1, {}, options);
  ASSERT_THAT(outcome.errors, Each(""));
  CheckpointManager one(dir / "one");
  const SaveStats stats = one.save(1, sources_of(all), {.writers = 6});
  expect_equal_checkpoints(outcome.stats[0].directory, stats.directory);
  EXPECT_TRUE(holds(CheckpointReader(outcome.stats[0].directory), all));
}

// Without a sharding a rank lists its boxes; it has none of one tensor.
TEST(GroupSave, TakesListedBoxes) {
  const TempDir dir;
  const HostTensor a = host_tensor("a", DType::f32, {10, 300}, "1", "-,-", Values::noise, 1),
                   b = host_tensor("b", DType::i64, {5}, "1", "-", Values::ramp, 2);
  const auto listed = [&](int rank) {
    std::vector<TensorSource> sources = sources_of(std::vector<HostTensor>{a, b});
    for (TensorSource& source : sources) source.sharding.reset();
    sources[0].boxes = rank == 0 ? std::vector<Box>{Box({0, 0}, {3, 300}), Box({7, 10}, {10, 20})}
                                 : std::vector<Box>{Box({3, 0}, {7, 300}), Box({7, 0}, {10, 10}),
                                                    Box({7, 20}, {10, 300})};
    sources[1].boxes = rank == 0 ? std::vector<Box>{} : std::vector<Box>{Box({0}, {5})};
    return sources;
  };
  GroupSaveOptions options{.ranks = 2, .devices = 2, .sources = listed};
  const GroupOutcome outcome = group_save(dir.path(), 1, {}, options);
  ASSERT_THAT(outcome.errors, Each(""));
  EXPECT_TRUE(verify_checkpoint(dir / "step-00000001").ok());
  EXPECT_TRUE(holds(CheckpointReader(dir / "step-00000001"), std::vector<HostTensor>{a, b}));
  options.save.writers = 2;
  EXPECT_THAT(group_save(dir.path(), 2, {}, options).errors,
              Each(HasSubstr("tensor \"a\" has boxes, with 2 writers: needed is 1")));
}

TEST(GroupSave, NamesBoxesThatAreMissingOrGivenTwice) {
  const TempDir dir;
  const HostTensor a = host_tensor("a", DType::f32, {6, 8}, "1", "-,-"),
                   b = host_tensor("b", DType::f32, {6, 8}, "1", "-,-");
  using Boxes = std::vector<Box>;
  const auto save = [&](const Boxes& first, const Boxes& second, const std::string& name) {
    GroupSaveOptions options{.ranks = 2, .devices = 2};
    options.sources = [&](int rank) {
      std::vector<TensorSource> sources = sources_of(std::vector<HostTensor>{a, b});
      for (TensorSource& source : sources) source.sharding.reset();
      sources[0].boxes = rank == 0 ? Boxes{Box({0, 0}, {6, 4})} : Boxes{Box({0, 4}, {6, 8})};
      sources[1].boxes = rank == 0 ? first : second;
      if (rank == 1) sources[1].name = name;
      return sources;
    };
    const GroupOutcome outcome = group_save(dir.path(), 1, {}, options);
    EXPECT_THAT(names_in(dir.path()), IsEmpty());
    return outcome.errors;
  };
  const Box left({0, 0}, {6, 4}), right({0, 4}, {6, 8});
  EXPECT_THAT(save({left}, {Box({2, 4}, {3, 7})}, "b"),
              Each(HasSubstr("tensor \"b\" f32 [6, 8]: no rank gave the box [0:2, 4:8]; rank 0 "
                             "gave [0:6, 0:4], rank 1 gave [2:3, 4:7]")));
  EXPECT_THAT(save({left}, {Box({0, 4}, {3, 8}), Box({3, 4}, {6, 7})}, "b"),
              Each(HasSubstr("no rank gave the box [3:6, 7:8]; ")));
  EXPECT_THAT(save({}, {}, "b"), Each(HasSubstr("no rank gave the box [0:6, 0:8]")));
  // As many elements as are needed, but not these.
  EXPECT_THAT(save({left}, {left}, "b"),
              Each(HasSubstr("tensor \"b\" f32 [6, 8]: rank 0 gave [0:6, 0:4] and rank 1 gave "
                             "[0:6, 0:4]: needed is each element once")));
  EXPECT_THAT(save({left, right}, {Box({5, 7}, {6, 8})}, "b"),
              Each(HasSubstr("rank 0 gave [0:6, 4:8] and rank 1 gave [5:6, 7:8]")));
  EXPECT_THAT(save({left}, {right}, "B"),
              Each(HasSubstr("tensor \"B\" f32 [6, 8]: no rank gave the box [0:6, 0:4]; rank 1 "
                             "gave [0:6, 4:8]; tensor \"b\" of rank 0 has holes, too: needed is "
                             "one name on all")));
}

TEST(GroupSave, SaysWhoWasNotGivenATensor) {
  const TempDir dir;
  GroupSaveOptions options{.ranks = 3, .devices = 6};
  options.sources = [](int rank) {
    auto tensors = stage_tensors(rank);
    if (rank == 2) tensors.erase(tensors.begin());
    return sources_of(tensors);
  };
  const GroupOutcome outcome = group_save(dir / "group", 1, {}, options);
  EXPECT_THAT(outcome.errors,
              Each(AllOf(HasSubstr("rank 2 was not given tensor \"embedding\" "),
                         HasSubstr("though its devices hold"), Not(HasSubstr("one name on all")))));
  EXPECT_THAT(names_in(dir / "group"), IsEmpty());
}

TEST(GroupSave, SaysWhichNameOneRankWritesInAnotherWay) {
  const TempDir dir;
  for (const int bad : {0, 2}) {
    GroupSaveOptions options{.ranks = 3, .devices = 3};
    options.sources = [=](int rank) {
      return sources_of(
          std::vector{host_tensor("a", DType::f32, {6, 4}, "3", "0,-"),
                      host_tensor(rank == bad ? "head" : "haed", DType::f32, {6, 4}, "3", "0,-")});
    };
    const auto without = fmt::format("[{}:{}, 0:4]", bad == 0 ? 0 : 4, bad == 0 ? 2 : 6);
    EXPECT_THAT(
        group_save(dir / "group", 1, {}, options).errors,
        Each(HasSubstr(fmt::format(
            "rank {} was not given tensor \"haed\" f32 [6, 4], though its devices hold {}; rank "
            "{} was not given tensor \"head\", which differs by its name alone: needed is one "
            "name on all",
            bad, without, bad == 0 ? 1 : 0))));
  }
  EXPECT_THAT(names_in(dir / "group"), IsEmpty());
}

TEST(GroupSave, RefusesRanksThatDoNotAgree) {
  const TempDir dir;
  const auto save = [&](const std::function<std::vector<TensorSource>(int)>& sources,
                        std::int64_t devices = 0) {
    GroupSaveOptions options{.ranks = 3, .devices = devices, .sources = sources};
    const GroupOutcome outcome = group_save(dir / "group", 1, {}, options);
    EXPECT_THAT(names_in(dir / "group"), IsEmpty());
    return outcome.errors;
  };
  const auto tensor = [](const char* name, const Shape& shape, const char* mesh, const char* spec) {
    return sources_of(std::vector{host_tensor(name, DType::f32, shape, mesh, spec)});
  };
  EXPECT_THAT(
      save([&](int rank) {
        return tensor("w", {6, rank == 2 ? 5 : 4}, "data=3", "data,-");
      }),
      Each(AllOf(HasSubstr("tensor \"w\" is f32 [6, 4] over data=3 as data,- (ceil) on rank 0"),
                 HasSubstr("f32 [6, 5] over data=3 as data,- (ceil) on rank 2"))));
  // These place the same, but ranks would divide the replicas differently.
  EXPECT_THAT(save([&](int rank) {
                return tensor("w", {6, 4}, rank == 1 ? "data=3@2,1,0" : "data=3", "-,-");
              }),
              Each(AllOf(HasSubstr("over data=3 as -,- (ceil) on rank 0"),
                         HasSubstr("over data=3@2,1,0 as -,- (ceil) on rank 1"))));
  EXPECT_THAT(save([&](int rank) {
                return tensor("w", {6, 4}, rank == 1 ? "data=2" : "data=3", "data,-");
              }),
              Each(HasSubstr("rank 0 counts 3 devices and 3 shard files, rank 1 2 and 3")));
  EXPECT_THAT(save(
                  [&](int) {
                    return tensor("w", {6, 4}, "data=3", "data,-");
                  },
                  2),
              Each(HasSubstr("tensor \"w\" is cut over device 2, the job has devices 0 to 1")));
  EXPECT_THAT(save([&](int rank) {
                return rank == 1 ? tensor("", {6}, "data=3", "data")
                                 : tensor("w", {6}, "data=3", "data");
              }),
              Each(HasSubstr("save: tensor name \"\" is empty")));
}

TEST(GroupSave, RefusesRanksThatSaveDifferentSteps) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("w", DType::f32, {4}, "data=2", "data");
  const auto errors = run_ranks(2, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    CheckpointManager manager(dir.path(), {.group = ProcessGroup(std::move(transport))});
    manager.save(5 + rank, {tensor.source()});
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 saves with step 5, rank 1 with 6")));
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

// Each of them on one rank alone: all are told which, and no file was written.
TEST(GroupSave, RefusesRanksThatGiveDifferentOptions) {
  const TempDir dir;
  const auto save = [&](const std::function<void(SaveOptions&, ManagerOptions&)>& change) {
    const auto errors = run_ranks(4, {}, [&](std::shared_ptr<SocketTransport> transport) {
      SaveOptions options;
      ManagerOptions manager_options;
      if (transport->rank() == 3) change(options, manager_options);
      manager_options.group = ProcessGroup(std::move(transport));
      CheckpointManager manager(dir.path(), manager_options);
      manager.save(5, {host_tensor("w", DType::f32, {4}, "data=4", "data").source()}, options);
    });
    EXPECT_THAT(names_in(dir.path()), IsEmpty());
    return errors;
  };
  const auto expect = [&](const char* message,
                          const std::function<void(SaveOptions&, ManagerOptions&)>& change) {
    EXPECT_THAT(save(change), Each(HasSubstr(message)));
  };
  expect("rank 0 saves with codec zstd, rank 3 with none",
         [](SaveOptions& save_options, ManagerOptions&) { save_options.codec = Codec::none; });
  expect("rank 0 saves with existing fail, rank 3 with replace",
         [](SaveOptions& save_options, ManagerOptions&) {
           save_options.existing = Existing::replace;
         });
  expect("rank 0 saves with writers 1, rank 3 with 2",
         [](SaveOptions& save_options, ManagerOptions&) { save_options.writers = 2; });
  expect("rank 0 saves with devices 0, rank 3 with 4",
         [](SaveOptions&, ManagerOptions& manager_options) { manager_options.devices = 4; });
  expect("rank 0 saves with user_json a text with the hash",
         [](SaveOptions& save_options, ManagerOptions&) { save_options.user_json = "1"; });
  expect("rank 0 saves with objects_json a text with the hash",
         [](SaveOptions& save_options, ManagerOptions&) { save_options.objects_json = "1"; });
}

TEST(GroupSave, SkipsOnAllRanksWhatRankZeroFinds) {
  const TempDir dir;
  const std::vector<HostTensor> first{host_tensor("w", DType::f32, {8}, "data=4", "data")};
  const std::vector<HostTensor> second{host_tensor("w", DType::f64, {8}, "data=4", "data")};
  GroupSaveOptions options{.ranks = 4, .save = {.existing = Existing::skip}};
  for (const SaveStats& stats : group_save(dir.path(), 5, sources_of(first), options).stats) {
    EXPECT_FALSE(stats.skipped);
    EXPECT_GT(stats.file_bytes, 0u);
  }
  const GroupOutcome outcome = group_save(dir.path(), 5, sources_of(second), options);
  EXPECT_THAT(outcome.errors, Each(""));
  for (const SaveStats& stats : outcome.stats) {
    EXPECT_TRUE(stats.skipped);
    EXPECT_EQ(stats.directory, dir / "step-00000005");
    EXPECT_EQ(stats.file_bytes, 0u);
  }
  EXPECT_TRUE(holds(CheckpointReader(dir / "step-00000005"), first));

  // A rank that differs is told of on all ranks, also if nothing is to be written.
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    SaveOptions save{.existing = Existing::skip};
    if (transport->rank() == 2) save.writers = 2;
    CheckpointManager manager(dir.path(), {.group = ProcessGroup(std::move(transport))});
    manager.save(5, sources_of(second), save);
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 saves with writers 1, rank 2 with 2")));
}

TEST(GroupSave, RefusesOnAllRanksToSkipADamagedStep) {
  const TempDir dir;
  const std::vector<HostTensor> tensors{host_tensor("w", DType::f32, {8}, "data=4", "data")};
  GroupSaveOptions options{.ranks = 4, .save = {.existing = Existing::skip}};
  group_save(dir.path(), 5, sources_of(tensors), options);
  fs::resize_file(dir / "step-00000005/shards-00002-of-00004.h5", 100);
  const GroupOutcome outcome = group_save(dir.path(), 5, sources_of(tensors), options);
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("Existing::skip needs a valid checkpoint there"),
                                         HasSubstr("shards-00002-of-00004.h5: it has 100 bytes"))));
  options.save.existing = Existing::replace;
  EXPECT_THAT(group_save(dir.path(), 5, sources_of(tensors), options).errors, Each(""));
  options.save.existing = Existing::skip;
  EXPECT_TRUE(group_save(dir.path(), 5, sources_of(tensors), options).stats[3].skipped);
}

TEST(GroupSave, SaysThatTheRootIsNotShared) {
  const TempDir dir;
  GroupSaveOptions options{.ranks = 3};
  options.root = [&](int rank) { return dir / (rank == 1 ? "of host b" : "of host a"); };
  const HostTensor tensor = host_tensor("w", DType::f32, {4}, "data=2", "data");
  const GroupOutcome outcome = group_save("", 1, {tensor.source()}, options);
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("of host b"), HasSubstr("which rank 0 has made"),
                                         HasSubstr("is not there for rank 1"),
                                         HasSubstr("a file system that they share"))));
  EXPECT_THAT(names_in(dir / "of host a"), IsEmpty());
}

// Retention, files that are written again, saves in the background, one after the other.
TEST(GroupSave, GoesOnForManySaves) {
  const TempDir dir;
  const auto tensor = [](std::uint64_t seed) {
    return host_tensor("w", DType::f32, {300, 400}, "data=3", "data,-", Values::noise, seed);
  };
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    CheckpointManager manager(dir.path(),
                              {.keep = {.last = 2}, .group = ProcessGroup(std::move(transport))});
    for (std::uint64_t step = 1; step <= 6; ++step) {
      manager.save_async(static_cast<std::int64_t>(step), {tensor(step).source()});
    }
    manager.close();
    const auto latest = manager.latest();
    ASSERT_TRUE(latest.has_value());
    EXPECT_EQ(latest->step.step, 6);
  });
  EXPECT_THAT(errors, Each(""));
  for (const std::uint64_t step : {5u, 6u}) {
    const fs::path path = dir / ("step-0000000" + std::to_string(step));
    EXPECT_THAT(verify_checkpoint(path).damage, IsEmpty());
    EXPECT_TRUE(holds(CheckpointReader(path), std::vector{tensor(step)}));
  }
  EXPECT_THAT(names_in(dir.path()),
              testing::ElementsAre("stats-step-00000005.json", "stats-step-00000006.json",
                                   "step-00000005", "step-00000006"));
}

TEST(GroupSave, TellsLittleWhateverTheNumberOfTensors) {
  const TempDir dir;
  for (const int count : {1, 500}) {
    std::vector<HostTensor> tensors;
    for (int t = 0; t < count; ++t) {
      tensors.push_back(
          host_tensor("layer/" + std::to_string(t), DType::f32, {8, 4}, "data=4", "data,-"));
    }
    const auto errors = run_ranks(4, {}, [&](const std::shared_ptr<SocketTransport>& transport) {
      CheckpointManager manager(dir.path(), {.group = ProcessGroup(transport)});
      manager.save(count, sources_of(tensors));
      // An attempt and an outcome to three ranks; a report from each.
      EXPECT_EQ(transport->sent(), transport->rank() == 0 ? 6 : 1);
      EXPECT_LE(transport->sent_bytes(), transport->rank() == 0 ? 6 * 200 : 200);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

}  // namespace
}  // namespace shardwise
