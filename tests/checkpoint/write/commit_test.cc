#include "shardwise/checkpoint/detail/write/commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Manifest one_tensor() {
  Manifest manifest;
  manifest.id = std::string(32, 'a');
  TensorEntry& tensor = manifest.tensors.emplace_back(TensorEntry{.name = "w", .shape = {4}});
  tensor.sharding = Sharding::replicated(Mesh::line(1), 1);
  FileEntry& file = manifest.files.emplace_back();
  file.name = shard_file_name(0, 1);
  file.bytes = 9000;
  file.data_end = 8192;
  return manifest;
}

// A checkpoint that could not be read, or would be another one.
TEST(Commit, RefusesWhatAReaderWouldNotTakeAsIt) {
  Manifest twice = one_tensor();
  twice.tensors.push_back(twice.tensors[0]);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { checked_manifest(twice); }),
              HasSubstr("needed are sorted, distinct names"));
  Manifest unfit = one_tensor();
  unfit.tensors[0].shape = {4, 4};
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { checked_manifest(unfit); }),
              HasSubstr("has 1 dims"));
  Manifest with_pieces = one_tensor();
  place_pieces(with_pieces);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { checked_manifest(with_pieces); }),
              HasSubstr("found other tensors or files when it was read again"));
}

TEST(Commit, TellsTheManifestOfTheIndexAndWritesItLast) {
  const TempDir dir;
  std::vector<std::string> operations;
  HookedFileSystem files([&](std::string_view operation, const std::filesystem::path& path) {
    operations.push_back(std::string(operation) + " " + path.filename().string());
  });
  Manifest manifest = one_tensor();
  const std::vector<std::byte> index(100, std::byte{7});
  const std::size_t bytes = complete(files, dir.path(), manifest, index);
  EXPECT_THAT(operations, ElementsAre("create index.h5", "create manifest.json",
                                      "sync directory " + dir.path().filename().string()));
  const std::string text = file_text(dir / "manifest.json");
  EXPECT_EQ(bytes, 100 + text.size());
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(read.index_bytes, 100u);
  EXPECT_EQ(read.index_hash, hash128(index.data(), index.size()));
}

TEST(Commit, ManifestsWithoutAnIndexSaySo) {
  const TempDir dir;
  const auto files = posix_file_system();
  Manifest manifest = one_tensor();
  const std::size_t bytes = complete(*files, dir.path(), manifest, {});
  EXPECT_FALSE(std::filesystem::exists(dir / "index.h5"));
  const std::string text = file_text(dir / "manifest.json");
  EXPECT_EQ(bytes, text.size());
  EXPECT_FALSE(parse_manifest(text, "m").has_index());
}

// The manifest is checked before it is written, whether the index is there or not.
TEST(Commit, WritesNoManifestThatAReaderWouldNotTake) {
  const std::vector<std::byte> index(100);
  for (const bool has_index : {false, true}) {
    const TempDir dir;
    const auto files = posix_file_system();
    Manifest twice = one_tensor();
    twice.tensors.push_back(twice.tensors[0]);
    EXPECT_THROW(complete(*files, dir.path(), twice,
                          has_index ? std::span(index) : std::span<const std::byte>()),
                 Error);
    EXPECT_FALSE(std::filesystem::exists(dir / "manifest.json"));
  }
}

TEST(Commit, SaysWhichJsonOfTheCallersIsNone) {
  check_json({.user_json = "[1]", .objects_json = ""});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { check_json({.user_json = "{"}); }),
              HasSubstr("save: user_json is not JSON"));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [] { check_json({.objects_json = "{\"a\":1,}"}); }),
      HasSubstr("save: objects_json is not JSON"));
}

}  // namespace
}  // namespace shardwise::detail
