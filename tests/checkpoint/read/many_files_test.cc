#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/random_boxes.h"
#include "testing/temp_dir.h"

// Checkpoints of more shard files than are opened at once: a reader opens those that it needs.
namespace shardwise::detail {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kWriters = 100;

class ManyFiles : public testing::Test {
 protected:
  ManyFiles() {
    CheckpointManager manager(dir_.path());
    path_ = manager.save(7, sources_of(tensors_), {.user_json = "{\"a\":1}", .writers = kWriters})
                .directory;
  }

  /// Notes which shard files are opened.
  ReadOptions noting(std::set<std::string>& opened) {
    ReadOptions options{.threads = 2};
    options.file_system = std::make_shared<HookedFileSystem>(
        [&](std::string_view operation, const std::filesystem::path& path) {
          const std::lock_guard lock(mutex_);
          if (operation == "open" && path.filename().string().starts_with("shards-")) {
            opened.insert(path.filename());
          }
        });
    return options;
  }

  std::filesystem::path shard_file(std::int64_t writer) const {
    return path_ / shard_file_name(writer, kWriters);
  }

  std::vector<std::byte> read(const CheckpointReader& reader, const HostTensor& tensor,
                              const Box& box) const {
    std::vector<std::byte> found(num_bytes(box.shape(), size_bytes(tensor.spec.dtype)));
    reader.read(tensor.name, box, found);
    return found;
  }

  const std::vector<HostTensor> tensors_ = {
      host_tensor("bias", DType::f32, {77}, "a=25,b=4", "b"),
      host_tensor("cut", DType::f32, {203, 65}, "a=25,b=4", "a,b"),
      host_tensor("partly", DType::bf16, {300, 2000}, "a=25,b=4", "-,b"),
      host_tensor("scalar", DType::f64, {}, "a=25,b=4", ""),
      host_tensor("some", DType::u8, {70, 70}, "10", "-,0")};
  const TempDir dir_;
  std::filesystem::path path_;
  std::mutex mutex_;
};

TEST_F(ManyFiles, AreOpenedOnlyWhereABoxTouchesThem) {
  // Loads every file to find the place of each piece.
  StoredCheckpoint all = open_checkpoint(*posix_file_system(), path_);
  ASSERT_GT(all.manifest.files.size(), kMostFilesReadAtOnce);
  ASSERT_FALSE(all.is_complete());
  for (std::size_t f = 0; f < all.manifest.files.size(); ++f) load_file(all, f);

  RandomShardings random(3);
  for (int round = 0; round < 100; ++round) {
    const auto number = static_cast<std::size_t>(random.draw(0, std::ssize(tensors_) - 1));
    const HostTensor& tensor = tensors_[number];
    const Box box = random_box(Box::whole(tensor.spec.shape), random);
    SCOPED_TRACE(tensor.name + to_string(box));
    std::set<std::string> opened, touched;
    for (const PieceEntry& piece : all.manifest.tensors[number].pieces) {
      if (!intersect(piece.box, box).empty() && !box.empty()) {
        touched.insert(all.manifest.files[static_cast<std::size_t>(piece.file)].name);
      }
    }
    const CheckpointReader reader(path_, noting(opened));
    ASSERT_THAT(opened, IsEmpty());
    EXPECT_EQ(read(reader, tensor, box), tensor.part(box));
    EXPECT_EQ(opened, touched);
  }
}

TEST_F(ManyFiles, AreReadByManyThreadsAtOnce) {
  const CheckpointReader reader(path_, {.threads = 1});
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      RandomShardings random(t);
      for (int round = 0; round < 60; ++round) {
        const HostTensor& tensor =
            tensors_[static_cast<std::size_t>(random.draw(0, std::ssize(tensors_) - 1))];
        const Box box = random_box(Box::whole(tensor.spec.shape), random);
        EXPECT_EQ(read(reader, tensor, box), tensor.part(box)) << tensor.name << to_string(box);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ManyFiles, AreRestoredReshardedAndVerified) {
  const CheckpointReader reader(path_);
  EXPECT_EQ(reader.step(), 7);
  EXPECT_EQ(reader.user_json(), "{\"a\":1}");
  EXPECT_TRUE(holds(reader, tensors_));
  EXPECT_EQ(CheckpointManager(dir_.path()).latest()->step.directory, path_);
  EXPECT_THAT(verify_checkpoint(path_).damage, IsEmpty());

  Devices devices(6);
  const Sharding rows(Mesh::parse("6"), PartitionSpec::parse("0,-"));
  const ShardedArray cut = reader.restore(devices, "cut", rows);
  for (std::int64_t p = 0; p < 6; ++p) {
    const ConstBoxView shard = cut.shard(p);
    const std::vector<std::byte> part = tensors_[1].part(shard.box);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), shard.data));
  }

  const TempDir target;
  const auto rules = SpecRules::parse("cut=-,0; *=-");
  const SaveStats stats =
      reshard_checkpoint(path_, target.path(), Mesh::parse("3"), rules, ReshardOptions{});
  EXPECT_TRUE(holds(CheckpointReader(stats.directory), tensors_));
}

// Counts that need every file to be opened are not told.
TEST_F(ManyFiles, LeaveTheNumbersOfPiecesOpen) {
  const CheckpointReader reader(path_);
  for (const TensorInfo& info : reader.tensors()) {
    EXPECT_EQ(info.pieces, 0);
    EXPECT_EQ(info.chunks, 0);
    EXPECT_EQ(info.stored_bytes, 0u);
    EXPECT_GT(info.logical_bytes, 0u);
  }
}

// The reader goes on with other files, and with this one when it is there again.
TEST_F(ManyFiles, OfWhichOneIsMissingOrDamagedHurtWhoNeedsItAlone) {
  const CheckpointReader reader(path_);
  const HostTensor& cut = tensors_[1];
  const Box first({0, 0}, {1, 1}), last({202, 64}, {203, 65});
  std::filesystem::rename(shard_file(0), dir_.path() / "away");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { CheckpointManager(dir_.path()).latest(); }),
              HasSubstr("shards-00000-of-00100.h5: it is missing"));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read(reader, cut, first); }),
              AllOf(HasSubstr("shards-00000-of-00100.h5"), HasSubstr("is missing")));
  EXPECT_EQ(read(reader, cut, last), cut.part(last));

  std::filesystem::rename(dir_.path() / "away", shard_file(0));

  const std::vector<std::byte> bytes = file_bytes(shard_file(0));
  const auto write = [&](const std::vector<std::byte>& all) {
    std::ofstream(shard_file(0), std::ios::binary)
        .write(reinterpret_cast<const char*>(all.data()), std::ssize(all));
  };
  const FileEntry entry = parse_manifest(file_text(path_ / kManifestName), "m").files[0];
  std::vector<std::byte> damaged = bytes;
  damaged[entry.data_end - 8] ^= std::byte{1};
  write(damaged);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read(reader, cut, first); }),
              HasSubstr("read description of"));
  write(bytes);
  EXPECT_EQ(read(reader, cut, first), cut.part(first));
  EXPECT_TRUE(holds(reader, tensors_));
}

TEST_F(ManyFiles, OfWhichTheManifestLacksOneAreRefusedWhereItIsNeeded) {
  Manifest manifest = parse_manifest(file_text(path_ / kManifestName), "m");
  const auto writer = manifest.files.begin() + 40;
  manifest.files.erase(writer);
  std::ofstream(path_ / kManifestName) << print_manifest(manifest);
  const CheckpointReader reader(path_);
  const HostTensor& cut = tensors_[1];
  EXPECT_EQ(read(reader, cut, Box({0, 0}, {1, 1})), cut.part(Box({0, 0}, {1, 1})));
  EXPECT_THAT(
      message_of(ErrorCode::corrupt, [&] { holds(reader, tensors_); }),
      AllOf(HasSubstr("the manifest has no shard file of writer 40"), HasSubstr("tensor \"cut\"")));
}

// Pieces that follow no rule are found by their list.
TEST(ManyFilesOfListedPieces, AreOpenedOnlyWhereABoxTouchesThem) {
  RandomShardings random(5);
  for (int round = 0; round < 20; ++round) {
    const Shape shape{random.draw(35, 60), random.draw(2, 60)};
    HandMadeTensor tensor{.name = "t", .shape = shape};
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      const std::int64_t middle = random.draw(1, shape[1] - 1);
      tensor.pieces.push_back(Box({row, 0}, {row + 1, middle}));
      tensor.pieces.push_back(Box({row, middle}, {row + 1, shape[1]}));
    }
    std::shuffle(tensor.pieces.begin(), tensor.pieces.end(), random.engine());
    ASSERT_GT(tensor.pieces.size(), kMostFilesReadAtOnce);
    tensor.data = scattered_values(DType::f32, shape);
    const HandMadeCheckpoint made({tensor}, std::ssize(tensor.pieces));
    const TempDir dir;
    const std::filesystem::path path = made.write(dir.path());
    for (int box_number = 0; box_number < 10; ++box_number) {
      const Box box = random_box(Box::whole(shape), random);
      StoredCheckpoint stored = open_checkpoint(*posix_file_system(), path);
      std::size_t touched = 0;
      for (const Box& piece : tensor.pieces) touched += !intersect(piece, box).empty();
      const ReadTarget target{0, &box, {}};
      const std::vector<std::size_t> files = files_to_load(stored, {&target, 1});
      EXPECT_EQ(files.size(), box.empty() ? 0 : touched);
      EXPECT_TRUE(std::ranges::is_sorted(files));
      for (const std::size_t f : files) load_file(stored, f);
      EXPECT_THAT(files_to_load(stored, {&target, 1}), IsEmpty());

      const CheckpointReader reader(path);
      std::vector<std::byte> found(num_bytes(box.shape(), 4)), expected(found.size());
      reader.read("t", box, found);
      copy_box(box, 4, {tensor.data.data(), Box::whole(shape)}, {expected.data(), box});
      EXPECT_EQ(found, expected);
    }
  }
}

}  // namespace
}  // namespace shardwise::detail
