#include "shardwise/checkpoint/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>
#include <set>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/read/index_check.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/hdf5.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/few_descriptors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

TensorSource source(const std::string& name, DType dtype, const Shape& shape,
                    const std::string& mesh, const std::string& spec, std::vector<std::byte> data) {
  const Sharding sharding(Mesh::parse(mesh), PartitionSpec::parse(spec));
  return callback_tensor(
      name, {dtype, shape, sharding}, [=](const Box& box, std::span<std::byte> out) {
        copy_box(box, size_bytes(dtype), {data.data(), Box::whole(shape)}, {out.data(), box});
      });
}

/// A small checkpoint of the library's own: chunks of both codecs, contiguous pieces, a scalar, a
/// tensor without elements.
fs::path save_small(const fs::path& root, std::int64_t step = 3, std::uint64_t seed = 0) {
  CheckpointManager manager(root, {.write = {.threads = 2}});
  seed += static_cast<std::uint64_t>(step);
  const auto weights = counting_values(DType::f32, {8, 4096}, seed);
  const auto noise = scattered_values(DType::bf16, {20, 3000}, seed);
  const SaveStats stats =
      manager.save(step,
                   {source("layer/w", DType::f32, {8, 4096}, "x=2", "x,-", weights),
                    source("noise", DType::bf16, {20, 3000}, "x=1", "-,-", noise),
                    source("b", DType::i16, {7}, "x=3", "x", counting_values(DType::i16, {7})),
                    source("scalar", DType::f64, {}, "", "", scattered_values(DType::f64, {})),
                    source("nothing", DType::u8, {0, 2}, "", "-,-", {})},
                   {.user_json = "{\"epoch\": 1}"});
  return stats.directory;
}

std::size_t directory_bytes(const fs::path& directory) {
  std::size_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(directory)) bytes += entry.file_size();
  return bytes;
}

std::string only(const std::vector<Damage>& list) {
  EXPECT_EQ(list.size(), 1u);
  for (const Damage& damage : list) {
    EXPECT_EQ(damage.message.find('\n'), std::string::npos);
    EXPECT_FALSE(damage.message.ends_with('.'));
  }
  return list.empty() ? "" : list.front().message;
}

std::string only_damage(const VerifyReport& report) {
  EXPECT_TRUE(report.unread.empty());
  EXPECT_FALSE(report.ok());
  return only(report.damage);
}

/// The only unread part of a report without damage.
std::string only_unread(const VerifyReport& report) {
  EXPECT_TRUE(report.damage.empty());
  EXPECT_FALSE(report.ok());
  return only(report.unread);
}

class Verify : public testing::Test {
 protected:
  VerifyReport verify() { return verify_checkpoint(path_, {.threads = 2}); }

  TempDir dir_;
  fs::path path_ = save_small(dir_.path());
  detail::StoredCheckpoint stored_ = detail::open_checkpoint(*posix_file_system(), path_);
};

TEST_F(Verify, FindsNothingInWhatWasSavedAndReadsAllOfIt) {
  const VerifyReport report = verify();
  EXPECT_TRUE(report.ok());
  for (const Damage& damage : report.damage) ADD_FAILURE() << damage.message;
  EXPECT_EQ(report.bytes, directory_bytes(path_));
  std::int64_t chunks = 0;
  for (const auto& file : stored_.manifest.files) chunks += file.chunks;
  EXPECT_EQ(report.chunks, chunks);
  EXPECT_GE(chunks, 5);
}

TEST_F(Verify, ReportsProgressUpToTheTotal) {
  Progress last;
  verify_checkpoint(path_, {.progress = [&](const Progress& p) { last = p; }});
  EXPECT_EQ(last.done_bytes, last.total_bytes);
  EXPECT_EQ(last.total_bytes, directory_bytes(path_));
}

// The heart of it: whatever byte changes, of whatever class, is found. A sample here, as opening
// the index takes its time; every single one in the smaller checkpoint below.
TEST_F(Verify, FindsAChangeOfAnyByteAndNamesTheFile) {
  std::mt19937 random(5);
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    const auto good = file_bytes(entry.path());
    for (std::size_t place = 0; place < good.size(); place += 1 + random() % 80) {
      const auto bit = static_cast<std::byte>(1u << random() % 8);
      flip(entry.path(), place, bit);
      const VerifyReport report = verify();
      flip(entry.path(), place, bit);
      ASSERT_EQ(report.damage.size(), 1u) << "byte " << place;
      EXPECT_EQ(report.damage.front().file, name) << "byte " << place;
    }
    EXPECT_EQ(file_bytes(entry.path()), good);
  }
  EXPECT_TRUE(verify().ok());
}

TEST_F(Verify, FindsAChangeInEachByteClassOfAShardFile) {
  ASSERT_EQ(stored_.manifest.files.size(), 1u);
  const detail::FileEntry& file = stored_.manifest.files[0];
  const fs::path path = path_ / file.name;
  const CheckpointReader reader(path_);
  const auto damage_at = [&](std::uint64_t place) {
    flip(path, place, std::byte{16});
    const VerifyReport report = verify();
    if (!report.damage.empty() && !report.damage[0].tensor.empty()) {
      // Reading stumbles over the same chunk, in the same words.
      const Damage& damage = report.damage[0];
      std::vector<std::byte> out(
          num_bytes(damage.box.shape(), size_bytes(reader.tensor(damage.tensor).dtype)));
      EXPECT_EQ(
          message_of(ErrorCode::corrupt, [&] { reader.read(damage.tensor, damage.box, out); }),
          damage.message);
    }
    flip(path, place, std::byte{16});
    EXPECT_EQ(report.damage.size(), 1u);
    return report.damage.empty() ? Damage{} : report.damage.front();
  };

  for (std::uint64_t i = 0; i < stored_.tables[0].records.size() * sizeof(detail::ChunkRecord);
       ++i) {
    EXPECT_THAT(damage_at(file.table_address + i).message, HasSubstr("read chunk table of"));
  }
  if (file.data_begin > 0) {
    EXPECT_THAT(damage_at(0).message, HasSubstr("HDF5's own bytes"));
    EXPECT_THAT(damage_at(file.data_begin - 1).message, HasSubstr("HDF5's own bytes"));
  }
  ASSERT_LT(file.data_end, file.bytes);
  EXPECT_THAT(damage_at(file.data_end).message, HasSubstr("HDF5's own bytes"));
  EXPECT_THAT(damage_at(file.bytes - 1).message, HasSubstr("HDF5's own bytes"));

  std::set<bool> kinds;
  std::uint64_t padding = 0;
  for (std::size_t t = 0; t < stored_.manifest.tensors.size(); ++t) {
    const auto& tensor = stored_.manifest.tensors[t];
    for (std::size_t p = 0; p < tensor.pieces.size(); ++p) {
      for (std::int64_t c = 0; c < num_chunks(tensor.pieces[p]); ++c) {
        const detail::ChunkId id{t, p, c};
        const detail::ChunkRecord& record = stored_.record(id);
        kinds.insert(stored_raw(stored_, id));
        for (const std::uint64_t place : {record.address, record.address + record.stored_bytes - 1,
                                          record.address + record.stored_bytes / 2}) {
          const Damage damage = damage_at(place);
          EXPECT_EQ(damage.tensor, tensor.name);
          EXPECT_EQ(damage.chunk, tensor.pieces[p].first_chunk + c);
          EXPECT_EQ(damage.box, stored_.box(id));
          EXPECT_THAT(damage.message,
                      AllOf(HasSubstr(path.string()), HasSubstr("the hash of its bytes is"),
                            HasSubstr(to_string(damage.box))));
        }
        const std::uint64_t end = record.address + record.stored_bytes;
        if (end % 8 != 0) padding = end;
      }
    }
  }
  EXPECT_EQ(kinds.size(), 2u) << "the checkpoint has chunks as they are and chunks of zstd";
  ASSERT_NE(padding, 0u);
  EXPECT_THAT(damage_at(padding).message, HasSubstr("belongs to nothing"));
}

TEST_F(Verify, FindsFilesThatAreCutOffAtAnyBorder) {
  const detail::FileEntry& file = stored_.manifest.files[0];
  std::set<std::uint64_t> borders{
      0,
      1,
      file.data_begin,
      file.data_end,
      file.table_address,
      file.table_address + stored_.tables[0].records.size() * sizeof(detail::ChunkRecord),
      file.bytes - 1};
  for (const detail::ChunkRecord& record : stored_.tables[0].records) {
    borders.insert({record.address, record.address + record.stored_bytes});
  }
  const auto good = file_bytes(path_ / file.name);
  for (const std::uint64_t border : borders) {
    SCOPED_TRACE(border);
    write_file(path_ / file.name, std::span(good).first(border));
    EXPECT_THAT(only_damage(verify()), HasSubstr("needed are " + std::to_string(file.bytes)));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { CheckpointReader reader(path_); }),
                HasSubstr(file.name));
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  write_file(path_ / file.name, longer);
  EXPECT_THAT(only_damage(verify()), HasSubstr("needed are " + std::to_string(file.bytes)));
}

TEST_F(Verify, FindsFilesThatAreMissingForeignOrNotFiles) {
  const std::string shard = stored_.manifest.files[0].name;
  write_file(path_ / "notes.txt", std::string_view());
  fs::create_directory(path_ / "sub");
  fs::remove(path_ / shard);
  VerifyReport report = verify();
  ASSERT_EQ(report.damage.size(), 3u);
  EXPECT_EQ(report.damage[0].file, "notes.txt");
  EXPECT_EQ(report.damage[1].file, shard);
  EXPECT_THAT(report.damage[1].message, HasSubstr("it is missing"));
  EXPECT_EQ(report.damage[2].file, "sub");
  EXPECT_THAT(report.damage[2].message, HasSubstr("no part of the checkpoint"));

  fs::remove(path_ / "notes.txt");
  fs::remove(path_ / "sub");
  fs::create_directory(path_ / shard);
  EXPECT_THAT(only_damage(verify()), HasSubstr(shard));
  fs::remove(path_ / shard);
  fs::create_symlink("index.h5", path_ / shard);
  EXPECT_THAT(only_damage(verify()), HasSubstr(shard));

  fs::remove(path_ / "index.h5");
  report = verify();
  ASSERT_EQ(report.damage.size(), 2u);
  EXPECT_EQ(report.damage[0].file, "index.h5");
}

TEST_F(Verify, FindsFilesOfAnotherCheckpoint) {
  const fs::path other = save_small(dir_.path(), 4);
  for (const std::string& name : {stored_.manifest.files[0].name, std::string("index.h5")}) {
    SCOPED_TRACE(name);
    const auto good = file_bytes(path_ / name);
    fs::copy_file(other / name, path_ / name, fs::copy_options::overwrite_existing);
    const bool same = file_bytes(path_ / name) == good;
    EXPECT_EQ(verify().ok(), same);
    write_file(path_ / name, good);
  }
  fs::copy_file(other / "manifest.json", path_ / "manifest.json",
                fs::copy_options::overwrite_existing);
  EXPECT_FALSE(verify().ok());
}

TEST_F(Verify, ReportsADamagedManifestAndEndsThere) {
  std::string text = file_text(path_ / "manifest.json");
  text[20] ^= 1;
  write_file(path_ / "manifest.json", std::as_bytes(std::span(text)));
  const VerifyReport report = verify();
  EXPECT_THAT(only_damage(report), HasSubstr("it states"));
  EXPECT_EQ(report.damage[0].file, "manifest.json");
  EXPECT_EQ(report.chunks, 0);
}

/// A disk that cannot read some bytes of some files.
struct BadPlace {
  std::string file;
  std::uint64_t begin, end;
};

std::shared_ptr<FileSystem> bad_disk(std::vector<BadPlace> bad) {
  const auto read = [bad = std::move(bad)](const fs::path& path, std::uint64_t offset,
                                           std::size_t size) {
    for (const BadPlace& place : bad) {
      if (path.filename() != place.file || offset >= place.end || offset + size <= place.begin) {
        continue;
      }
      throw Error(ErrorCode::io, "read " + path.string() + ": bad place");
    }
  };
  return std::make_shared<HookedFileSystem>([](std::string_view, const fs::path&) {}, read);
}

TEST_F(Verify, ReportsEachChunkThatTheDiskCannotReadAndGoesOn) {
  const std::string name = stored_.manifest.files[0].name;
  const auto chunks = std::ssize(stored_.tables[0].records);
  std::vector<BadPlace> all;
  for (std::size_t t = 0; t < stored_.manifest.tensors.size(); ++t) {
    const auto& tensor = stored_.manifest.tensors[t];
    for (std::size_t p = 0; p < tensor.pieces.size(); ++p) {
      for (std::int64_t c = 0; c < num_chunks(tensor.pieces[p]); ++c) {
        const detail::ChunkId id{t, p, c};
        const std::uint64_t last = stored_.record(id).address + stored_.record(id).stored_bytes - 1;
        SCOPED_TRACE(stored_.describe(id));
        all.push_back({name, last, last + 1});
        const VerifyReport report =
            verify_checkpoint(path_, {.threads = 2, .file_system = bad_disk({all.back()})});
        EXPECT_THAT(only_unread(report),
                    AllOf(HasSubstr(stored_.describe(id)), HasSubstr("bad place")));
        ASSERT_FALSE(report.unread.empty());
        EXPECT_EQ(report.unread[0].file, name);
        EXPECT_EQ(report.unread[0].tensor, tensor.name);
        EXPECT_EQ(report.unread[0].chunk, tensor.pieces[p].first_chunk + c);
        EXPECT_EQ(report.unread[0].box, stored_.box(id));
        EXPECT_EQ(report.chunks, chunks - 1) << "each of the others once";
        EXPECT_EQ(report.bytes, directory_bytes(path_) - stored_.record(id).stored_bytes);
      }
    }
  }
  const VerifyReport report = verify_checkpoint(path_, {.file_system = bad_disk(all)});
  EXPECT_EQ(std::ssize(report.unread), chunks);
  EXPECT_TRUE(report.damage.empty());
  EXPECT_EQ(report.chunks, 0);
}

TEST_F(Verify, FindsChangesBesideWhatTheDiskCannotRead) {
  const detail::FileEntry& file = stored_.manifest.files[0];
  const detail::ChunkRecord& first = stored_.tables[0].records.front();
  const detail::ChunkRecord& last = stored_.tables[0].records.back();
  flip(path_ / file.name, last.address, std::byte{1});
  VerifyReport report = verify_checkpoint(
      path_, {.file_system = bad_disk({{file.name, first.address, first.address + 1}})});
  ASSERT_EQ(report.unread.size(), 1u);
  EXPECT_EQ(report.unread[0].chunk, 0);
  ASSERT_EQ(report.damage.size(), 1u);
  EXPECT_THAT(report.damage[0].message, HasSubstr("the hash of its bytes is"));

  // A part that is not a chunk is unread in its file.
  report = verify_checkpoint(
      path_, {.file_system =
                  bad_disk({{file.name, file.data_end, file.data_end + 1}, {"index.h5", 5, 6}})});
  ASSERT_EQ(report.unread.size(), 2u);
  EXPECT_EQ(report.unread[0].file, "index.h5");
  EXPECT_EQ(report.unread[1].file, file.name);
  EXPECT_THAT(report.unread[1].message, HasSubstr("bad place"));
  ASSERT_EQ(report.damage.size(), 1u);
  EXPECT_EQ(report.damage[0].chunk, std::ssize(stored_.tables[0].records) - 1);

  // Without its chunk table nothing is known about a file's data.
  const BadPlace table{file.name, file.table_address, file.table_address + 1};
  report = verify_checkpoint(path_, {.file_system = bad_disk({table})});
  EXPECT_THAT(only_unread(report), HasSubstr("bad place"));
  EXPECT_EQ(report.chunks, 0);

  const BadPlace manifest{"manifest.json", 0, 1};
  EXPECT_THAT(message_of(ErrorCode::io,
                         [&] { verify_checkpoint(path_, {.file_system = bad_disk({manifest})}); }),
              HasSubstr("bad place"));
}

// A read that fails once and then works is no damage; nothing is passed over because of it.
TEST_F(Verify, EveryOperationMayFailOnce) {
  const VerifyReport good = verify();
  const auto faulty = std::make_shared<FaultyFileSystem>(0, Fault::cut);
  int whole = 0, unread = 0, thrown = 0;
  for (std::int64_t at = 1; at == 1 || at <= faulty->operations() + 1; ++at) {
    SCOPED_TRACE(at);
    faulty->restart(at);
    try {
      const VerifyReport report = verify_checkpoint(path_, {.threads = 1, .file_system = faulty});
      if (!report.ok()) {
        EXPECT_THAT(only_unread(report), HasSubstr("injected"));
        ++unread;
        continue;
      }
      EXPECT_EQ(report.chunks, good.chunks);
      EXPECT_EQ(report.bytes, good.bytes);
      ++whole;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
      ++thrown;
    }
  }
  EXPECT_GE(whole, 2);
  EXPECT_GE(unread, 5);
  EXPECT_GE(thrown, 4);
}

// The process is at fault, not the checkpoint: one who deletes damaged checkpoints must keep it.
TEST_F(Verify, NamesWhatItHasNoDescriptorOrNoRightToOpen) {
  const fs::path path = [&] {
    CheckpointManager manager(dir_.path());
    const auto w = counting_values(DType::f32, {8, 4096});
    return manager
        .save(9, {source("w", DType::f32, {8, 4096}, "x=4", "x,-", w)},
              {.codec = Codec::none, .writers = 4})
        .directory;
  }();
  for (std::size_t free = 0; free < 9; ++free) {
    SCOPED_TRACE(free);
    VerifyReport report;
    std::string error;
    try {
      const FewDescriptors few(free);
      report = verify_checkpoint(path, {.threads = 1, .pin = false});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      error = e.what();
    }
    EXPECT_TRUE(report.damage.empty());
    switch (free) {
      case 0:
        EXPECT_THAT(error, HasSubstr("Too many open files"));
        break;
      case 3:  // of the directory, the manifest or the list; then two shard files stay open
        ASSERT_EQ(report.unread.size(), 3u);
        EXPECT_EQ(report.unread[0].file, "index.h5");
        EXPECT_EQ(report.unread[1].file, "shards-00002-of-00004.h5");
        EXPECT_EQ(report.unread[2].file, "shards-00003-of-00004.h5");
        EXPECT_THAT(report.unread[2].message, HasSubstr("Too many open files"));
        EXPECT_EQ(report.chunks, 2);
        break;
      case 8:
        EXPECT_TRUE(report.ok());
        break;
      default:
        break;
    }
  }

  const auto forbidden =
      std::make_shared<HookedFileSystem>([](std::string_view operation, const fs::path& file) {
        if (operation == "open" && file.filename() == "shards-00001-of-00004.h5") {
          throw Error(ErrorCode::io, "open " + file.string() + ": Permission denied");
        }
      });
  const VerifyReport report = verify_checkpoint(path, {.file_system = forbidden});
  EXPECT_THAT(only_unread(report), HasSubstr("Permission denied"));
  EXPECT_EQ(report.chunks, 3);
}

TEST_F(Verify, FindsAnIndexThatIsNotThatOfTheManifest) {
  HandMadeCheckpoint made({{.name = "w",
                            .shape = {8},
                            .pieces = {Box({0}, {8})},
                            .data = counting_values(DType::f32, {8})}});
  EXPECT_THAT(only_damage(verify_checkpoint(made.write(dir_ / "filler"))),
              HasSubstr("check index"));
  made.index = detail::index_of(made.manifest);
  made.seal();
  EXPECT_TRUE(verify_checkpoint(made.write(dir_ / "right")).ok());
}

// An index that is somebody's trap: nothing that it links to is opened. (It would wait for ever.)
TEST_F(Verify, NeverFollowsALinkOfTheIndex) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  std::vector<std::byte> index;
  {
    const detail::Hdf5Lock lock;
    const fs::path trap = dir_ / "trap.h5";
    const detail::H5File file(H5Fcreate(trap.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                              "create");
    ASSERT_GE(H5Lcreate_external((dir_ / "fifo").c_str(), "/x", file.get(), "w", H5P_DEFAULT,
                                 H5P_DEFAULT),
              0);
  }
  HandMadeCheckpoint made({{.name = "w",
                            .shape = {8},
                            .pieces = {Box({0}, {8})},
                            .data = counting_values(DType::f32, {8})}});
  made.index = file_bytes(dir_ / "trap.h5");
  made.seal();
  EXPECT_THAT(only_damage(verify_checkpoint(made.write(dir_.path()))), HasSubstr("check index"));
}

// It is zero, as it must be; the file takes no room on the disk.
TEST_F(Verify, PassesOverHolesThatTheFileSystemKnows) {
  constexpr std::uint64_t kHole = std::uint64_t{1} << 38;
  HandMadeCheckpoint made({{.name = "w",
                            .shape = {8},
                            .pieces = {Box({0}, {8})},
                            .data = counting_values(DType::f32, {8})}});
  made.index = detail::index_of(made.manifest);
  made.seal();
  // The hole is before the description, which ends the data.
  detail::FileEntry& entry = made.manifest.files[0];
  const std::size_t before = entry.data_end - detail::kDescriptionBytes;
  for (std::uint64_t* place :
       {&entry.data_end, &entry.bytes, &entry.decoded_address, &entry.pieces_address}) {
    *place += kHole;
  }
  const auto description = detail::describe_file(entry);
  const auto words = std::as_bytes(std::span(description));
  entry.description_hash = hash128(words.data(), words.size());
  std::copy(words.begin(), words.end(),
            made.files[0].bytes.begin() + static_cast<std::ptrdiff_t>(before));
  const fs::path path = made.write(dir_ / "sparse");
  fs::resize_file(path / entry.name, before);
  fs::resize_file(path / entry.name, entry.bytes);
  overwrite(path / entry.name, before + kHole, std::span(made.files[0].bytes).subspan(before));
  const VerifyReport report = verify_checkpoint(path, {.threads = 1});
  for (const Damage& damage : report.damage) ADD_FAILURE() << damage.message;
  EXPECT_GT(report.bytes, kHole);

  flip(path / entry.name, kHole / 2 + 7, std::byte{3});
  EXPECT_THAT(only_damage(verify_checkpoint(path, {.threads = 1})),
              HasSubstr("the byte at " + std::to_string(kHole / 2 + 7) + " belongs to nothing"));
}

// The step is replaced under its name during the verification: files of both steps are read.
TEST_F(Verify, DoesNotCallAStepDamagedThatIsSavedAnewMeanwhile) {
  int operations = 0;
  for (int at = 1, most = 1; at <= most; ++at) {
    SCOPED_TRACE(at);
    int count = 0;
    const auto replace = [&] {
      if (++count != at) return;
      CheckpointManager(dir_.path()).remove(3);
      save_small(dir_.path(), 3, static_cast<std::uint64_t>(100 + at));
    };
    const auto files = std::make_shared<HookedFileSystem>(
        [&](std::string_view, const fs::path&) { replace(); },
        [&](const fs::path&, std::uint64_t, std::size_t) { replace(); });
    try {
      const VerifyReport report = verify_checkpoint(path_, {.threads = 1, .file_system = files});
      for (const Damage& damage : report.damage) ADD_FAILURE() << damage.message;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::not_found) << e.what();
    }
    if (at == 1) most = operations = count;
  }
  EXPECT_GT(operations, 10);
}

TEST_F(Verify, ThrowsWhereThereIsNoCheckpointAndForNewerFormats) {
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { verify_checkpoint(dir_ / "step-00000009"); }),
              HasSubstr("there is no such directory"));
  const std::string text = file_text(path_ / "manifest.json");
  const std::string newer = manifest_with(text, "\"version\":2", "\"version\":3");
  write_file(path_ / "manifest.json", std::as_bytes(std::span(newer)));
  message_of(ErrorCode::unsupported, [&] { verify(); });
}

TEST_F(Verify, ComparesTheIndexWithTheManifest) {
  // The manifest changes its mind, with all hashes right; the index then tells another story.
  const std::string good = file_text(path_ / "manifest.json");
  const struct {
    std::string_view from, to, message;
  } cases[] = {
      {"\"dtype\":\"i16\"", "\"dtype\":\"bf16\"", "map the tensors of the manifest: it has "},
      {"\"shape\":[0,2]", "\"shape\":[0,3]", "is 2, needed is 3"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.to);
    const std::string text = manifest_with(good, c.from, c.to);
    write_file(path_ / "manifest.json", std::as_bytes(std::span(text)));
    EXPECT_THAT(only_damage(verify()), HasSubstr(std::string(c.message)));
  }
}

// Another process removes or replaces it, at each step of a verify: no byte of it was wrong.
TEST(VerifyHandMade, DoesNotCallARemovedCheckpointDamaged) {
  const TempDir dir;
  const fs::path path = save_small(dir.path());
  const fs::path trash = dir / ".trash-step-00000003.00000000000000000000000000000000";
  bool ended = false;
  int operations = 0;
  for (int at = 1; !ended; ++at) {
    SCOPED_TRACE(at);
    int count = 0;
    const auto remove = [&] {
      if (++count == at) fs::rename(path, trash);
    };
    const auto files = std::make_shared<HookedFileSystem>(
        [&](std::string_view, const fs::path&) { remove(); },
        [&](const fs::path&, std::uint64_t, std::size_t) { remove(); });
    try {
      EXPECT_TRUE(verify_checkpoint(path, {.threads = 1, .file_system = files}).ok());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::not_found) << e.what();
    }
    ended = count < at;
    operations = count;
    if (!ended) fs::rename(trash, path);
  }
  EXPECT_GT(operations, 10);
}

}  // namespace
}  // namespace shardwise
