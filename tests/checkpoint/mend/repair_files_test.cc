// Files that are missing or damaged outside their chunks are made again, exactly as they were.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/mend/repair.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;

using FileBytes = std::map<std::string, std::vector<std::byte>>;

void put_back(const fs::path& directory, const FileBytes& good) {
  fs::remove_all(directory);
  fs::create_directory(directory);
  for (const auto& [name, bytes] : good) write_file(directory / name, std::span(bytes));
}

class RepairFiles : public testing::Test {
 protected:
  static std::vector<HostTensor> model(std::uint64_t seed = 1) {
    return {host_tensor("noise", DType::f32, {200, 100}, "2", "0,-", Values::noise, seed),
            host_tensor("ramp", DType::i32, {300, 211}, "2", "0,-", Values::ramp, seed),
            host_tensor("step", DType::i64, {}, "2", "", Values::ramp, seed)};
  }
  fs::path save(const fs::path& root, std::int64_t step, const std::vector<HostTensor>& tensors,
                bool increments = false) {
    CheckpointManager manager(root, {.write = {.increments = increments}});
    manager.save(step, sources_of(tensors), {.writers = 2});
    return manager.step(step).directory;
  }

  RepairReport repair_from_copy() { return repair_checkpoint(step_, {.from = {copy_}}); }

  void expect_repaired(const RepairReport& report) {
    EXPECT_TRUE(report.ok());
    for (const Damage& damage : report.left.damage) ADD_FAILURE() << damage.message;
    EXPECT_FALSE(report.repaired.empty());
    EXPECT_THAT(report.lost, IsEmpty());
    EXPECT_TRUE(bytes_of_files(step_) == good_);
  }

  const TempDir dir_;
  const fs::path step_ = save(dir_ / "root", 1, model()), copy_ = dir_ / "copy";
  const FileBytes good_ = bytes_of_files(step_);

  void SetUp() override {
    ASSERT_THAT(good_, SizeIs(4));
    fs::copy(step_, copy_);
  }
};

TEST_F(RepairFiles, MakesEachAgainWhateverIsInItsPlace) {
  for (const auto& [name, bytes] : good_) {
    SCOPED_TRACE(name);
    const fs::path file = step_ / name;
    fs::remove(file);
    expect_repaired(repair_from_copy());
    for (const std::size_t size : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      fs::resize_file(file, size);
      expect_repaired(repair_from_copy());
    }
    fs::resize_file(file, bytes.size() + 9);
    expect_repaired(repair_from_copy());
    fs::remove(file);
    fs::create_symlink(copy_ / name, file);
    expect_repaired(repair_from_copy());
  }
}

TEST_F(RepairFiles, MendsAnyByteOfAnyFile) {
  std::mt19937 random(3);
  for (const auto& [name, bytes] : good_) {
    SCOPED_TRACE(name);
    for (int i = 0; i < 40; ++i) {
      const std::size_t place = i == 0 ? bytes.size() - 1 : random() % bytes.size();
      SCOPED_TRACE(place);
      flip(step_ / name, place, static_cast<std::byte>(1u << random() % 8));
      const RepairReport report = repair_from_copy();
      if (name == detail::kManifestName && !report.ok()) {
        // A manifest that states another id may be another save's.
        EXPECT_THAT(report.left.damage.front().message, HasSubstr("that of another save"));
        put_back(step_, good_);
        continue;
      }
      expect_repaired(report);
    }
  }
}

TEST_F(RepairFiles, NeedNoCopyForTheIndexAndForWhatBelongsToNothing) {
  fs::remove(step_ / "index.h5");
  expect_repaired(repair_checkpoint(step_));
  const auto stored = detail::open_checkpoint(*posix_file_system(), step_);
  const detail::FileEntry& entry = stored.manifest.files[0];
  flip(step_ / entry.name, entry.data_end - detail::kDescriptionBytes - 1, std::byte{7});
  const RepairReport report = repair_checkpoint(step_);
  expect_repaired(report);
  EXPECT_EQ(report.repaired[0].from, (step_ / entry.name).string());
}

TEST_F(RepairFiles, NameTheBoxesThatAreLost) {
  const auto stored = detail::open_checkpoint(*posix_file_system(), step_);
  std::vector<std::pair<std::string, Box>> expected;
  for (const detail::TensorEntry& tensor : stored.manifest.tensors) {
    for (const detail::PieceEntry& piece : tensor.pieces) {
      if (piece.file == 1) expected.emplace_back(tensor.name, piece.box);
    }
  }
  ASSERT_FALSE(expected.empty());
  const std::string name = stored.manifest.files[1].name;
  fs::remove(step_ / name);
  const RepairReport report = repair_checkpoint(step_);
  ASSERT_THAT(report.left.damage, SizeIs(1));
  EXPECT_THAT(report.left.damage[0].message,
              AllOf(HasSubstr("it is missing"),
                    HasSubstr("; not repaired: none of the other checkpoints, 0, has this file")));
  std::vector<std::pair<std::string, Box>> lost;
  for (const auto& [tensor, box] : report.lost) lost.emplace_back(tensor, box);
  EXPECT_EQ(lost, expected);

  // HDF5's own bytes are needed by other tools alone.
  put_back(step_, good_);
  flip(step_ / name, 9, std::byte{1});
  const RepairReport whole = repair_checkpoint(step_);
  EXPECT_THAT(whole.left.damage, SizeIs(1));
  EXPECT_THAT(whole.lost, IsEmpty());
}

// Neither the step nor its copy is whole, but each chunk is right in one of them.
TEST_F(RepairFiles, KeepTheChunksThatAreRight) {
  const auto stored = detail::open_checkpoint(*posix_file_system(), step_);
  std::size_t number = 0;
  for (std::size_t f = 0; f < stored.manifest.files.size(); ++f) {
    const std::string& name = stored.manifest.files[f].name;
    flip(step_ / name, 9, std::byte{1});
    for (const detail::ChunkRecord& record : stored.tables[f].records) {
      flip((number++ % 2 == 0 ? step_ : copy_) / name, record.address, std::byte{1});
    }
  }
  ASSERT_GE(number, 4u);
  const FileBytes copy = bytes_of_files(copy_);
  expect_repaired(repair_from_copy());
  EXPECT_TRUE(bytes_of_files(copy_) == copy);
}

TEST_F(RepairFiles, MakesLinkedFilesAgainFromWhereTheyComeFrom) {
  const fs::path root = dir_ / "increments";
  HostTensor large = host_tensor("w", DType::f32, {1024, 1024}, "1", "-,-");
  const fs::path one = save(root, 1, {large}, true);
  auto data = *large.data;
  data[0] ^= std::byte{1};
  large.data = std::make_shared<const std::vector<std::byte>>(data);
  const fs::path two = save(root, 2, {large}, true);
  const FileBytes good = bytes_of_files(two);
  std::string linked;
  for (const auto& [name, bytes] : good) {
    if (name.starts_with(detail::kLinkedPrefix)) linked = name;
  }
  ASSERT_FALSE(linked.empty());
  fs::remove(two / linked);
  EXPECT_TRUE(repair_checkpoint(two).ok());
  EXPECT_TRUE(bytes_of_files(two) == good);
  fs::remove(two / linked);
  fs::remove_all(one);
  const RepairReport report = repair_checkpoint(two);
  EXPECT_THAT(report.left.damage, SizeIs(1));
  EXPECT_THAT(report.lost, SizeIs(3));  // of four chunks; one has changed
  for (const auto& [tensor, box] : report.lost) {
    EXPECT_EQ(tensor, "w");
    EXPECT_GT(box.begin(0), 0);
  }
}

TEST_F(RepairFiles, TakeNoManifestOfAnotherSave) {
  const fs::path twin = save(dir_ / "twin", 1, model());     // another id
  const fs::path second = save(dir_ / "root", 2, model());   // another step
  const fs::path other = save(dir_ / "other", 1, model(2));  // other shard files
  const std::string name = detail::kManifestName;
  ASSERT_TRUE(file_bytes(twin / "shards-00000-of-00002.h5") ==
              good_.at("shards-00000-of-00002.h5"));
  fs::resize_file(step_ / name, good_.at(name).size() - 1);
  const RepairReport report = repair_checkpoint(step_, {.from = {twin, other}});
  ASSERT_THAT(report.left.damage, SizeIs(1));
  EXPECT_THAT(report.left.damage[0].message,
              HasSubstr("not repaired: " + (twin / name).string() +
                        " is that of another save, whose shard files are the same"));
  EXPECT_THAT(report.lost, IsEmpty());
  fs::remove(step_ / name);
  EXPECT_THAT(
      message_of(ErrorCode::not_found, [&] { repair_checkpoint(step_, {.from = {other}}); }),
      HasSubstr("not repaired: none of the other checkpoints, 2, has the manifest"));
  write_file(step_ / (name + ".trash-0"), "x");
  EXPECT_THAT(
      message_of(ErrorCode::not_found, [&] { repair_checkpoint(step_, {.from = {copy_}}); }),
      HasSubstr("not repaired: the checkpoint was removed"));
  fs::remove(step_ / (name + ".trash-0"));
  expect_repaired(repair_from_copy());
}

TEST_F(RepairFiles, LeaveWhatIsNoPartOfTheCheckpointAndRemoveWhatRepairsHaveLeft) {
  const fs::path left = step_ / (".repair-index.h5." + std::string(32, 'a'));
  write_file(left, "x");
  EXPECT_TRUE(verify_checkpoint(step_).ok());
  write_file(step_ / "notes.txt", "x");
  const RepairReport report = repair_from_copy();
  EXPECT_THAT(report.repaired, IsEmpty());
  ASSERT_THAT(report.left.damage, SizeIs(1));
  EXPECT_THAT(report.left.damage[0].message,
              AllOf(HasSubstr("notes.txt"), HasSubstr("a repair removes nothing")));
  EXPECT_TRUE(fs::exists(step_ / "notes.txt"));
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(RepairFiles, OfGoldenStepsAreMadeAgain) {
  const fs::path golden = test_data("checkpoint-v2");
  for (const auto& entry : fs::directory_iterator(golden)) {
    if (!entry.path().filename().string().starts_with("step-")) continue;
    SCOPED_TRACE(entry.path());
    const fs::path copy = dir_ / "golden" / entry.path().filename(),
                   step = dir_.path() / entry.path().filename();
    fs::create_directories(copy.parent_path());
    fs::copy(entry.path(), copy, fs::copy_options::recursive);
    fs::copy(copy, step, fs::copy_options::recursive);
    const FileBytes good = bytes_of_files(copy);
    for (const auto& [name, bytes] : good) {
      SCOPED_TRACE(name);
      for (const bool is_missing : {true, false}) {
        if (is_missing) {
          fs::remove(step / name);
        } else {
          flip(step / name, bytes.size() / 3, std::byte{1});
        }
        const RepairReport report = repair_checkpoint(step, {.from = {copy}});
        for (const Damage& damage : report.left.damage) ADD_FAILURE() << damage.message;
        EXPECT_TRUE(bytes_of_files(step) == good);
      }
    }
  }
}

}  // namespace
}  // namespace shardwise
