// A repair restores a byte or leaves it; it never changes a byte that was right.

#include "shardwise/mend/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"
#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;

using Bytes = std::map<std::string, std::vector<std::byte>>;

/// True if each byte is as it was or as it should be.
bool is_no_worse(std::span<const std::byte> now, std::span<const std::byte> before,
                 std::span<const std::byte> good) {
  if (now.size() != good.size() || now.size() != before.size()) return false;
  for (std::size_t at = 0; at < now.size(); ++at) {
    at += static_cast<std::size_t>(std::ranges::mismatch(now.subspan(at), good.subspan(at)).in1 -
                                   now.subspan(at).begin());
    if (at < now.size() && now[at] != before[at]) return false;
  }
  return true;
}

std::vector<detail::ChunkId> all_chunks(const detail::StoredCheckpoint& stored) {
  std::vector<detail::ChunkId> ids;
  for (std::size_t t = 0; t < stored.manifest.tensors.size(); ++t) {
    const auto& pieces = stored.manifest.tensors[t].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      for (std::int64_t c = 0; c < num_chunks(pieces[p]); ++c) ids.push_back({t, p, c});
    }
  }
  return ids;
}

class Repair : public testing::Test {
 protected:
  static HostTensor ramp(std::string_view mesh = "2") {
    return host_tensor("ramp", DType::i32, {1001, 300}, mesh, "0,-", Values::ramp);
  }
  static HostTensor noise(std::string_view mesh = "2") {
    return host_tensor("noise", DType::f32, {1000, 500}, mesh, "-,0", Values::noise);
  }
  static HostTensor small() { return host_tensor("b", DType::i16, {7}, "1", "-", Values::ramp); }

  fs::path save(const fs::path& root, std::int64_t step, std::vector<HostTensor> model,
                const SaveOptions& options = {}, bool increments = false) {
    CheckpointManager manager(root, {.write = {.increments = increments}});
    manager.save(step, sources_of(model), options);
    return manager.step(step).directory;
  }
  fs::path save(std::int64_t step, const SaveOptions& options = {}) {
    return save(root_, step, {ramp(), noise(), small()}, options);
  }

  /// Changes a byte in the middle of every chunk of the checkpoint.
  static std::size_t damage_all_chunks(const fs::path& step) {
    const auto stored = detail::open_checkpoint(*posix_file_system(), step);
    const std::vector<detail::ChunkId> ids = all_chunks(stored);
    for (const detail::ChunkId& id : ids) {
      const detail::ChunkRecord& record = stored.record(id);
      flip(step / stored.file_name(stored.file_of(id)), record.address + record.stored_bytes / 2,
           std::byte{8});
    }
    return ids.size();
  }

  const TempDir dir_;
  const fs::path root_ = dir_ / "root";
};

TEST_F(Repair, MakesEveryChunkWhatItWasFromAnotherStep) {
  for (const Codec codec : {Codec::none, Codec::zstd, Codec::automatic}) {
    const fs::path root = dir_ / std::to_string(static_cast<int>(codec));
    const fs::path one = save(root, 1, {ramp(), noise(), small()}, {.codec = codec});
    const fs::path two = save(root, 2, {ramp(), noise(), small()}, {.codec = codec});
    const Bytes good = bytes_of_files(two);
    const std::size_t damaged = damage_all_chunks(two);
    ASSERT_GE(damaged, 5u);
    const RepairReport report = repair_checkpoint(two);
    EXPECT_TRUE(report.ok());
    EXPECT_TRUE(bytes_of_files(two) == good);
    ASSERT_THAT(report.repaired, SizeIs(damaged));
    for (const Repaired& repaired : report.repaired) {
      EXPECT_EQ(repaired.from, one.string());
      EXPECT_FALSE(repaired.damage.tensor.empty());
    }
  }
}

TEST_F(Repair, TakesCopiesThatAreGivenAndRootsThatHaveOne) {
  const fs::path step = save(1);
  const Bytes good = bytes_of_files(step);
  fs::copy(step, dir_ / "copy");
  fs::copy(root_, dir_ / "peer", fs::copy_options::recursive);
  for (const char* from : {"copy", "peer"}) {
    damage_all_chunks(step);
    EXPECT_FALSE(repair_checkpoint(step).ok());
    EXPECT_TRUE(repair_checkpoint(step, {.from = {dir_ / from}}).ok()) << from;
    EXPECT_TRUE(bytes_of_files(step) == good);
  }
  fs::create_directory(dir_ / "empty");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { repair_checkpoint(step, {.from = {dir_ / "empty"}}); }),
              HasSubstr("found no checkpoint in"));
}

// Each copy has some chunks that the others have not.
TEST_F(Repair, TakesEachChunkFromWhereItIsRight) {
  const fs::path step = save(1);
  const Bytes good = bytes_of_files(step);
  const auto stored = detail::open_checkpoint(*posix_file_system(), step);
  std::vector<fs::path> copies;
  for (int i = 0; i < 3; ++i) {
    copies.push_back(dir_ / ("copy" + std::to_string(i)));
    fs::copy(step, copies.back());
  }
  int number = 0;
  for (const detail::ChunkId& id : all_chunks(stored)) {
    for (int i = 0; i < 3; ++i) {
      if (number % 3 == i) continue;
      flip(copies[static_cast<std::size_t>(i)] / stored.file_name(stored.file_of(id)),
           stored.record(id).address, std::byte{1});
    }
    ++number;
  }
  damage_all_chunks(step);
  EXPECT_TRUE(repair_checkpoint(step, {.from = copies}).ok());
  EXPECT_TRUE(bytes_of_files(step) == good);
}

TEST_F(Repair, CodesElementsAgainThatAreCodedOrCutInAnotherWay) {
  const struct {
    Codec here, there;
    const char* mesh;
  } cases[] = {{Codec::zstd, Codec::none, "2"},
               {Codec::none, Codec::zstd, "2"},
               {Codec::zstd, Codec::zstd, "5"},
               {Codec::automatic, Codec::none, "1"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(c.here) << " " << c.mesh);
    const TempDir root;
    const fs::path one = save(root.path(), 1, {ramp(), noise(), small()}, {.codec = c.here});
    save(root.path(), 2, {ramp(c.mesh), noise(c.mesh), small()}, {.codec = c.there});
    const Bytes good = bytes_of_files(one);
    const std::size_t damaged = damage_all_chunks(one);
    const RepairReport report = repair_checkpoint(one);
    for (const Damage& left : report.left.damage) ADD_FAILURE() << left.message;
    EXPECT_TRUE(bytes_of_files(one) == good);
    EXPECT_THAT(report.repaired, SizeIs(damaged));
  }
}

// A zstd frame of zeros that states its content's size in 8 bytes, which no coder of this build
// does.
TEST_F(Repair, SaysIfElementsCodedAgainAreOtherBytes) {
  constexpr std::size_t kChunkBytes = 8192;
  HandMadeCheckpoint made({{.name = "t",
                            .dtype = DType::i32,
                            .shape = {2048},
                            .pieces = {Box({0}, {2048})},
                            .data = counting_values(DType::i32, {2048}),
                            .chunk = {2048},
                            .codec = detail::StoredCodec::zstd}});
  auto& [bytes, records, decoded_hashes] = made.files[0];
  constexpr unsigned char kFrame[] = {0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0x20, 0, 0,
                                      0,    0,    0,    0,    3,    0, 1,    0};
  const std::span<const std::byte> frame = std::as_bytes(std::span(kFrame));
  const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(records[0].address);
  std::fill_n(at, records[0].stored_bytes, std::byte{0});
  std::ranges::copy(frame, at);
  records[0].stored_bytes = frame.size();
  records[0].hash = hash64(frame.data(), frame.size());
  const auto zeros = std::make_shared<const std::vector<std::byte>>(kChunkBytes);
  decoded_hashes[0] = hash64(zeros->data(), zeros->size());
  made.seal();
  const fs::path step = made.write(root_);
  ASSERT_THAT(verify_checkpoint(step).damage, SizeIs(1)) << "the index is filler";
  HostTensor same = host_tensor("t", DType::i32, {2048}, "", "-");
  same.data = zeros;
  save(root_, 1, {same}, {.codec = Codec::none});
  damage_all_chunks(step);
  const Bytes before = bytes_of_files(step);
  const RepairReport report = repair_checkpoint(step);
  EXPECT_THAT(report.repaired, IsEmpty());
  ASSERT_THAT(report.left.damage, SizeIs(2));
  EXPECT_THAT(report.left.damage[1].message,
              HasSubstr("step-00000001 has the same elements, but coded again they are not the "
                        "bytes that were stored"));
  EXPECT_TRUE(bytes_of_files(step) == before);
}

TEST_F(Repair, OfALinkedChunkIsForAllStepsThatShareIt) {
  const fs::path one = save(root_, 1, {noise()});
  fs::copy(one, dir_ / "copy");
  HostTensor next = noise();
  auto data = *next.data;
  data[0] ^= std::byte{1};
  next.data = std::make_shared<const std::vector<std::byte>>(data);
  const fs::path two = save(root_, 2, {next}, {}, true);
  const Bytes good_one = bytes_of_files(one), good_two = bytes_of_files(two);
  ASSERT_THAT(good_two, SizeIs(4)) << "one file is linked";
  damage_all_chunks(one);
  ASSERT_FALSE(verify_checkpoint(two).ok());
  const RepairReport none = repair_checkpoint(two);
  EXPECT_FALSE(none.ok()) << "the other step has the same file";
  EXPECT_THAT(none.repaired, IsEmpty());
  const RepairReport report = repair_checkpoint(two, {.from = {dir_ / "copy"}});
  EXPECT_TRUE(report.ok());
  // The chunks of that file that only the other step uses are for its own repair.
  EXPECT_THAT(verify_checkpoint(one).damage, SizeIs(1));
  EXPECT_TRUE(repair_checkpoint(one, {.from = {dir_ / "copy"}}).ok());
  EXPECT_TRUE(bytes_of_files(one) == good_one);
  EXPECT_TRUE(bytes_of_files(two) == good_two);
}

TEST_F(Repair, LeavesWhatNobodyHasAndNamesIt) {
  HostTensor other = noise();
  other.data = std::make_shared<const std::vector<std::byte>>(
      test_values(DType::f32, {1000, 500}, Values::noise, 9));
  const fs::path one = save(root_, 1, {noise(), ramp()});
  save(root_, 2, {other, ramp()});
  const auto stored = detail::open_checkpoint(*posix_file_system(), one);
  damage_all_chunks(one);
  const Bytes before = bytes_of_files(one);
  const RepairReport report = repair_checkpoint(one);
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.repaired.empty());
  ASSERT_FALSE(report.left.damage.empty());
  for (const Damage& left : report.left.damage) {
    EXPECT_EQ(left.tensor, "noise");
    EXPECT_THAT(left.message,
                HasSubstr("; not repaired: none of the other checkpoints, 1, has it whole"));
  }
  for (const Repaired& repaired : report.repaired) EXPECT_EQ(repaired.damage.tensor, "ramp");
  const Bytes after = bytes_of_files(one);
  for (const detail::ChunkId& id : all_chunks(stored)) {
    if (stored.tensor(id).name != "noise") continue;
    const std::string name = stored.file_name(stored.file_of(id));
    const auto at = static_cast<std::ptrdiff_t>(stored.record(id).address);
    const auto bytes = static_cast<std::ptrdiff_t>(stored.record(id).stored_bytes);
    EXPECT_TRUE(std::equal(after.at(name).begin() + at, after.at(name).begin() + at + bytes,
                           before.at(name).begin() + at));
  }
  const TempDir alone;
  fs::copy(one, alone / "step");
  EXPECT_THAT(repair_checkpoint(alone / "step").left.damage.front().message,
              HasSubstr("there is no other step in its root, and no copy was given"));
}

TEST_F(Repair, OpensNothingForWritingIfNothingIsWrong) {
  const fs::path step = save(1);
  int updates = 0;
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path& path) {
        if (operation == "open for update") ++updates;
        EXPECT_TRUE(operation != "create" || path.parent_path() != step);
      });
  EXPECT_TRUE(repair_checkpoint(step, {.file_system = files}).ok());
  EXPECT_EQ(updates, 0);
}

TEST_F(Repair, WritesAChunkAnewThatTheDiskCannotRead) {
  const fs::path step = save(1);
  fs::copy(step, dir_ / "copy");
  const Bytes good = bytes_of_files(step);
  const auto stored = detail::open_checkpoint(*posix_file_system(), step);
  const detail::ChunkId id = all_chunks(stored).front();
  bool is_bad = true;  // until it is written
  class WriteMends final : public ForwardingFileSystem {
   public:
    WriteMends(std::shared_ptr<FileSystem> real, bool& is_bad)
        : ForwardingFileSystem(std::move(real)), is_bad_(is_bad) {}

   private:
    class Mending final : public ForwardingFile {
     public:
      Mending(std::unique_ptr<File> real, bool& is_bad)
          : ForwardingFile(std::move(real)), is_bad_(is_bad) {}
      void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
        is_bad_ = false;
        real().write_at(offset, data, size);
      }

     private:
      bool& is_bad_;
    };
    std::unique_ptr<File> wrapped(std::unique_ptr<File> file, const fs::path& path) override {
      if (path.extension() != ".h5") return file;  // the pin
      return std::make_unique<Mending>(std::move(file), is_bad_);
    }
    bool& is_bad_;
  };
  const auto read = [&](const fs::path& path, std::uint64_t offset, std::size_t size) {
    const std::uint64_t at = stored.record(id).address;
    if (is_bad && path.parent_path() == step && path.extension() == ".h5" && offset <= at &&
        at < offset + size && path.filename() != "index.h5") {
      throw Error(ErrorCode::io, "read " + path.string() + ": bad place");
    }
  };
  const auto files = std::make_shared<WriteMends>(
      std::make_shared<HookedFileSystem>([](std::string_view, const fs::path&) {}, read), is_bad);
  const RepairReport report =
      repair_checkpoint(step, {.from = {dir_ / "copy"}, .file_system = files});
  EXPECT_TRUE(report.ok());
  EXPECT_FALSE(is_bad);
  ASSERT_THAT(report.repaired, SizeIs(1));
  EXPECT_THAT(report.repaired[0].damage.message, HasSubstr("bad place"));
  EXPECT_TRUE(bytes_of_files(step) == good);
}

TEST_F(Repair, NeedsNoRightToListTheDirectoryThatHoldsTheCheckpoint) {
  const fs::path step = save(1);
  fs::copy(step, dir_ / "copy");
  const Bytes good = bytes_of_files(step);
  damage_all_chunks(step);
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path& path) {
        if (operation != "list" || path != root_) return;
        throw Error(ErrorCode::io, "list " + path.string() + ": Permission denied");
      });
  EXPECT_TRUE(repair_checkpoint(step, {.from = {dir_ / "copy"}, .file_system = files}).ok());
  EXPECT_TRUE(bytes_of_files(step) == good);
}

// Another checkpoint takes the place of the one that was verified.
TEST_F(Repair, WritesIntoNoOtherCheckpointsFile) {
  HostTensor other = noise();
  other.data = std::make_shared<const std::vector<std::byte>>(
      test_values(DType::f32, {1000, 500}, Values::noise, 9));
  const fs::path one = save(root_, 1, {noise()}, {.codec = Codec::none});
  const fs::path two = save(root_, 2, {other}, {.codec = Codec::none});
  fs::copy(one, dir_ / "copy");
  const Bytes good = bytes_of_files(two);
  damage_all_chunks(one);
  bool swapped = false;
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path&) {
        if (operation != "open for update" || swapped) return;
        swapped = true;
        posix_file_system()->exchange(one, two);
      });
  try {
    repair_checkpoint(one, {.from = {dir_ / "copy"}, .file_system = files});
  } catch (const Error&) {
  }
  EXPECT_TRUE(swapped);
  EXPECT_TRUE(bytes_of_files(one) == good);
}

// Whatever bytes are wrong, of whatever chunks, and whatever is wrong elsewhere.
TEST_F(Repair, OfRandomDamageNeverLeavesABytesWorse) {
  const fs::path one = save(1);
  save(2, {.codec = Codec::none});
  const Bytes good = bytes_of_files(one);
  const auto stored = detail::open_checkpoint(*posix_file_system(), one);
  const std::vector<detail::ChunkId> ids = all_chunks(stored);
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    fs::remove_all(dir_ / "copy");
    fs::copy(one, dir_ / "copy");
    const auto damage = [&](const fs::path& step, std::uint32_t part) {
      for (const detail::ChunkId& id : ids) {
        if (random() % part != 0) continue;
        const detail::ChunkRecord& record = stored.record(id);
        for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
          flip(step / stored.file_name(stored.file_of(id)),
               record.address + random() % record.stored_bytes,
               static_cast<std::byte>(1 + random() % 255));
        }
      }
    };
    damage(dir_ / "copy", 2);
    damage(one, 2);
    const Bytes before = bytes_of_files(one);
    repair_checkpoint(one, {.from = {dir_ / "copy"}});
    for (const auto& [name, bytes] : bytes_of_files(one)) {
      EXPECT_TRUE(is_no_worse(bytes, before.at(name), good.at(name))) << name;
      write_file(one / name, std::span(good.at(name)));
    }
  }
}

}  // namespace
}  // namespace shardwise
