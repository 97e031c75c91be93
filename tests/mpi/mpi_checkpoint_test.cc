// Saves and restores by real processes. Every rank runs these, under mpirun.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "mpi_world.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/random_boxes.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// One directory for all ranks, which rank 0 makes and removes when all have come to the end.
class SharedDir {
 public:
  SharedDir() {
    if (mpi_world().rank() == 0) own_.emplace();
    const std::string name = own_ ? own_->path().string() : "";
    const auto bytes = std::as_bytes(std::span(name));
    const Bytes heard = mpi_world().broadcast(Bytes(bytes.begin(), bytes.end()));
    path_ = std::string(reinterpret_cast<const char*>(heard.data()), heard.size());
  }
  ~SharedDir() { mpi_world().barrier(); }

  const fs::path& path() const { return path_; }

 private:
  std::optional<TempDir> own_;
  fs::path path_;
};

/// Random tensors, the same for all ranks.
std::vector<HostTensor> random_tensors(RandomShardings& random, const Mesh& mesh) {
  std::vector<HostTensor> tensors;
  for (int t = 0; t < 4; ++t) {
    const Shape shape{random.draw(1, 400), random.draw(1, 300)};
    tensors.push_back(host_tensor("t" + std::to_string(t), t % 2 == 0 ? DType::f32 : DType::u8,
                                  shape, mesh.to_string(),
                                  random.spec_with_parts(mesh, 2).to_string()));
  }
  return tensors;
}

/// The files of a checkpoint, but the manifest, which has the attempt's id.
std::map<std::string, std::vector<std::byte>> files_of(const fs::path& step) {
  std::map<std::string, std::vector<std::byte>> files;
  for (const auto& entry : fs::directory_iterator(step)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto bytes = std::as_bytes(std::span(text));
    if (entry.path().filename() != "manifest.json") {
      files[entry.path().filename()] = {bytes.begin(), bytes.end()};
    }
  }
  return files;
}

// One process that acts as all writers writes the same files as they do.
TEST(MpiCheckpoint, HasTheFilesThatOneProcessWouldWrite) {
  const ProcessGroup& world = mpi_world();
  RandomShardings random(21);
  for (int round = 0; round < 12; ++round) {
    const SharedDir dir;
    const Mesh mesh = random.mesh();
    const std::vector<HostTensor> tensors = random_tensors(random, mesh);
    const Codec codec = round % 2 == 0 ? Codec::none : Codec::zstd;
    SCOPED_TRACE(testing::Message() << "round " << round << ", mesh " << mesh.to_string());
    CheckpointManager together(dir.path() / "together", {.write = {.threads = 2}, .group = world});
    const SaveStats stats = together.save(3, sources_of(tensors), {.codec = codec});
    EXPECT_EQ(together.latest()->step.directory, stats.directory);
    if (world.rank() == 0) {
      CheckpointManager alone(dir.path() / "alone", {.write = {.threads = 2}});
      const SaveStats one =
          alone.save(3, sources_of(tensors), {.codec = codec, .writers = world.size()});
      EXPECT_TRUE(files_of(stats.directory) == files_of(one.directory));
      EXPECT_EQ(stats.logical_bytes, one.logical_bytes);
      EXPECT_TRUE(verify_checkpoint(stats.directory).ok());
    }
    // Ranks read without each other.
    const CheckpointReader reader(stats.directory, {.threads = 2});
    EXPECT_TRUE(holds(reader, tensors));
  }
}

// The last rank has something wrong; all hear of it, and go on together afterwards.
TEST(MpiCheckpoint, OfWhichAPartFailsIsCommittedByNobody) {
  const ProcessGroup& world = mpi_world();
  const HostTensor tensor =
      host_tensor("w", DType::f32, {512, 64}, std::to_string(world.size()), "0,-");
  const int bad = world.size() - 1;
  TensorSource source = tensor.source();
  if (world.rank() == bad) {
    source = callback_tensor("w", tensor.spec, [](const Box&, std::span<std::byte>) {
      throw std::runtime_error("the GPU has fallen off the bus");
    });
  }
  const SharedDir dir;
  CheckpointManager manager(dir.path() / "root", {.write = {.threads = 2}, .group = world});
  manager.save(1, {tensor.source()});
  try {
    manager.save(2, {source});
    ADD_FAILURE() << "it was saved";
  } catch (const std::exception& e) {
    EXPECT_THAT(e.what(), HasSubstr("the GPU has fallen off the bus"));
    if (world.rank() != bad) {
      EXPECT_THAT(e.what(), HasSubstr("rank " + std::to_string(bad)));
    }
  }
  EXPECT_EQ(manager.latest()->step.step, 1);
  manager.save(2, {tensor.source()});
  EXPECT_EQ(manager.latest()->step.step, 2);
}

// The last rank gives its part wrongly: all are told the tensor, the rank and the box.
TEST(MpiCheckpoint, NamesTheTensorTheRankAndTheBoxOfAWrongPart) {
  const ProcessGroup& world = mpi_world();
  const int ranks = world.size(), bad = ranks - 1;
  if (ranks == 1) return;  // nobody else could have given the rest
  const bool is_bad = world.rank() == bad;
  const HostTensor whole = host_tensor("w", DType::f32, {2 * ranks, 6}, "1", "-,-"),
                   wide = host_tensor("w", DType::f64, {2 * ranks, 6}, "1", "-,-"),
                   long_one = host_tensor("w", DType::f32, {2 * ranks, 7}, "1", "-,-"),
                   sharded =
                       host_tensor("w", DType::f32, {2 * ranks, 6}, std::to_string(ranks), "0,-");
  const auto rows = [&](const HostTensor& tensor, std::int64_t from, std::int64_t to,
                        std::int64_t columns = 6) {
    TensorSource source = tensor.source();
    source.sharding.reset();
    source.boxes = {Box({from, 0}, {to, columns})};
    return source;
  };
  const auto named = [](TensorSource source) {
    source.name = "W";
    return source;
  };
  const SharedDir dir;
  CheckpointManager manager(dir.path() / "root",
                            {.write = {.threads = 1}, .group = world, .devices = ranks});
  const std::int64_t first = 2 * world.rank(), last = 2 * bad;
  const auto refused = [&](std::vector<TensorSource> good, std::vector<TensorSource> wrong,
                           const std::string& why) {
    try {
      manager.save(1, is_bad ? wrong : good);
      ADD_FAILURE() << "it was saved";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(why));
    }
    EXPECT_FALSE(manager.latest());
  };
  const auto box = [](std::int64_t from, std::int64_t to, int begin = 0) {
    return fmt::format("[{}:{}, {}:6]", from, to, begin);
  };
  const std::string tensor = fmt::format("tensor \"w\" f32 [{}, 6]", 2 * ranks),
                    who = fmt::format("rank {}", bad);
  const TensorSource right = rows(whole, first, first + 2);
  refused({right}, {rows(whole, last, last + 1)},
          tensor + ": no rank gave the box " + box(last + 1, last + 2));
  refused({right}, {rows(whole, last, last + 2, 4)},
          tensor + ": no rank gave the box " + box(last, last + 2, 4));
  refused({right}, {}, tensor + ": no rank gave the box " + box(last, last + 2));
  refused({right}, {rows(whole, last - 1, last + 2)},
          fmt::format("{}: rank {} gave {} and {} gave {}", tensor, bad - 1, box(last - 2, last),
                      who, box(last - 1, last + 2)));
  refused({right}, {named(right)}, "tensor \"w\" of rank 0 has holes, too: needed is one name");
  refused({right}, {rows(wide, last, last + 2)}, "in boxes on rank 0, f64 ");
  refused({right}, {rows(long_one, last, last + 2, 7)}, " in boxes on " + who);
  refused({sharded.source()}, {right}, "f32 " + fmt::format("[{}, 6] in boxes on ", 2 * ranks));
  refused({sharded.source()}, {}, who + " was not given " + tensor);
  refused({sharded.source()}, {named(sharded.source())},
          fmt::format("rank 0 was not given tensor \"W\" f32 [{}, 6], though its devices hold {}; "
                      "{} was not given tensor \"w\"",
                      2 * ranks, box(0, 2), who));
  manager.save(1, {right});
  EXPECT_TRUE(holds(CheckpointReader(manager.latest()->step.directory), std::span(&whole, 1)));
}

}  // namespace
}  // namespace shardwise
