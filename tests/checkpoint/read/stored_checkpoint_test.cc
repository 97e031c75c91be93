#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/mend/parity.h"
#include "shardwise/mend/repair.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// "a" f32 [8], raw, chunks 0 and 1 of file 0; "z" f32 [512] zstd, chunks 0 and 1 of file 1.
HandMadeCheckpoint made(std::uint64_t first = 1) {
  return HandMadeCheckpoint({{.name = "a",
                              .shape = {8},
                              .pieces = {Box({0}, {8})},
                              .data = scattered_values(DType::f32, {8}, first),
                              .chunk = {4}},
                             {.name = "z",
                              .shape = {512},
                              .pieces = {Box({0}, {512})},
                              .data = counting_values(DType::f32, {512}, first),
                              .chunk = {256},
                              .codec = StoredCodec::zstd}},
                            2);
}

class Stored : public testing::Test {
 protected:
  std::string refused(ErrorCode code) {
    return message_of(code, [&] { open_checkpoint(*posix_file_system(), path_); });
  }

  TempDir dir_;
  fs::path path_ = made().write(dir_.path());
};

TEST_F(Stored, OpensFromAnywhere) {
  fs::create_directory_symlink(path_, dir_ / "latest");
  for (const fs::path& path :
       {path_, path_ / "", dir_ / "latest", path_ / "..", path_ / "." / ".." / "step-00000100"}) {
    SCOPED_TRACE(path);
    if (path == path_ / "..") {
      EXPECT_THROW(open_checkpoint(*posix_file_system(), path), Error);
      continue;
    }
    EXPECT_EQ(open_checkpoint(*posix_file_system(), path).manifest.tensors.size(), 2u);
  }
}

TEST_F(Stored, IsNotFoundWhereNothingWasCommitted) {
  const auto missing = [&](const fs::path& path) {
    return message_of(ErrorCode::not_found, [&] { CheckpointReader reader(path); });
  };
  EXPECT_THAT(missing(dir_ / "step-00000101"), HasSubstr("there is no such directory"));
  EXPECT_THAT(missing(path_ / "manifest.json"), HasSubstr("there is no such directory"));
  fs::create_directory(dir_ / "empty");
  EXPECT_THAT(missing(dir_ / "empty"), HasSubstr("it was not committed: it has no manifest.json"));

  // An attempt is no checkpoint, though all its files are there already.
  const fs::path attempt = dir_ / ".step-00000100.0123456789abcdef0123456789abcdef.tmp";
  fs::rename(path_, attempt);
  EXPECT_THAT(missing(attempt), HasSubstr("it was not committed"));
  fs::rename(attempt, dir_ / "step-00000100.g2");
  EXPECT_EQ(CheckpointReader(dir_ / "step-00000100.g2").step(), 100);
  fs::rename(dir_ / "step-00000100.g2", path_);

  fs::remove(path_ / "manifest.json");
  EXPECT_THAT(missing(path_), HasSubstr("it was not committed: it has no manifest.json"));
}

TEST_F(Stored, IsNotTheFolderOfItsSteps) {
  fs::copy(path_, dir_ / "step-00000203", fs::copy_options::recursive);
  const auto expect_told = [&](const auto& act) {
    EXPECT_THAT(message_of(ErrorCode::not_found, act),
                HasSubstr("found a folder of 2 steps (step-00000100, step-00000203), each a "
                          "checkpoint of Shardwise, needed one of them: the newest is "
                          "step-00000203, as latest() of a CheckpointManager says"));
  };
  expect_told([&] { CheckpointReader reader(dir_.path()); });
  expect_told([&] { verify_checkpoint(dir_.path()); });
  expect_told([&] { repair_checkpoint(dir_.path()); });
  expect_told([&] { write_parity(dir_.path()); });
}

// Another process removes it, which renames it away and then removes its files, between two steps
// of opening it.
TEST_F(Stored, IsNotFoundWhereItIsRemovedWhileItIsOpened) {
  for (int at = 1; at <= 3; ++at) {
    SCOPED_TRACE(at);
    fs::copy(path_, dir_ / "copy");
    int opened = 0;
    HookedFileSystem files([&](std::string_view, const fs::path&) {
      if (++opened != at) return;
      fs::rename(path_, dir_ / "trash");
      fs::remove_all(dir_ / "trash");
    });
    EXPECT_THAT(message_of(ErrorCode::not_found, [&] { open_checkpoint(files, path_); }),
                HasSubstr(path_.string()));
    EXPECT_EQ(opened, at);
    fs::rename(dir_ / "copy", path_);
  }
}

// As long as its files are there, losing its name harms nobody who has begun to open it.
TEST_F(Stored, IsOpenedAlsoWhereItLosesItsNameMeanwhile) {
  for (int at = 1; at <= 3; ++at) {
    SCOPED_TRACE(at);
    int opened = 0;
    HookedFileSystem files([&](std::string_view, const fs::path&) {
      if (++opened == at) fs::rename(path_, dir_ / "trash");
    });
    EXPECT_EQ(open_checkpoint(files, path_).manifest.tensors.size(), 2u);
    fs::rename(dir_ / "trash", path_);
  }
}

// Another process removes the step and saves it again, under the same name, between two steps of
// opening it: the reader has one or the other, never files of both.
TEST_F(Stored, IsNeverOfTwoCheckpointsThatHadItsName) {
  const auto read = [](const CheckpointReader& reader, const std::string& name) {
    std::vector<std::byte> out(reader.tensor(name).logical_bytes);
    reader.read(name, Box::whole(reader.tensor(name).shape), out);
    return out;
  };
  for (int at = 1; at <= 3; ++at) {
    for (const bool is_removed : {false, true}) {
      SCOPED_TRACE(testing::Message() << at << (is_removed ? ", removed" : ", in the trash"));
      int opened = 0;
      const auto files = std::make_shared<HookedFileSystem>([&](std::string_view, const fs::path&) {
        if (++opened != at) return;
        fs::rename(path_, dir_ / "trash");
        if (is_removed) fs::remove_all(dir_ / "trash");
        made(7).write(dir_.path());
      });
      const CheckpointReader reader(path_, {.pin = false, .file_system = files});
      const std::uint64_t first = is_removed ? 7 : 1;
      EXPECT_EQ(read(reader, "a"), scattered_values(DType::f32, {8}, first));
      EXPECT_EQ(read(reader, "z"), counting_values(DType::f32, {512}, first));
      fs::remove_all(path_);
      fs::remove_all(dir_ / "trash");
      made().write(dir_.path());
    }
  }
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

// The checkpoint has more files than a process may have open at once; most are closed again.
TEST_F(Stored, OpensNoMoreFilesThanItNeeds) {
  constexpr std::int64_t kFiles = 400;
  HandMadeTensor tensor{.name = "t", .dtype = DType::u8, .shape = {kFiles, 3}};
  for (std::int64_t i = 0; i < kFiles; ++i) tensor.pieces.push_back(Box({i, 0}, {i + 1, 3}));
  tensor.data = scattered_values(DType::u8, tensor.shape);
  const fs::path path = HandMadeCheckpoint({tensor}, kFiles, 5).write(dir_.path());
  const std::size_t before = open_descriptors();
  const CheckpointReader reader(path, {.threads = 2, .pin = false});
  std::vector<std::byte> out(tensor.data.size());
  for (int round = 0; round < 2; ++round) {
    reader.read("t", Box::whole(tensor.shape), out);
    EXPECT_EQ(out, tensor.data);
    EXPECT_LE(open_descriptors(), before + OpenFiles::kMostOpen + 10);
    EXPECT_GE(open_descriptors(), before + OpenFiles::kMostOpen);
  }

  // A file that is opened again is looked for in the same directory.
  fs::rename(path, dir_ / "trash");
  reader.read("t", Box::whole(tensor.shape), out);
  EXPECT_EQ(out, tensor.data);
  HandMadeCheckpoint({tensor}, kFiles, 5).write(dir_.path());
  fs::remove_all(dir_ / "trash");
  EXPECT_THAT(
      message_of(ErrorCode::not_found, [&] { reader.read("t", Box::whole(tensor.shape), out); }),
      HasSubstr("it was removed or replaced since it was opened"));
}

TEST_F(Stored, RefusesAManifestThatIsNoFile) {
  fs::remove(path_ / "manifest.json");
  fs::create_directory(path_ / "manifest.json");
  EXPECT_THAT(refused(ErrorCode::corrupt), HasSubstr("manifest.json"));
  fs::remove(path_ / "manifest.json");
  ASSERT_EQ(mkfifo((path_ / "manifest.json").c_str(), 0600), 0);
  EXPECT_THAT(refused(ErrorCode::corrupt), HasSubstr("manifest.json"));
  fs::remove(path_ / "manifest.json");
  std::ofstream(path_ / "manifest.json").close();
  fs::resize_file(path_ / "manifest.json", (std::uintmax_t{1} << 30) + 1);
  EXPECT_THAT(refused(ErrorCode::corrupt),
              HasSubstr("1073741825 bytes, needed is at most 1073741824"));
}

TEST_F(Stored, RefusesShardFilesThatAreNotWhatTheManifestSays) {
  const fs::path file = path_ / "shards-00001-of-00002.h5";
  const auto good = file_bytes(file);
  const auto refused_with = [&](const std::string& message) {
    EXPECT_THAT(refused(ErrorCode::corrupt), AllOf(HasSubstr(file.string()), HasSubstr(message)));
  };
  write_file(file, std::span(good).first(good.size() - 1));
  refused_with("it has " + std::to_string(good.size() - 1) + " bytes, needed are");
  auto longer = good;
  longer.push_back(std::byte{0});
  write_file(file, longer);
  refused_with("needed are " + std::to_string(good.size()));
  write_file(file, std::string_view());
  refused_with("it has 0 bytes");
  fs::remove(file);
  refused_with("it is missing");
  fs::create_directory(file);
  refused_with("");
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  refused_with("");
  fs::remove(file);
  write_file(dir_ / "elsewhere", good);
  fs::create_symlink(dir_ / "elsewhere", file);
  refused_with("");
  fs::remove(file);
  // Files that changed places: their sizes or their tables do not fit.
  fs::rename(path_ / "shards-00000-of-00002.h5", file);
  write_file(path_ / "shards-00000-of-00002.h5", good);
  EXPECT_THAT(refused(ErrorCode::corrupt), HasSubstr("shards-00000-of-00002.h5"));
}

TEST_F(Stored, RefusesChunkTablesWithAnotherHash) {
  HandMadeCheckpoint changed = made();
  changed.files[1].bytes[changed.manifest.files[1].table_address + 3] ^= std::byte{1};
  path_ = changed.write(dir_.path());
  EXPECT_THAT(
      refused(ErrorCode::corrupt),
      AllOf(HasSubstr("read chunk table of"), HasSubstr("shards-00001"), HasSubstr("its hash is")));

  changed = made();
  changed.files[0].records[1].address += 4;
  changed.seal();
  path_ = changed.write(dir_.path());
  EXPECT_THAT(refused(ErrorCode::corrupt), HasSubstr("is not a multiple of 8"));
}

// The reader refuses the chunk and names it, and serves the others.
TEST_F(Stored, DamagedChunksAreRefusedOneByOne) {
  struct Case {
    const char* name;
    std::size_t file, record;
    std::function<void(std::span<std::byte>, ChunkRecord&)> change;
    const char *tensor, *box, *message;
  };
  const auto rehash = [](std::span<std::byte> bytes, ChunkRecord& record) {
    record.hash = hash64(bytes.data(), bytes.size());
  };
  const Case cases[] = {
      {"raw bit", 0, 1, [](auto bytes, auto&) { bytes[7] ^= std::byte{128}; }, "a", "chunk 1 [4:8]",
       "the hash of its bytes is"},
      {"raw zeros", 0, 0,
       [](auto bytes, auto&) { std::fill(bytes.begin(), bytes.end(), std::byte{0}); }, "a",
       "chunk 0 [0:4]", "the hash of its bytes is"},
      {"zstd bit", 1, 0, [](auto bytes, auto&) { bytes.back() ^= std::byte{1}; }, "z",
       "chunk 0 [0:256]", "the hash of its bytes is"},
      {"another hash", 1, 1, [](auto, auto& record) { record.hash ^= 1; }, "z", "chunk 1 [256:512]",
       "the hash of its bytes is"},
      {"no frame", 1, 1,
       [&](auto bytes, auto& record) {
         bytes[0] ^= std::byte{1};
         rehash(bytes, record);
       },
       "z", "chunk 1 [256:512]", "not a zstd frame"},
      {"frame of another size", 1, 1,
       [&](auto bytes, auto& record) {
         bytes[5] ^= std::byte{1};
         rehash(bytes, record);
       },
       "z", "chunk 1 [256:512]", "bytes, the chunk has 1024"},
      {"shorter frame", 1, 0,
       [&](auto bytes, auto& record) {
         record.stored_bytes -= 1;
         rehash(bytes.first(record.stored_bytes), record);
       },
       "z", "chunk 0 [0:256]", "zstd frame"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    HandMadeCheckpoint changed = made();
    auto& file = changed.files[c.file];
    ChunkRecord& record = file.records[c.record];
    c.change(std::span(file.bytes).subspan(record.address, record.stored_bytes), record);
    changed.seal();
    const fs::path path = changed.write(dir_.path());
    const CheckpointReader reader(path);
    std::vector<std::byte> out(reader.tensor(c.tensor).logical_bytes);
    EXPECT_THAT(
        message_of(ErrorCode::corrupt,
                   [&] { reader.read(c.tensor, Box::whole(reader.tensor(c.tensor).shape), out); }),
        AllOf(HasSubstr((path / changed.manifest.files[c.file].name).string()),
              HasSubstr(std::string("tensor \"") + c.tensor + "\" " + c.box),
              HasSubstr(c.message)));
    const std::string other = c.tensor == std::string("a") ? "z" : "a";
    out.resize(reader.tensor(other).logical_bytes);
    reader.read(other, Box::whole(reader.tensor(other).shape), out);
    const auto extent = reader.tensor(other).shape[0];
    EXPECT_EQ(out, other == "a" ? scattered_values(DType::f32, {extent})
                                : counting_values(DType::f32, {extent}));
  }
}

TEST_F(Stored, AFileThatShrinksUnderTheReaderIsCorrupt) {
  const CheckpointReader reader(path_);
  fs::resize_file(path_ / "shards-00000-of-00002.h5", 80);
  std::vector<std::byte> out(32);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { reader.read("a", Box({0}, {8}), out); }),
              AllOf(HasSubstr("tensor \"a\" chunk 0 [0:4]"), HasSubstr("shards-00000")));
}

}  // namespace
}  // namespace shardwise::detail
