// With parity, a checkpoint without a copy is repaired, exactly, or the boxes that are lost are
// named.

#include "shardwise/mend/parity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/mend/repair.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
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

constexpr std::size_t kBlock = std::size_t{1} << 20;

class Parity : public testing::Test {
 protected:
  static std::vector<HostTensor> model(std::uint64_t seed = 1) {
    return {host_tensor("noise", DType::f32, {2000, 1200}, "2", "0,-", Values::noise, seed),
            host_tensor("ramp", DType::i32, {300, 211}, "2", "0,-", Values::ramp, seed),
            host_tensor("step", DType::i64, {}, "2", "", Values::ramp, seed)};
  }
  fs::path save(std::int64_t step, const std::vector<HostTensor>& tensors,
                const ManagerOptions& options = {.write = {.increments = false}}) {
    CheckpointManager manager(root_, options);
    manager.save(step, sources_of(tensors), {.codec = Codec::none, .writers = 2});
    return manager.step(step).directory;
  }

  void put_back() const {
    for (const auto& entry : fs::directory_iterator(step_)) fs::remove_all(entry.path());
    for (const auto& [name, bytes] : good_) write_file(step_ / name, std::span(bytes));
  }

  void expect_repaired(const RepairReport& report) const {
    EXPECT_TRUE(report.ok());
    for (const Damage& damage : report.left.damage) ADD_FAILURE() << damage.message;
    EXPECT_FALSE(report.repaired.empty());
    EXPECT_THAT(report.lost, IsEmpty());
    EXPECT_TRUE(bytes_of_files(step_) == good_);
  }

  std::vector<std::string> shard_files() const {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : good_) {
      if (name.starts_with("shards-") && name.ends_with(".h5")) names.push_back(name);
    }
    return names;
  }

  const TempDir dir_;
  const fs::path root_ = dir_ / "root";
  const fs::path step_ = save(1, model());
  const ParityStats stats_ = write_parity(step_, {.blocks = 2});
  const FileBytes good_ = bytes_of_files(step_);
};

TEST_F(Parity, IsWrittenOnceAndCounted) {
  ASSERT_THAT(shard_files(), SizeIs(2));
  EXPECT_EQ(stats_.files, 2);
  EXPECT_EQ(stats_.written, 2);
  std::size_t parity = 0, bytes = 0;
  for (const std::string& name : shard_files()) {
    parity += good_.at(name + ".parity").size();
    bytes += good_.at(name).size();
  }
  EXPECT_EQ(stats_.parity_bytes, parity);
  EXPECT_EQ(stats_.file_bytes, bytes);
  EXPECT_EQ(stats_.encoded_bytes, bytes);
  EXPECT_GT(stats_.seconds, 0);
  const ParityStats again = write_parity(step_, {.blocks = 2});
  EXPECT_EQ(again.written, 0);
  EXPECT_EQ(again.encoded_bytes, 0u);
  EXPECT_TRUE(bytes_of_files(step_) == good_);

  fs::remove(step_ / (shard_files()[0] + ".parity"));
  EXPECT_EQ(write_parity(step_, {.blocks = 2}).written, 1);
  flip(step_ / (shard_files()[1] + ".parity"), good_.at(shard_files()[1] + ".parity").size() / 2,
       std::byte{1});
  EXPECT_EQ(write_parity(step_, {.blocks = 2}).written, 1);
  EXPECT_TRUE(bytes_of_files(step_) == good_);
  EXPECT_EQ(write_parity(step_, {.blocks = 3}).written, 2);
  EXPECT_EQ(write_parity(step_, {.blocks = 2}).written, 2);
  EXPECT_TRUE(bytes_of_files(step_) == good_);
}

TEST_F(Parity, IsCheckedByVerify) {
  const VerifyReport report = verify_checkpoint(step_);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.parity_files, 2);
  EXPECT_EQ(report.parity_blocks, 2);
  std::size_t bytes = 0;
  for (const auto& [name, content] : good_) bytes += content.size();
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_EQ(remove_parity(step_), 2);
  EXPECT_EQ(verify_checkpoint(step_).parity_files, 0);
  EXPECT_EQ(remove_parity(step_), 0);
  EXPECT_EQ(message_of(ErrorCode::not_found, [&] { remove_parity(dir_ / "none"); }),
            "open checkpoint " + (dir_ / "none").string() + ": there is no such directory");
  write_file(step_ / "index.h5.parity", std::string_view("x"));
  ASSERT_THAT(verify_checkpoint(step_).damage, SizeIs(1));
  EXPECT_THAT(verify_checkpoint(step_).damage[0].message, HasSubstr("no part of the checkpoint"));
}

TEST_F(Parity, RestoresAnyByteOfAShardFileThatIsWrong) {
  std::mt19937 random(1);
  for (const std::string& name : shard_files()) {
    SCOPED_TRACE(name);
    for (int i = 0; i < 12; ++i) {
      const std::size_t size = good_.at(name).size();
      const std::size_t place = i == 0 ? size - 1 : i == 1 ? 0 : random() % size;
      flip(step_ / name, place, static_cast<std::byte>(1u << random() % 8));
      const RepairReport report = repair_checkpoint(step_);
      expect_repaired(report);
      EXPECT_THAT(report.repaired[0].from, HasSubstr((step_ / name).string()));
    }
  }
}

// Tables and chunks, whatever was written over them.
TEST_F(Parity, RestoresTwoBlocksOfEachFile) {
  for (const std::string& name : shard_files()) {
    const std::size_t blocks = (good_.at(name).size() + kBlock - 1) / kBlock;
    ASSERT_GE(blocks, 3u);
    for (std::size_t first = 0; first < blocks; ++first) {
      for (std::size_t second = first + 1; second < blocks; ++second) {
        std::vector<std::byte> bytes = good_.at(name);
        for (const std::size_t block : {first, second}) {
          const auto at = static_cast<std::ptrdiff_t>(block * kBlock);
          std::fill(bytes.begin() + at,
                    bytes.begin() + std::min<std::ptrdiff_t>(at + kBlock, std::ssize(bytes)),
                    std::byte{7});
        }
        write_file(step_ / name, std::span(bytes));
        expect_repaired(repair_checkpoint(step_));
      }
    }
  }
}

TEST_F(Parity, RestoresAFileThatWasCutOffOrGrew) {
  const std::string name = shard_files()[0];
  for (const std::size_t less : {std::size_t{1}, kBlock, 3 * kBlock / 2}) {
    fs::resize_file(step_ / name, good_.at(name).size() - less);
    expect_repaired(repair_checkpoint(step_));
  }
  fs::resize_file(step_ / name, good_.at(name).size() + 9);
  expect_repaired(repair_checkpoint(step_));
}

TEST_F(Parity, RestoresAMissingFileIfItHasAsManyBlocks) {
  write_parity(step_, {.blocks = 6});
  const FileBytes good = bytes_of_files(step_);
  for (const std::string& name : shard_files()) {
    fs::remove(step_ / name);
    const RepairReport report = repair_checkpoint(step_);
    EXPECT_TRUE(report.ok());
    ASSERT_THAT(report.repaired, SizeIs(1));
    EXPECT_EQ(report.repaired[0].from, (step_ / (name + ".parity")).string());
    EXPECT_TRUE(bytes_of_files(step_) == good);
  }
}

TEST_F(Parity, NamesTheBoxesThatItCannotRestoreAndLeavesThem) {
  const auto stored = detail::open_checkpoint(*posix_file_system(), step_);
  const std::string name = shard_files()[0];
  std::vector<std::pair<std::string, Box>> expected;
  std::set<std::uint64_t> blocks;
  const auto& pieces = stored.manifest.tensors[0].pieces;
  std::vector<std::uint64_t> places;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    if (static_cast<std::size_t>(pieces.file(p)) != 0) continue;
    for (std::int64_t c = 0; c < num_chunks(pieces[p]); ++c) {
      const detail::ChunkId id{0, p, c};
      if (!blocks.insert(stored.record(id).address / kBlock).second) continue;
      places.push_back(stored.record(id).address);
      expected.emplace_back("noise", stored.box(id));
      if (places.size() == 3) break;
    }
  }
  ASSERT_THAT(places, SizeIs(3)) << "one block too many";
  for (const std::uint64_t place : places) flip(step_ / name, place, std::byte{1});
  const FileBytes before = bytes_of_files(step_);
  const RepairReport report = repair_checkpoint(step_);
  EXPECT_THAT(report.repaired, IsEmpty());
  ASSERT_THAT(report.left.damage, SizeIs(3));
  EXPECT_THAT(report.left.damage[0].message,
              AllOf(HasSubstr("; not repaired: there is no other step in its root"),
                    HasSubstr("3 blocks of 1048576 bytes are damaged, but its parity can "
                              "restore 2")));
  std::vector<std::pair<std::string, Box>> lost;
  for (const auto& [tensor, box] : report.lost) lost.emplace_back(tensor, box);
  EXPECT_EQ(lost, expected);
  EXPECT_TRUE(bytes_of_files(step_) == before);

  // One of the three from elsewhere, and the rest is enough.
  fs::copy(step_, dir_ / "copy");
  write_file(dir_ / "copy" / name, std::span(good_.at(name)));
  flip(dir_ / "copy" / name, places[1], std::byte{1});
  flip(dir_ / "copy" / name, places[2], std::byte{1});
  expect_repaired(repair_checkpoint(step_, {.from = {dir_ / "copy"}}));
}

TEST_F(Parity, ThatIsDamagedIsWrittenAnew) {
  std::mt19937 random(3);
  for (const std::string& name : shard_files()) {
    const std::string parity = name + ".parity";
    for (int i = 0; i < 4; ++i) {
      flip(step_ / parity, i == 0 ? 3 : random() % good_.at(parity).size(), std::byte{1});
      const VerifyReport found = verify_checkpoint(step_);
      ASSERT_THAT(found.damage, SizeIs(1));
      EXPECT_EQ(found.damage[0].file, parity);
      EXPECT_EQ(found.parity_files, 1);
      const RepairReport report = repair_checkpoint(step_);
      expect_repaired(report);
      EXPECT_EQ(report.repaired[0].from, (step_ / name).string());
    }
    write_file(step_ / parity, std::string_view("none"));
    expect_repaired(repair_checkpoint(step_));  // as many blocks as the other one has
  }
  for (const std::string& name : shard_files()) {
    write_file(step_ / (name + ".parity"), std::string_view("none"));
  }
  const RepairReport report = repair_checkpoint(step_);
  ASSERT_THAT(report.left.damage, SizeIs(2));
  EXPECT_THAT(report.left.damage[0].message, HasSubstr("; not repaired: it does not say any more"));
  EXPECT_THAT(report.lost, IsEmpty());
  write_parity(step_, {.blocks = 2});
  EXPECT_TRUE(bytes_of_files(step_) == good_);
}

TEST_F(Parity, IsWrittenWhileOthersWriteAndRemoveIt) {
  remove_parity(step_);
  int call = 0;
  const auto others =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path& path) {
        if (operation != "rename" && operation != "exchange") return;
        if (!path.filename().string().starts_with(".repair-")) return;
        switch (++call) {
          case 1:  // they write all of it
            EXPECT_EQ(operation, "rename");
            EXPECT_EQ(write_parity(step_, {.blocks = 2}).written, 2);
            break;
          case 2:  // they take this file for a leftover
            EXPECT_EQ(operation, "exchange");
            fs::remove(path);
            break;
          case 3:
            EXPECT_EQ(operation, "exchange");
            remove_parity(step_);
            break;
          default:
            break;
        }
      });
  EXPECT_EQ(write_parity(step_, {.blocks = 2, .file_system = others}).written, 2);
  EXPECT_EQ(call, 5);
  EXPECT_TRUE(bytes_of_files(step_) == good_);
}

TEST_F(Parity, AndItsFileCanBothBeDamaged) {
  const std::string name = shard_files()[1], parity = name + ".parity";
  flip(step_ / parity, 0, std::byte{1});                            // the first header
  flip(step_ / parity, good_.at(parity).size() / 3, std::byte{1});  // one of two parity blocks
  flip(step_ / name, good_.at(name).size() / 2, std::byte{1});
  const RepairReport report = repair_checkpoint(step_);
  EXPECT_THAT(report.repaired, SizeIs(2));
  expect_repaired(report);
}

// HDF5's own bytes and a chunk are bad: the file is made again, and both are told.
TEST_F(Parity, MakesAFileAnewAndTellsOfAllThatWasWrong) {
  const std::string name = shard_files()[0];
  flip(step_ / name, 9, std::byte{1});
  flip(step_ / name, good_.at(name).size() / 2, std::byte{1});
  const RepairReport report = repair_checkpoint(step_);
  expect_repaired(report);
  ASSERT_THAT(report.repaired, SizeIs(2));
  EXPECT_EQ(report.repaired[0].damage.tensor, "");
  EXPECT_EQ(report.repaired[1].damage.tensor, "noise");
}

// A bad place of the disk stays one until the file is another.
TEST_F(Parity, RestoresWhatTheDiskCannotRead) {
  const std::string name = shard_files()[1];
  const fs::path bad = dir_ / "bad";
  fs::create_hard_link(step_ / name, bad);
  for (const std::uint64_t place : {std::uint64_t{3}, std::uint64_t{good_.at(name).size() - 3}}) {
    const auto files = std::make_shared<HookedFileSystem>(
        [](std::string_view, const fs::path&) {},
        [&](const fs::path& path, std::uint64_t offset, std::size_t size) {
          const bool is_bad = path == step_ / name && fs::equivalent(path, bad);
          if (!is_bad || place < offset || place >= offset + size) return;
          throw Error(ErrorCode::io, "read " + path.string() + ": Input/output error");
        });
    EXPECT_FALSE(verify_checkpoint(step_, {.file_system = files}).unread.empty());
    const RepairReport report = repair_checkpoint(step_, {.file_system = files});
    expect_repaired(report);
    EXPECT_EQ(report.repaired[0].from, (step_ / (name + ".parity")).string());
    fs::remove(step_ / name);
    fs::create_hard_link(bad, step_ / name);
  }
}

TEST_F(Parity, OfADamagedCheckpointIsRefused) {
  remove_parity(step_);
  flip(step_ / shard_files()[0], good_.at(shard_files()[0]).size() / 2, std::byte{1});
  const FileBytes before = bytes_of_files(step_);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { write_parity(step_); }),
              AllOf(HasSubstr("found it damaged, needed is a repair first"), HasSubstr("noise")));
  EXPECT_TRUE(bytes_of_files(step_) == before);
}

TEST_F(Parity, HasANumberOfBlocksThatCanBe) {
  for (const int blocks : {0, -1, 128}) {
    EXPECT_EQ(
        message_of(ErrorCode::invalid_argument, [&] { write_parity(step_, {.blocks = blocks}); }),
        "write the parity of " + step_.string() + ": found " + std::to_string(blocks) +
            " parity blocks, needed are 1 to 127");
  }
}

// Nobody should make such parity; a chunk that was damaged then, and is right now, stays right.
TEST_F(Parity, OfDamagedBytesRestoresOnlyWhatIsRight) {
  const auto stored = detail::open_checkpoint(*posix_file_system(), step_);
  const std::string name = shard_files()[0];
  const auto address = [&](std::int64_t chunk) {
    return stored.record(detail::ChunkId{0, 0, chunk}).address;
  };
  remove_parity(step_);
  flip(step_ / name, address(1), std::byte{1});
  mend_detail::write_parity_files(*posix_file_system(), step_, {.blocks = 2});
  flip(step_ / name, address(1), std::byte{1});
  const FileBytes good = bytes_of_files(step_);

  flip(step_ / name, address(1) - 1, std::byte{1});  // its neighbour, perhaps of the same block
  EXPECT_TRUE(repair_checkpoint(step_).ok());
  EXPECT_TRUE(bytes_of_files(step_) == good);

  flip(step_ / name, address(1) + 1, std::byte{1});
  const FileBytes before = bytes_of_files(step_);
  const RepairReport report = repair_checkpoint(step_);
  ASSERT_THAT(report.left.damage, SizeIs(1));
  EXPECT_THAT(report.left.damage[0].message, HasSubstr("its parity is that of the damaged bytes"));
  EXPECT_THAT(report.lost, SizeIs(1));
  EXPECT_TRUE(bytes_of_files(step_) == before);
}

TEST_F(Parity, OfAnotherFileIsNotUsed) {
  const std::string name = shard_files()[0];
  remove_parity(step_);
  CheckpointManager(dir_ / "other")
      .save(1, sources_of(model(2)), {.codec = Codec::none, .writers = 2});
  write_parity(dir_ / "other" / "step-00000001");
  fs::copy(dir_ / "other" / "step-00000001" / (name + ".parity"), step_ / (name + ".parity"));
  ASSERT_THAT(verify_checkpoint(step_).damage, SizeIs(1));
  EXPECT_THAT(verify_checkpoint(step_).damage[0].message,
              HasSubstr("found the parity of another file"));
  flip(step_ / name, good_.at(name).size() / 2, std::byte{1});
  const FileBytes before = bytes_of_files(step_);
  const RepairReport report = repair_checkpoint(step_);
  EXPECT_THAT(report.repaired, IsEmpty());
  EXPECT_TRUE(bytes_of_files(step_) == before);
}

TEST_F(Parity, OfALinkedFileIsALink) {
  HostTensor next = model()[0];
  auto data = *next.data;
  data[0] ^= std::byte{1};
  next.data = std::make_shared<const std::vector<std::byte>>(data);
  const fs::path two = save(2, {next, model(2)[1], model(2)[2]}, {.write = {.increments = true}});
  const ParityStats stats = write_parity(two, {.blocks = 2});
  ASSERT_EQ(stats.files, 4) << "two of them linked";
  EXPECT_EQ(stats.written, 4);
  EXPECT_LT(stats.encoded_bytes, stats.file_bytes / 2);
  for (const auto& entry : fs::directory_iterator(two)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("linked-")) continue;
    EXPECT_EQ(fs::hard_link_count(entry.path()), 2u) << name;
  }
  EXPECT_EQ(verify_checkpoint(two).parity_files, 4);
  const FileBytes good = bytes_of_files(two);
  fs::remove_all(step_);  // each step is whole
  for (const auto& [name, bytes] : good) {
    if (!name.ends_with(".h5") || name == "index.h5") continue;
    flip(two / name, bytes.size() / 2, std::byte{1});
  }
  EXPECT_TRUE(repair_checkpoint(two).ok());
  EXPECT_TRUE(bytes_of_files(two) == good);
  EXPECT_EQ(write_parity(two, {.blocks = 1}).written, 4) << "nobody has that";
  EXPECT_TRUE(verify_checkpoint(two).ok());
}

// Other users of a root treat a step with parity as one without.
TEST_F(Parity, IsInNobodysWay) {
  CheckpointManager manager(root_, {.keep = {.last = 1}});
  EXPECT_EQ(manager.latest()->step.step, 1);
  std::vector<HostTensor> next = model();
  manager.save(2, sources_of(next), {.writers = 2});
  EXPECT_FALSE(fs::exists(step_));
  const fs::path two = manager.step(2).directory;
  EXPECT_TRUE(verify_checkpoint(two).ok());
  for (const auto& entry : fs::directory_iterator(two)) {
    EXPECT_FALSE(entry.path().string().ends_with(".parity")) << entry.path();
  }
  write_parity(two);
  fs::copy(two, dir_ / "copy");
  EXPECT_TRUE(verify_checkpoint(dir_ / "copy").ok());
  EXPECT_EQ(verify_checkpoint(dir_ / "copy").parity_files, 4);
  manager.save(3, sources_of(model(3)), {.writers = 2});
  manager.save(4, sources_of(model(4)), {.writers = 2});
  EXPECT_TRUE(verify_checkpoint(manager.step(4).directory).ok());
  manager.remove(4);
  EXPECT_THAT(manager.steps(), IsEmpty());
}

TEST_F(Parity, IsWrittenByTheManagerIfItIsAskedTo) {
  CheckpointManager manager(root_, {.keep = {.last = 1}, .write = {.parity_blocks = 3}});
  for (std::int64_t step = 2; step < 5; ++step) {
    std::vector<HostTensor> tensors = model();
    tensors[1] = model(static_cast<std::uint64_t>(step))[1];
    const SaveStats stats = manager.save(step, sources_of(tensors), {.writers = 2});
    EXPECT_EQ(stats.cleanup_error, "");
    const VerifyReport report = verify_checkpoint(stats.directory);
    EXPECT_TRUE(report.ok());
    EXPECT_GE(report.parity_files, 2);
    EXPECT_EQ(report.parity_blocks, 3);
    EXPECT_EQ(write_parity(stats.directory, {.blocks = 3}).written, 0);
    EXPECT_GT(stats.parity_bytes, 0u);
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { CheckpointManager(root_, {.write = {.parity_blocks = 128}}); }),
              HasSubstr(": found 128 parity blocks, needed are 1 to 127"));
}

TEST_F(Parity, IsWrittenByEachWriterForItsFiles) {
  CheckpointManager manager(root_, {});
  const fs::path step = manager.save(2, sources_of(model(2)), {.writers = 2}).directory;
  for (const int writer : {0, 1}) {
    const ParityStats stats = write_parity(step, {.blocks = 1, .writer = writer});
    EXPECT_EQ(stats.files, 1);
    EXPECT_EQ(stats.written, 1);
    EXPECT_EQ(verify_checkpoint(step).parity_files, writer + 1);
  }
  EXPECT_EQ(write_parity(step, {.blocks = 1, .writer = 2}).files, 0);
  EXPECT_TRUE(verify_checkpoint(step).ok());
}

TEST_F(Parity, ThatCannotBeWrittenFailsNoSave) {
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path& path) {
        if (operation != "create" || path.string().find(".parity") == std::string::npos) return;
        throw Error(ErrorCode::io, "create " + path.string() + ": No space left on device");
      });
  CheckpointManager manager(root_, {.write = {.parity_blocks = 1}, .file_system = files});
  const SaveStats stats = manager.save(2, sources_of(model(2)), {.writers = 2});
  EXPECT_THAT(stats.cleanup_error, HasSubstr(".parity."));
  EXPECT_THAT(stats.cleanup_error, HasSubstr("No space left on device"));
  EXPECT_EQ(stats.parity_bytes, 0u);
  EXPECT_TRUE(verify_checkpoint(stats.directory).ok());
}

TEST(ParityOfGoldenFiles, IsUsedToo) {
  const TempDir dir;
  for (const auto& entry : fs::directory_iterator(test_data("checkpoint-v2"))) {
    if (!entry.is_directory()) continue;
    const fs::path step = dir / entry.path().filename().string();
    fs::copy(entry.path(), step, fs::copy_options::recursive);
    fs::permissions(step, fs::perms::owner_all);
    for (const auto& file : fs::directory_iterator(step)) {
      fs::permissions(file.path(), fs::perms::owner_read | fs::perms::owner_write);
    }
    ASSERT_GT(write_parity(step).files, 0);
    const FileBytes good = bytes_of_files(step);
    for (const auto& [name, bytes] : good) {
      if (!name.ends_with(".h5") || name == "index.h5") continue;
      flip(step / name, 9, std::byte{1});
      flip(step / name, bytes.size() / 2, std::byte{1});
    }
    EXPECT_TRUE(repair_checkpoint(step).ok());
    EXPECT_TRUE(bytes_of_files(step) == good);
  }
}

}  // namespace
}  // namespace shardwise
