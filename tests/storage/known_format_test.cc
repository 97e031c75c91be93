#include "shardwise/storage/known_format.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

std::string zip_of(const std::string& member) {
  std::string local("PK\3\4", 4);
  local += std::string(22, '\0') + static_cast<char>(member.size()) + std::string(3, '\0');
  return local + member;
}

const std::string kArchive = zip_of("archive/data.pkl");
const std::string kSafetensorsBytes("\2\0\0\0\0\0\0\0{}", 10);

TEST(KnownFormat, OfAFile) {
  struct Case {
    std::string bytes, name, format;
  };
  const Case cases[] = {
      {"\x89HDF\r\n\x1a\n", "x", "hdf5"},
      {std::string(512, '\0') + "\x89HDF\r\n\x1a\n", "x", "hdf5"},
      {zip_of("w.npy"), "x", "npz"},
      {"PK\3\4", "x.npz", "npz"},
      {kArchive, "x", "torch"},
      {"PK\3\4", "x.pth", "torch"},
      {"PK\3\4", "x", "zip"},
      {kSafetensorsBytes, "x.bin", "safetensors"},
      {"", "m.safetensors", "safetensors"},
      {"{}", "model.safetensors.index.json", "safetensors"},
      {"{}", "model.npz.index.json", "npz"},
      {"{}", "model.h5.index.json", "hdf5"},
      {"{}", "x.json", "json"},
      {"\x80\2\x8a\nl\xfc\x9c"
       "F\xf9 j\xa8P\x19.",
       "x", "torch"},
      {"\x80\2}q", "x.ckpt", "torch"},
      {"\x80\4}q", "x", "pickle"},
      {"\x93NUMPY\1", "x", "npy"},
      {"GGUF\3", "x", "gguf"},
      {"\x1f\x8b\x08", "x", "gzip"},
      {"version https://git-lfs.github.com/spec/v1\n", "x.bin", "git-lfs"},
      {"PK", "x", ""},
      {"", "x.pt", ""},
  };
  for (const Case& c : cases)
    EXPECT_EQ(known_format_of_file(c.bytes, c.name).name, c.format) << c.name;
}

class KnownFolder : public ::testing::Test {
 protected:
  void add(const std::string& path, const std::string& bytes = "") {
    fs::create_directories((dir_ / path).parent_path());
    std::ofstream(dir_ / path, std::ios::binary) << bytes;
  }
  KnownFormat found(const std::string& path) { return known_format(dir_ / path); }

  const TempDir dir_;
};

TEST_F(KnownFolder, OfOneFormat) {
  const std::pair<const char*, const char*> cases[] = {{"manifest.json", "shardwise"},
                                                       {"shards-00001-of-00001.h5", "shardwise"},
                                                       {"step-00000001/x", "shardwise"},
                                                       {".metadata", "dcp"},
                                                       {"__0_0.distcp", "dcp"},
                                                       {"_METADATA", "orbax"},
                                                       {"_CHECKPOINT_METADATA", "orbax"},
                                                       {"default/_METADATA", "orbax"},
                                                       {"state/manifest.ocdbt", "orbax"},
                                                       {"model.safetensors", "safetensors"},
                                                       {"a.safetensors.index.json", "safetensors"},
                                                       {"model.npz", "npz"},
                                                       {"model.h5.index.json", "hdf5"},
                                                       {"pytorch_model.bin", "torch"},
                                                       {".zarray", "zarr"},
                                                       {"zarr.json", "zarr"},
                                                       {"config.json", ""},
                                                       {".hidden.safetensors", ""}};
  int number = 0;
  for (const auto& [file, format] : cases) {
    const std::string folder = std::to_string(number++);
    add(folder + "/" + file);
    EXPECT_EQ(found(folder).name, format) << file;
    EXPECT_EQ(found(folder).steps, Names()) << file;
  }
  EXPECT_EQ(known_format(dir_ / "nowhere").name, "");
}

TEST_F(KnownFolder, OfSteps) {
  struct Case {
    std::vector<const char*> files;
    const char* format;
    Names steps;
    std::string bytes = {};
  };
  const Case cases[] = {
      {{"step-9/manifest.json", "step-10/manifest.json"}, "shardwise", {"step-9", "step-10"}},
      {{"100/_CHECKPOINT_METADATA", "20/default/_METADATA"}, "orbax", {"20", "100"}},
      {{"step_2/_METADATA"}, "orbax", {"step_2"}},
      {{"step-2/.metadata", "step-10/.metadata", "notes/x"}, "dcp", {"step-2", "step-10"}},
      {{"checkpoint-5/fsdp_0/.metadata"}, "dcp", {"checkpoint-5/fsdp_0"}},
      {{"checkpoint-5/model.safetensors"}, "safetensors", {"checkpoint-5"}},
      {{"step_9.pt", "step_10.pt", "log.txt"}, "torch", {"step_9.pt", "step_10.pt"}, kArchive},
      {{"a/epoch=1.ckpt", "b/epoch=2.ckpt"},
       "torch",
       {"a/epoch=1.ckpt", "b/epoch=2.ckpt"},
       kArchive},
      {{"1.h5"}, "hdf5", {"1.h5"}, "\x89HDF\r\n\x1a\n"},
  };
  int number = 0;
  for (const Case& c : cases) {
    const std::string folder = std::to_string(number++);
    for (const char* file : c.files) add(folder + "/" + file, c.bytes);
    EXPECT_EQ(found(folder).name, c.format) << c.files[0];
    EXPECT_EQ(found(folder).steps, c.steps) << c.files[0];
  }
}

TEST_F(KnownFolder, SaysWhatThereIs) {
  for (int step = 1; step < 8; ++step) add(std::to_string(step) + "/_METADATA");
  EXPECT_EQ(to_string(found("")), "7 steps (.., 3, 4, 5, 6, 7), each a checkpoint of Orbax");
  EXPECT_EQ(to_string(found("7")), "a checkpoint of Orbax");
}

TEST_F(KnownFolder, LinksAreFollowedAndLoopsEnd) {
  add("run/1/.metadata");
  fs::create_directory_symlink(dir_ / "run", dir_ / "run" / "1" / "loop");
  fs::create_directory_symlink(dir_ / "run", dir_ / "link");
  EXPECT_EQ(found("link").steps, Names{"1"});
  fs::create_directories(dir_ / "other");
  fs::create_directory_symlink(dir_ / "other", dir_ / "other" / "self");
  EXPECT_EQ(found("other").name, "");
}

}  // namespace
}  // namespace shardwise
