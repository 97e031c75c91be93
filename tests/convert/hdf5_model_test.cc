#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "convert/weight_bytes.h"
#include "shardwise/convert/model.h"
#include "shardwise/storage/detail/hdf5.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using namespace detail;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// A file in the making. Under an Hdf5Lock.
struct NewFile {
  explicit NewFile(const fs::path& path)
      : file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), "create") {}

  H5Group group(const std::string& name) const {
    return H5Group(H5Gcreate2(file.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                   "group");
  }

  H5Dataset dataset(const std::string& name, hid_t type, const Shape& shape,
                    hid_t made = H5P_DEFAULT) const {
    const H5Properties links(H5Pcreate(H5P_LINK_CREATE), "links");
    check_hdf5(H5Pset_create_intermediate_group(links.get(), 1), "links");
    const H5Space space = hdf5_space(shape);
    return H5Dataset(
        H5Dcreate2(file.get(), name.c_str(), type, space.get(), links.get(), made, H5P_DEFAULT),
        name);
  }

  /// 0, 1, 2, ..
  void numbers(const std::string& name, hid_t type, const Shape& shape,
               hid_t made = H5P_DEFAULT) const {
    const H5Dataset to = dataset(name, type, shape, made);
    std::vector<std::int32_t> values(as_size(num_elements(shape)));
    std::iota(values.begin(), values.end(), 0);
    check_hdf5(H5Dwrite(to.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
               name);
  }

  H5File file;
};

std::vector<std::int32_t> ints_of(const BoxReader& reader, std::size_t tensor, const Box& box) {
  std::vector<std::int32_t> values(as_size(box.num_elements()));
  reader.read(tensor, box, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(Hdf5Model, DatasetsAreTensorsWithTheirGroupsAsNames) {
  const TempDir dir;
  {
    const Hdf5Lock lock;
    const NewFile file(dir / "m.bin");  // the name says nothing
    const hsize_t chunk[] = {3, 4};
    const H5Properties deflated(H5Pcreate(H5P_DATASET_CREATE), "list");
    check_hdf5(H5Pset_chunk(deflated.get(), 2, chunk), "chunk");
    check_hdf5(H5Pset_shuffle(deflated.get()), "shuffle");
    check_hdf5(H5Pset_deflate(deflated.get(), 1), "deflate");
    file.numbers("model/layer/kernel", H5T_STD_I32LE, {4, 6}, deflated.get());
    file.numbers("model/layer/bias:0", H5T_STD_I32BE, {5});
    file.numbers("step", H5T_STD_I64LE, {});
    for (const DType dtype : {DType::f16, DType::bf16, DType::boolean, DType::c64}) {
      file.dataset("types/" + std::string(name(dtype)), hdf5_type(dtype).get(), {2});
    }
    file.dataset("none", H5T_IEEE_F32LE, {0, 3});
    file.group("empty");
  }
  EXPECT_EQ(model_format(dir / "m.bin"), "hdf5");
  const ModelReader reader(dir / "m.bin");
  EXPECT_EQ(reader.format(), "hdf5");
  EXPECT_EQ(reader.user_json(), "{}");
  EXPECT_TRUE(reader.left_out().empty());
  EXPECT_EQ(names_of(reader),
            "model/layer/bias:0;model/layer/kernel;none;step;types/bf16;types/bool;types/c64;"
            "types/f16;");
  EXPECT_EQ(reader.tensors()[1].dtype, DType::i32);
  EXPECT_EQ(reader.tensors()[1].shape, (Shape{4, 6}));
  EXPECT_EQ(reader.tensors()[1].logical_bytes, 96u);
  EXPECT_EQ(reader.tensors()[4].dtype, DType::bf16);
  EXPECT_EQ(reader.tensors()[5].dtype, DType::boolean);
  EXPECT_THAT(ints_of(reader, 0, Box({1}, {5})), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ints_of(reader, 1, Box({2, 3}, {4, 6})), ElementsAre(15, 16, 17, 21, 22, 23));
  EXPECT_TRUE(all_of(reader, 2).empty());
  EXPECT_EQ(all_of(reader, 3), std::vector<std::byte>(8));
  std::vector<std::byte> out(4);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { reader.read(1, Box(), out); }),
              HasSubstr("needed is a box inside [4, 6]"));
}

TEST(Hdf5Model, ManyThreadsReadManyDatasets) {
  const TempDir dir;
  {
    const Hdf5Lock lock;
    const NewFile file(dir / "m.h5");
    for (int i = 0; i < 12; ++i) file.numbers("t" + std::to_string(10 + i), H5T_STD_I32LE, {i + 1});
  }
  const ModelReader reader(dir / "m.h5");
  std::vector<std::string> wrong(4);
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&reader, &said = wrong[t]] {
      for (std::size_t i = 0; i < 60; ++i) {
        const auto last = static_cast<std::int64_t>(i % 12);
        if (ints_of(reader, i % 12, Box({last}, {last + 1}))[0] != last) said = "other numbers";
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, std::vector<std::string>(4));
}

// A model from outside reads no other file of the machine.
TEST(Hdf5Model, NothingLeadsToAnotherFile) {
  const TempDir dir;
  write_file(dir / "secret", std::string(64, 's'));
  {
    const Hdf5Lock lock;
    const NewFile other(dir / "other.h5");
    other.numbers("data", H5T_STD_I32LE, {4});
    const NewFile file(dir / "m.h5");
    file.numbers("w", H5T_STD_I32LE, {4});
    const H5Properties external(H5Pcreate(H5P_DATASET_CREATE), "list");
    check_hdf5(H5Pset_external(external.get(), (dir / "secret").c_str(), 0, 16), "external");
    file.dataset("external", H5T_STD_I32LE, {4}, external.get());
    const H5Properties mapped(H5Pcreate(H5P_DATASET_CREATE), "list");
    const H5Space space = hdf5_space({4});
    check_hdf5(
        H5Pset_virtual(mapped.get(), space.get(), (dir / "other.h5").c_str(), "/data", space.get()),
        "map");
    file.dataset("virtual", H5T_STD_I32LE, {4}, mapped.get());
    check_hdf5(H5Lcreate_external((dir / "other.h5").c_str(), "/data", file.file.get(), "away",
                                  H5P_DEFAULT, H5P_DEFAULT),
               "link");
    check_hdf5(H5Lcreate_soft("/away", file.file.get(), "soft", H5P_DEFAULT, H5P_DEFAULT), "link");
  }
  const ModelReader reader(dir / "m.h5");
  EXPECT_EQ(names_of(reader), "w;");
  EXPECT_THAT(reader.left_out(), ElementsAre("\"away\": it is a link to another file",
                                             "\"external\": its elements are in other files",
                                             "\"soft\": it is a soft link",
                                             "\"virtual\": its elements are in other files"));
}

TEST(Hdf5Model, WhatIsNoTensorIsToldAndAFileOfNothingElseIsRefused) {
  const TempDir dir;
  const auto write = [&](const char* name, bool with_tensor) {
    const Hdf5Lock lock;
    const NewFile file(dir / name);
    if (with_tensor) file.numbers("w", H5T_STD_I32LE, {1});
    file.dataset("names", H5T_C_S1, {2});
    file.dataset("odd", H5T_STD_B8LE, {2});
    const H5Space none(H5Screate(H5S_NULL), "null");
    const H5Dataset shapeless(H5Dcreate2(file.file.get(), "shapeless", H5T_STD_I32LE, none.get(),
                                         H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                              "create");
    const std::vector<hsize_t> ones(17, 1);
    const H5Space space(H5Screate_simple(17, ones.data(), nullptr), "space");
    const H5Dataset deep(H5Dcreate2(file.file.get(), "deep", H5T_STD_I32LE, space.get(),
                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                         "create");
  };
  write("m.h5", true);
  const ModelReader reader(dir / "m.h5");
  EXPECT_THAT(reader.left_out(),
              ElementsAre("\"deep\": it has 17 dims, at most 16 here", "\"names\": strings",
                          "\"odd\": numbers of a type that shardwise has not",
                          "\"shapeless\": it has no shape"));
  write("none.h5", false);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { ModelReader(dir / "none.h5"); }),
              AllOf(HasSubstr("none.h5: it has nothing that is a tensor here: "),
                    HasSubstr("\"names\": strings; \"odd\"")));
}

TEST(Hdf5Model, CyclesAreLeftOutAndDepthHasABound) {
  const TempDir dir;
  const auto link = [](const NewFile& file, const char* from, const char* to) {
    check_hdf5(H5Lcreate_hard(file.file.get(), from, file.file.get(), to, H5P_DEFAULT, H5P_DEFAULT),
               to);
  };
  {
    const Hdf5Lock lock;
    const NewFile file(dir / "m.h5");
    file.numbers("a/b/w", H5T_STD_I32LE, {1});
    link(file, "/a", "/a/b/up");
    link(file, "/", "/a/root");
    link(file, "/a/b/w", "/tied");
  }
  const ModelReader reader(dir / "m.h5");
  EXPECT_EQ(names_of(reader), "a/b/w;tied;");
  EXPECT_THAT(reader.left_out(), ElementsAre("\"a/b/up\": it leads to a group above it",
                                             "\"a/root\": it leads to a group above it"));

  const auto deep = [&](int groups) {
    const Hdf5Lock lock;
    const NewFile file(dir / "deep.h5");
    std::string name = "w";
    for (int i = 0; i < groups; ++i) name = "g/" + name;
    file.numbers(name, H5T_STD_I32LE, {1});
  };
  deep(63);
  EXPECT_EQ(ModelReader(dir / "deep.h5").tensors().size(), 1u);
  deep(64);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { ModelReader(dir / "deep.h5"); }),
              HasSubstr("found more than 64 groups inside each other"));

  {
    // Each group holds the next one under two names: 2^40 paths.
    const Hdf5Lock lock;
    const NewFile file(dir / "wide.h5");
    const std::string name(1000, 'a');
    std::string path;
    for (int i = 0; i < 40; ++i) {
      const std::string group = path + "/" + name;
      file.group(group);
      link(file, group.c_str(), (path + "/b").c_str());
      path = group;
    }
  }
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { ModelReader(dir / "wide.h5"); }),
              HasSubstr("needed are fewer"));
}

TEST(Hdf5Model, DamagedFilesAreErrors) {
  const TempDir dir;
  {
    const Hdf5Lock lock;
    const NewFile file(dir / "m.h5");
    file.numbers("g/w", H5T_STD_I32LE, {1000});
  }
  std::ifstream in(dir / "m.h5", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (const std::size_t size : {8, 100, 500, 900, 2000}) {
    write_file(dir / "cut.h5", whole.substr(0, size));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { ModelReader(dir / "cut.h5"); }),
                HasSubstr("cut.h5"));
  }
  write_file(dir / "w.h5", whole);
  const ModelReader reader(dir / "w.h5");
  fs::resize_file(dir / "w.h5", whole.size() - 2000);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { all_of(reader, 0); }),
              AllOf(HasSubstr("tensor \"g/w\" of "), HasSubstr("w.h5: it has "),
                    HasSubstr("bytes now, it had")));
}

TEST(Hdf5Model, AShapeOfTooManyBytesIsAnError) {
  const TempDir dir;
  {
    const Hdf5Lock lock;
    const NewFile file(dir / "m.h5");
    const hsize_t chunk[] = {1, 1};
    const H5Properties chunks(H5Pcreate(H5P_DATASET_CREATE), "list");
    check_hdf5(H5Pset_chunk(chunks.get(), 2, chunk), "chunk");
    file.dataset("w", H5T_STD_I32LE, {std::int64_t{1} << 31, std::int64_t{1} << 31}, chunks.get());
  }
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { ModelReader(dir / "m.h5"); }),
              HasSubstr("dataset \"w\": its shape has 2^63 bytes or more"));
}

}  // namespace
}  // namespace shardwise
