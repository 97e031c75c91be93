// Chunks that have not changed since the step before are not written again, and every step is whole
// whatever becomes of the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/random_shardings.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// The same but for `bytes` from byte `begin` on.
HostTensor changed(const HostTensor& tensor, std::size_t begin, std::size_t bytes = 1) {
  HostTensor other = tensor;
  std::vector<std::byte> data = *tensor.data;
  for (std::size_t i = begin; i < begin + bytes; ++i) data[i] ^= std::byte{1};
  other.data = std::make_shared<const std::vector<std::byte>>(std::move(data));
  return other;
}

std::vector<std::string> linked_names(const fs::path& step) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(step)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(detail::kLinkedPrefix)) names.push_back(name);
  }
  return names;
}

// The bytes of the step's files, each counted once whatever its names.
std::size_t disk_bytes(const fs::path& step) {
  std::size_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(step)) bytes += entry.file_size();
  return bytes;
}

void expect_whole(const fs::path& step, std::span<const HostTensor> model) {
  const VerifyReport report = verify_checkpoint(step);
  EXPECT_TRUE(report.ok()) << (report.damage.empty() ? "" : report.damage.front().message);
  EXPECT_TRUE(holds(CheckpointReader(step), model)) << step;
}

// Reads with the HDF5 library alone, which follows the index into the shard files.
void expect_read_by_hdf5(const fs::path& step, const HostTensor& tensor) {
  const detail::Hdf5Lock lock;
  EXPECT_EQ(read_raw(step / "index.h5", "/" + tensor.name).data, *tensor.data) << tensor.name;
}

/// Changes a file as a disk does: its time stamps stay.
void unseen(const fs::path& file, const std::function<void()>& change) {
  const fs::file_time_type time = fs::last_write_time(file);
  change();
  fs::last_write_time(file, time);
}

class Increments : public testing::Test {
 protected:
  SaveStats save(std::int64_t step, const HostTensor& tensor, SaveOptions options = {}) {
    return manager_.save(step, {tensor.source()}, std::move(options));
  }
  fs::path at(std::int64_t step) const { return manager_.step(step).directory; }

  const TempDir dir_;
  CheckpointManager manager_{dir_.path()};
  const HostTensor noise_ = host_tensor("w", DType::f32, {2048, 1024}, "1", "-,-");  // 8 MiB
};

TEST_F(Increments, WriteOnlyTheChunkThatHasChanged) {
  EXPECT_EQ(save(1, noise_).unchanged_bytes, 0u);
  const HostTensor next = changed(noise_, 3 * kMiB);
  const SaveStats stats = save(2, next);
  EXPECT_EQ(stats.logical_bytes, 8 * kMiB);
  EXPECT_EQ(stats.unchanged_bytes, 7 * kMiB);
  EXPECT_LE(stats.file_bytes, kMiB + kMiB / 8);
  EXPECT_THAT(linked_names(at(2)), SizeIs(1));
  expect_whole(at(2), {&next, 1});
  expect_whole(at(1), {&noise_, 1});
  expect_read_by_hdf5(at(2), next);
}

TEST_F(Increments, StayWholeWithoutTheStepsThatTheyCameFrom) {
  save(1, noise_);
  const HostTensor second = changed(noise_, 0), third = changed(second, 5 * kMiB);
  save(2, second);
  save(3, third);
  EXPECT_THAT(linked_names(at(3)), SizeIs(2));
  fs::remove_all(at(1));  // by hand
  expect_whole(at(2), {&second, 1});
  manager_.remove(2);
  expect_whole(at(3), {&third, 1});
  expect_read_by_hdf5(at(3), third);
  const TempDir elsewhere;
  fs::copy(at(3), elsewhere / "copy");
  expect_whole(elsewhere / "copy", {&third, 1});
}

TEST_F(Increments, OfNothingNewWriteNoChunk) {
  save(1, noise_);
  const SaveStats stats = save(2, noise_);
  EXPECT_EQ(stats.unchanged_bytes, stats.logical_bytes);
  EXPECT_EQ(stats.stored_bytes, 0u);
  expect_whole(at(2), {&noise_, 1});
  expect_read_by_hdf5(at(2), noise_);
}

TEST_F(Increments, LinkNothingIfAllHasChanged) {
  save(1, noise_);
  const HostTensor other = host_tensor("w", DType::f32, {2048, 1024}, "1", "-,-", Values::noise, 2);
  EXPECT_EQ(save(2, other).unchanged_bytes, 0u);
  EXPECT_THAT(linked_names(at(2)), IsEmpty());
}

TEST_F(Increments, AreLeftOutOnRequestAndIfTheFileSystemHasNoLinks) {
  save(1, noise_);
  CheckpointManager without(dir_.path(), {.write = {.increments = false}});
  EXPECT_EQ(without.save(2, {noise_.source()}).unchanged_bytes, 0u);
  class NoLinks final : public ForwardingFileSystem {
    void link(const fs::path& from, const fs::path&) override {
      throw Error(ErrorCode::unsupported, "link " + from.string());
    }
  };
  CheckpointManager refused(dir_.path(), {.file_system = std::make_shared<NoLinks>()});
  EXPECT_EQ(refused.save(3, {noise_.source()}).unchanged_bytes, 0u);
  EXPECT_THAT(linked_names(at(3)), IsEmpty());
  expect_whole(at(3), {&noise_, 1});
}

// Read as another type by other tools, the same bytes would be other values.
TEST_F(Increments, AreOfTensorsThatAreCutAndTypedAlike) {
  save(1, noise_);
  HostTensor other = noise_;
  other.spec.dtype = DType::i32;
  EXPECT_EQ(save(2, other).unchanged_bytes, 0u);
  other.spec.sharding = Sharding(Mesh::parse("2"), PartitionSpec::parse("-,0"));
  EXPECT_EQ(save(3, other).unchanged_bytes, 0u);
  expect_whole(at(3), {&other, 1});
}

TEST_F(Increments, GoOnFromTheNewestStepAfterARestart) {
  save(1, noise_);
  CheckpointManager restarted(dir_.path());
  EXPECT_EQ(restarted.save(2, {noise_.source()}).unchanged_bytes, 8 * kMiB);
}

TEST_F(Increments, DamageInASharedChunkIsToldOfTheLinkedFile) {
  save(1, noise_, {.codec = Codec::none});
  const HostTensor next = changed(noise_, 0);
  save(2, next);
  const std::string linked = linked_names(at(2)).front();
  flip(at(2) / linked, 4096 + 5 * kMiB, std::byte{4});
  const VerifyReport report = verify_checkpoint(at(2));
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_EQ(report.damage[0].file, linked);
  EXPECT_EQ(report.damage[0].tensor, "w");
  std::vector<std::byte> out(noise_.data->size());
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           CheckpointReader(at(2)).read("w", Box::whole({2048, 1024}), out);
                         }),
              HasSubstr(linked));
  fs::resize_file(at(2) / linked, 4096);
  EXPECT_FALSE(verify_checkpoint(at(2)).ok());
  fs::remove(at(2) / linked);
  EXPECT_THAT(verify_checkpoint(at(2)).damage.front().message, HasSubstr("it is missing"));
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           CheckpointReader(at(2)).read("w", Box::whole({2048, 1024}), out);
                         }),
              HasSubstr("it is missing"));
  fs::create_hard_link(at(1) / "shards-00000-of-00001.h5", at(2) / linked);
  write_file(at(2) / "linked-0.h5", "x");
  EXPECT_THAT(verify_checkpoint(at(2)).damage.front().message,
              HasSubstr("no part of the checkpoint"));
}

TEST_F(Increments, AreNotBuiltOnAStepThatARestoreFoundDamaged) {
  save(1, noise_);
  const HostTensor next = changed(noise_, 0);
  save(2, next);
  flip(at(2) / "shards-00000-of-00001.h5", 4096 + 100, std::byte{4});  // the chunk of its own
  const auto restore = [&](const CheckpointReader& reader) {
    std::vector<std::byte> out(noise_.data->size());
    reader.read("w", Box::whole({2048, 1024}), out);
  };
  const auto found = manager_.restore_latest(restore);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step.step, 1);
  save(2, next);
  expect_whole(at(2), {&next, 1});
}

// A save does not read the chunks of the step before: it sees that somebody has written in the
// file.
TEST_F(Increments, LinkNoFileInWhichSomebodyHasWritten) {
  save(1, noise_);
  const HostTensor second = changed(noise_, 0);
  save(2, second);
  const std::string linked = linked_names(at(2)).front();
  flip(at(2) / linked, 4096 + 5 * kMiB, std::byte{4});
  const HostTensor third = changed(second, 3 * kMiB);
  EXPECT_EQ(save(3, third).unchanged_bytes, kMiB) << "that of step 2's own file";
  expect_whole(at(3), {&third, 1});
  EXPECT_FALSE(verify_checkpoint(at(2)).ok());
  EXPECT_EQ(save(4, third).unchanged_bytes, 8 * kMiB) << "of whole files";
  expect_whole(at(4), {&third, 1});
}

// As bytes that a disk loses: nothing but their hashes tells.
TEST_F(Increments, LinkNoFileThatWasReadAndFoundDamaged) {
  const auto lose = [&](std::int64_t step) {
    const fs::path file = at(step) / "shards-00000-of-00001.h5";
    unseen(file, [&] { flip(file, 4096 + 5 * kMiB, std::byte{4}); });
  };
  save(1, noise_);
  lose(1);
  EXPECT_EQ(save(2, noise_).unchanged_bytes, 8 * kMiB) << "nobody has read it";
  EXPECT_FALSE(verify_checkpoint(at(2)).ok());
  EXPECT_EQ(save(3, noise_).unchanged_bytes, 0u);
  expect_whole(at(3), {&noise_, 1});
  lose(3);
  std::vector<std::byte> out(noise_.data->size());
  EXPECT_THROW(CheckpointReader(at(3)).read("w", Box::whole({2048, 1024}), out), Error);
  EXPECT_EQ(CheckpointManager(dir_.path()).save(4, {noise_.source()}).unchanged_bytes, 0u);
  expect_whole(at(4), {&noise_, 1});
}

TEST_F(Increments, AreVerifiedByTheirValues) {
  save(1, noise_, {.codec = Codec::none});
  const HostTensor next = changed(noise_, 0);
  save(2, next, {.codec = Codec::none});
  flip(at(2) / linked_names(at(2)).front(), 4096 + 5, std::byte{4});  // a chunk of step 1 alone
  EXPECT_FALSE(verify_checkpoint(at(1)).ok());
  expect_whole(at(2), {&next, 1});
  EXPECT_THAT(to_string(verify_checkpoint(at(2))),
              testing::StartsWith("every value is as written"));
}

TEST_F(Increments, LinkNoFileThatIsDamaged) {
  save(1, noise_, {.codec = Codec::none});
  const fs::path file = at(1) / "shards-00000-of-00001.h5";
  const std::uintmax_t bytes = fs::file_size(file), data_end = 4096 + 8 * kMiB;
  for (const std::uintmax_t place : {std::uintmax_t{100}, data_end + 8, bytes - 9}) {
    SCOPED_TRACE(place);
    unseen(file, [&] { flip(file, place, std::byte{1}); });
    CheckpointManager fresh(dir_.path());
    EXPECT_EQ(fresh.save(2, {noise_.source()}, {.existing = Existing::replace}).unchanged_bytes,
              0u);
    expect_whole(at(2), {&noise_, 1});
    manager_.remove(2);
    unseen(file, [&] { flip(file, place, std::byte{1}); });
  }
}

// Two chunks have equal bytes, and the table of the step before says that they are in one place.
// No save writes so, and no reader takes it; but a save checks only the chunks that it links.
TEST_F(Increments, LinkNoFileWhoseChunksOverlap) {
  HostTensor twice = noise_;
  std::vector<std::byte> data = *noise_.data;
  std::copy_n(data.begin(), kMiB, data.begin() + kMiB);
  twice.data = std::make_shared<const std::vector<std::byte>>(std::move(data));
  save(1, twice, {.codec = Codec::none});

  const detail::Manifest manifest =
      detail::read_manifest(detail::open_directory(*posix_file_system(), at(1)));
  const fs::path path = at(1) / manifest.files[0].name;
  detail::FileTables tables =
      detail::read_file_tables(*posix_file_system()->open(path), at(1), manifest.files[0]);
  for (const std::uint64_t shift : {0, 4096}) {
    SCOPED_TRACE(shift);
    std::vector<detail::ChunkRecord> records = tables.table.records;
    records[1].address = records[0].address + shift;
    detail::FileEntry entry = tables.entry;
    const auto table = std::as_bytes(std::span(records));
    entry.table_hash = hash64(table.data(), table.size());
    const auto words = detail::describe_file(entry);
    const auto description = std::as_bytes(std::span(words));
    unseen(path, [&] {
      overwrite(path, entry.table_address, table);
      overwrite(path, entry.data_end - description.size(), description);
    });
    const fs::path manifest_path = at(1) / detail::kManifestName;
    write_file(manifest_path,
               manifest_with(file_text(manifest_path), to_hex(tables.entry.description_hash),
                             to_hex(hash128(description.data(), description.size()))));
    tables.entry.description_hash = hash128(description.data(), description.size());
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { CheckpointReader reader(at(1)); }),
                HasSubstr("overlap"));

    CheckpointManager fresh(dir_.path());
    const SaveStats stats =
        fresh.save(2, {twice.source()}, {.codec = Codec::none, .existing = Existing::replace});
    EXPECT_EQ(stats.unchanged_bytes, 0u);
    expect_whole(at(2), {&twice, 1});
    manager_.remove(2);
  }
}

TEST_F(Increments, OfWhichALinkedFileIsMissingAreNoValidStep) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  manager.save(1, {noise_.source()});
  manager.pins().add(1, "good");
  manager.save(2, {noise_.source()});
  fs::remove(at(2) / linked_names(at(2)).front());
  const auto latest = manager.latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->step.step, 1);
  ASSERT_THAT(latest->rejected, SizeIs(1));
  EXPECT_THAT(latest->rejected[0].reason, HasSubstr("it is missing"));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { CheckpointReader reader(at(2)); }),
              HasSubstr("it is missing"));
}

// The replaced step may be damaged: the values in memory are not.
TEST_F(Increments, AreNotBuiltOnTheStepThatIsReplaced) {
  save(1, noise_, {.codec = Codec::none});
  flip(at(1) / "shards-00000-of-00001.h5", 4096 + 100, std::byte{4});
  CheckpointManager fresh(dir_.path());
  EXPECT_EQ(fresh.save(1, {noise_.source()}, {.codec = Codec::none, .existing = Existing::replace})
                .unchanged_bytes,
            0u);
  expect_whole(at(1), {&noise_, 1});
}

TEST_F(Increments, AreNotBuiltOnStepsOfWhichNoneCouldBeRestored) {
  save(1, noise_, {.codec = Codec::none});
  flip(at(1) / "shards-00000-of-00001.h5", 4096 + 100, std::byte{4});
  CheckpointManager restarted(dir_.path());
  const auto restore = [&](const CheckpointReader& reader) {
    std::vector<std::byte> out(noise_.data->size());
    reader.read("w", Box::whole({2048, 1024}), out);
  };
  EXPECT_THROW(restarted.restore_latest(restore), Error);
  restarted.save(5, {noise_.source()}, {.codec = Codec::none});
  expect_whole(at(5), {&noise_, 1});
}

TEST_F(Increments, WriteAgainWhatIsTheLesserPartOfAFile) {
  const HostTensor frozen = host_tensor("frozen", DType::u8, {200'000}, "1", "-");
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  manager.save(1, {noise_.source(), frozen.source()});
  const std::vector<HostTensor> other{
      host_tensor("w", DType::f32, {2048, 1024}, "1", "-,-", Values::noise, 2), frozen};
  std::vector<std::size_t> done;
  const SaveOptions options{
      .progress = [&](const Progress& progress) { done.push_back(progress.done_bytes); }};
  EXPECT_EQ(manager.save(2, sources_of(other), options).unchanged_bytes, 0u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 8 * kMiB + 200'000);
  EXPECT_THAT(linked_names(at(2)), IsEmpty());
  expect_whole(at(2), other);
  EXPECT_EQ(manager.save(3, {frozen.source()}).unchanged_bytes, 0u);
  EXPECT_LE(disk_bytes(at(3)), 400'000u);
  expect_whole(at(3), {&frozen, 1});
}

// Each save changes a twentieth. Whatever was there before, a step alone never takes more than
// twice its bytes, nor too many files.
TEST_F(Increments, KeepNoMoreThanTwiceWhatTheyAreMadeOf) {
  CheckpointManager manager(dir_ / "long", {.keep = {.last = 1}});
  HostTensor tensor = host_tensor("w", DType::u8, {20, 1 << 20}, "1", "-,-");
  std::mt19937 random(3);
  std::size_t most = 0, written = 0;
  for (int step = 0; step < 40; ++step) {
    tensor = changed(tensor, random() % 20 * kMiB, kMiB);
    const SaveStats stats = manager.save(step, {tensor.source()}, {.codec = Codec::none});
    if (step > 0) written += stats.logical_bytes - stats.unchanged_bytes;
    const fs::path at = manager.step(step).directory;
    most = std::max(most, disk_bytes(at));
    EXPECT_LE(linked_names(at).size(), detail::kMostLinkedFiles);
    expect_whole(at, {&tensor, 1});
  }
  EXPECT_LE(most, 2 * tensor.data->size() + kMiB);
  EXPECT_LE(written, 40 * tensor.data->size() / 4);
}

TEST_F(Increments, OfSavesWithoutAManagerAreSaidByTheirOption) {
  EncodeOptions options;
  save_checkpoint(dir_ / "a", {noise_.source()}, Existing::fail, options);
  options.unchanged_since = dir_ / "a";
  const HostTensor next = changed(noise_, kMiB);
  EXPECT_EQ(save_checkpoint(dir_ / "b", {next.source()}, Existing::fail, options).unchanged_bytes,
            7 * kMiB);
  fs::remove_all(dir_ / "a");
  expect_whole(dir_ / "b", {&next, 1});
  EXPECT_THAT(
      message_of(ErrorCode::not_found,
                 [&] { save_checkpoint(dir_ / "c", {next.source()}, Existing::fail, options); }),
      HasSubstr("save what has changed since"));
}

// Any bytes of any tensors, cut in any way, change from step to step, and some steps are removed in
// between.
TEST(IncrementsRandom, EveryStepThatIsLeftIsWhole) {
  int shared = 0;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::size_t unchanged = 0;
    RandomShardings random(seed);
    const auto draw = [&](std::int64_t least, std::int64_t most) {
      return random.draw(least, most);
    };
    const TempDir dir;
    CheckpointManager manager(dir.path(), {.keep = {.last = draw(0, 3)}});
    std::vector<HostTensor> model;
    for (int t = 0; t < 3; ++t) {
      const auto rank = static_cast<std::size_t>(draw(1, 3));
      Shape shape;
      for (std::size_t d = 0; d < rank; ++d) {
        shape.push_back(draw(1, rank == 1 ? 700'000 : rank == 2 ? 900 : 90));
      }
      const DType dtypes[] = {DType::f32, DType::bf16, DType::u8, DType::i64};
      const DType dtype = dtypes[draw(0, 3)];
      const Values values = draw(0, 1) == 0 ? Values::ramp : Values::noise;
      const Mesh mesh = random.mesh();
      HostTensor tensor{
          "t/" + std::to_string(t),
          {dtype, shape, Sharding(mesh, random.spec(mesh, rank))},
          std::make_shared<const std::vector<std::byte>>(test_values(dtype, shape, values, seed))};
      model.push_back(std::move(tensor));
    }
    std::map<std::int64_t, std::vector<HostTensor>> saved;
    for (std::int64_t step = 1; step <= 8; ++step) {
      for (HostTensor& tensor : model) {
        if (draw(0, 3) != 0) continue;
        const auto bytes = static_cast<std::int64_t>(tensor.data->size());
        const std::int64_t begin = draw(0, bytes - 1);
        tensor =
            changed(tensor, static_cast<std::size_t>(begin),
                    static_cast<std::size_t>(draw(1, std::min<std::int64_t>(bytes - begin, 9000))));
      }
      const Codec codecs[] = {Codec::none, Codec::zstd, Codec::automatic};
      const SaveStats stats = manager.save(step, sources_of(model),
                                           {.codec = codecs[seed % 3 == 0 ? draw(0, 2) : seed % 3],
                                            .writers = seed % 2 == 0 ? 1 : 3});
      unchanged += stats.unchanged_bytes;
      saved[step] = model;
      if (draw(0, 3) == 0) fs::remove_all(manager.steps().front().directory);
      for (const Step& there : manager.steps()) expect_whole(there.directory, saved.at(there.step));
      const std::vector<Step> left = manager.steps();
      if (left.empty()) continue;
      for (const HostTensor& tensor : saved.at(left.back().step)) {
        expect_read_by_hdf5(left.back().directory, tensor);
      }
    }
    shared += unchanged > 0;
  }
  EXPECT_GE(shared, 8);
}

}  // namespace
}  // namespace shardwise
