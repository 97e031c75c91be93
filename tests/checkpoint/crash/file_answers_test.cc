// File systems that refuse O_DIRECT, fallocate or RENAME_NOREPLACE, or do only a part of a request,
// as network file systems, tmpfs and full disks do: checkpoints are the same on all of them, or the
// save names the problem and leaves nothing. Tests whole saves and restores, as storage/file.cc
// deals with the answers and its callers see its errors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/storage/file.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/root_outcome.h"
#include "testing/system_calls.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// More than 24 MiB, also when compressed: three times the bytes that are written back at once.
// Shards have several sizes; the large ones begin on pages and are written from there.
class Model {
 public:
  explicit Model(std::uint64_t seed) {
    add(host_tensor("w", DType::f32, {4000, 2048}, "4", "0,-", Values::noise, seed));
    add(host_tensor("ramp", DType::i32, {999, 777}, "2,2", "0,1", Values::ramp, seed));
    add(host_tensor("odd", DType::bf16, {12'345}, "3", "0", Values::noise, seed));
  }

  std::vector<TensorSource> sources() const {
    std::vector<TensorSource> sources;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      sources.push_back(tensor_source(tensors_[i].name, arrays_[i]));
    }
    return sources;
  }

  // Expects each byte from a restore onto another mesh, read past the page cache or not.
  void expect_restored(const std::filesystem::path& directory, bool read_once) {
    const CheckpointReader reader(directory, {.threads = 2, .read_once = read_once});
    std::vector<TensorRequest> requests;
    for (const HostTensor& tensor : tensors_) {
      ArraySpec spec = tensor.spec;
      spec.sharding =
          Sharding(Mesh::parse("3"), PartitionSpec::parse(spec.shape.size() == 1 ? "-" : "-,0"));
      requests.push_back({tensor.name, spec});
    }
    const std::vector<ShardedArray> arrays = reader.restore(devices_, requests);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      EXPECT_TRUE(arrays[i].to_host() == *tensors_[i].data) << tensors_[i].name;
    }
  }

 private:
  void add(HostTensor tensor) {
    arrays_.push_back(ShardedArray::from_host(devices_, tensor.spec, *tensor.data));
    tensors_.push_back(std::move(tensor));
  }

  Devices devices_{4, {.threads = 2}};
  std::vector<HostTensor> tensors_;
  std::vector<ShardedArray> arrays_;
};

Model& model(std::uint64_t seed) {
  static Model models[] = {Model(1), Model(2)};
  return models[seed - 1];
}

struct Case {
  const char* name;
  SystemAnswers answers;
};

// For CTest's list of tests.
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class FileAnswers : public testing::TestWithParam<Case> {};

TEST_P(FileAnswers, SavesReplacementsAndRestoresAreTheSame) {
  const SystemAnswers& answers = GetParam().answers;
  const bool direct = answers.opens_direct && answers.moves_direct;
  for (const Codec codec : {Codec::none, Codec::zstd}) {
    SCOPED_TRACE(name(codec));
    const TempDir dir;
    CheckpointManager manager(dir.path(), {.write = {.threads = 2}});
    for (const std::uint64_t seed : {1u, 2u}) {
      const SystemCalls calls(answers);
      const SaveStats stats =
          manager.save(7, model(seed).sources(), {.codec = codec, .existing = Existing::replace});
      EXPECT_GT(stats.stored_bytes, 24u * kMiB);
      if (direct) {
        EXPECT_GT(calls.counts().direct_written_bytes,
                  answers.moves == Moves::whole ? 24 * kMiB : 0);
      } else {
        EXPECT_EQ(calls.counts().direct_written_bytes, 0);
        EXPECT_GE(calls.counts().write_behinds, 2) << "one for 8 MiB, at least";
      }
      if (std::string_view(GetParam().name) == "Willing") {
        EXPECT_EQ(calls.counts().refused, 0);
        EXPECT_EQ(calls.counts().write_behinds, 0);
      } else {
        EXPECT_GT(calls.counts().refused, 0);
      }
      EXPECT_TRUE(verify_checkpoint(stats.directory, {.threads = 2}).ok());
      for (const bool read_once : {false, true}) {
        model(seed).expect_restored(stats.directory, read_once);
        EXPECT_EQ(calls.counts().direct_read_bytes > 0, direct && read_once);
      }
      EXPECT_EQ(calls.counts().misaligned, 0);
    }
    EXPECT_EQ(manager.step(7).generation, 2);
    manager.collect_garbage();
    expect_clean(manager, dir.path());
    // A reader with nothing in between gets the same bytes.
    EXPECT_TRUE(verify_checkpoint(manager.step(7).directory, {.threads = 2}).ok());
  }
}

// The disk is full after ever more bytes, at every stage of a save: lease, first chunks, last
// chunks, manifest.
TEST_P(FileAnswers, AFullDiskIsAnErrorThatSaysSo) {
  const TempDir dir;
  // Statistics that find no room are no error.
  CheckpointManager manager(dir.path(), {.write = {.stats = false, .threads = 2}});
  std::int64_t written = 0, allocated = 0;
  {
    SystemAnswers answers = GetParam().answers;
    answers.moves = Moves::whole;  // else some bytes are written twice, which is no matter of room
    const SystemCalls calls(answers);
    manager.save(1, model(1).sources(), {.codec = Codec::none});
    written = calls.counts().written_bytes;
    allocated = calls.counts().allocated_bytes;
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    // The lease is written by the first save alone.
    if (entry.path().filename().string().starts_with(".writer.")) {
      written -= static_cast<std::int64_t>(entry.file_size());
    }
  }
  std::vector<SystemAnswers> all;
  for (const std::int64_t room :
       {std::int64_t{0}, std::int64_t{20}, 5 * kMiB + 77, written / 2, 25 * kMiB, written - 1}) {
    all.push_back(GetParam().answers);
    all.back().bytes_to_write = room;
  }
  for (const std::int64_t room : {std::int64_t{0}, allocated - 1}) {
    if (allocated == 0) continue;
    all.push_back(GetParam().answers);
    all.back().bytes_to_allocate = room;
  }
  for (const SystemAnswers& answers : all) {
    SCOPED_TRACE(testing::Message() << "after " << answers.bytes_to_write << " bytes written, "
                                    << answers.bytes_to_allocate << " allocated");
    {
      const SystemCalls calls(answers);
      EXPECT_THAT(message_of(ErrorCode::io,
                             [&] { manager.save(2, model(2).sources(), {.codec = Codec::none}); }),
                  HasSubstr("No space left on device"));
    }
    EXPECT_EQ(manager.steps().size(), 1u);
    expect_clean(manager, dir.path());
  }
  model(1).expect_restored(manager.step(1).directory, false);
  manager.save(2, model(2).sources());
  model(2).expect_restored(manager.step(2).directory, false);
}

INSTANTIATE_TEST_SUITE_P(
    Of, FileAnswers,
    testing::Values(Case{"Willing", {}}, Case{"NoDirectOpen", {.opens_direct = false}},
                    Case{"NoDirectWrite", {.moves_direct = false}},
                    Case{"NoAllocation", {.allocates = false}},
                    Case{"NoRenameWithoutReplacing", {.renames_noreplace = false}},
                    Case{"PagesAtATime", {.moves = Moves::pages}},
                    Case{"BytesAtATime", {.moves = Moves::bytes}},
                    Case{"NetworkFileSystem",
                         {.opens_direct = false,
                          .allocates = false,
                          .renames_noreplace = false,
                          .moves = Moves::bytes}}),
    [](const auto& test) { return std::string(test.param.name); });

// Plain rename would replace the file and the empty directory.
TEST(FileSystemAnswers, RenamesReplaceNothingWhereTheSystemDoesNotSeeToIt) {
  const SystemCalls calls({.renames_noreplace = false});
  const TempDir dir;
  const auto files = posix_file_system();
  write_file(dir / "file", "old");
  write_file(dir / "new", "new");
  for (const char* name : {"directory", "empty", "full"}) files->make_directory(dir / name);
  write_file(dir / "full" / "x", "x");
  write_file(dir / "directory" / "y", "y");
  std::filesystem::create_symlink("nowhere", dir / "link");
  for (const char* name : {"file", "empty", "full", "link"}) {
    SCOPED_TRACE(name);
    for (const char* from : {"new", "directory"}) {
      message_of(ErrorCode::already_exists, [&] { files->rename(dir / from, dir / name); });
    }
  }
  EXPECT_EQ(file_text(dir / "file"), "old");
  message_of(ErrorCode::not_found, [&] { files->rename(dir / "no", dir / "free"); });
  files->rename(dir / "new", dir / "free");
  EXPECT_EQ(file_text(dir / "free"), "new");
  files->rename(dir / "directory", dir / "moved");
  EXPECT_EQ(file_text(dir / "moved" / "y"), "y");
  EXPECT_EQ(calls.counts().refused, 11);
}

TEST(FileSystemAnswers, SaysThatADirectoryCannotBeRenamedThere) {
  const SystemCalls calls({.renames = false});
  const TempDir dir;
  const auto files = posix_file_system();
  files->make_directory(dir / "a");
  message_of(ErrorCode::unsupported, [&] { files->rename(dir / "a", dir / "b"); });
}

}  // namespace
}  // namespace shardwise
