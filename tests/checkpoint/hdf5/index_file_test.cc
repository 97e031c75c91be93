#include "shardwise/checkpoint/detail/hdf5/index_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/only_layout.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;

TEST(IndexFile, PathsAreEscapedOnlyWhereTheyMustBe) {
  struct Case {
    std::vector<std::string> names, paths;
  };
  const Case cases[] = {
      {{"w", "layers/0/bias", "with space", "ünï"},
       {"/w", "/layers/0/bias", "/with space", "/ünï"}},
      {{"50%", "%2F"}, {"/50%25", "/%252F"}},
      {{".", "..", "a/./b", "a/../c", "...", "a.b/.c"},
       {"/%2E", "/%2E%2E", "/a/%2E/b", "/a/%2E%2E/c", "/...", "/a.b/.c"}},
      {{"/", "/a", "a/", "a//b", "//"}, {"/%2F", "/%2Fa", "/a%2F", "/a/%2Fb", "/%2F%2F"}},
      {{"a", "a/b", "a/b/c", "a/d/e"}, {"/a", "/a%2Fb", "/a%2Fb%2Fc", "/a%2Fd/e"}},
      {{"x/y", "x/y/z"}, {"/x/y", "/x/y%2Fz"}},
  };
  for (const Case& c : cases) EXPECT_EQ(index_paths(c.names), c.paths);
}

// Every set of names over a small alphabet: distinct paths, none both group and dataset, no
// component that HDF5 would read as something else.
TEST(IndexFile, PathsNeverCollide) {
  std::vector<std::string> names;
  const std::string alphabet = "a./%";
  for (const char first : alphabet) {
    names.push_back({first});
    for (const char second : alphabet) {
      names.push_back({first, second});
      for (const char third : alphabet) {
        names.push_back({first, second, third});
        for (const char fourth : alphabet) names.push_back({first, second, third, fourth});
      }
    }
  }
  for (std::size_t skip = 1; skip <= 7; ++skip) {
    std::vector<std::string> some;
    for (std::size_t i = skip % 3; i < names.size(); i += skip) some.push_back(names[i]);
    std::map<std::string, std::string> seen;
    const std::vector<std::string> paths = index_paths(some);
    for (std::size_t i = 0; i < paths.size(); ++i) {
      EXPECT_TRUE(seen.emplace(paths[i], some[i]).second) << paths[i];
      EXPECT_EQ(paths[i].find("//"), std::string::npos) << paths[i];
      EXPECT_FALSE(paths[i].ends_with('/')) << paths[i];
      const std::string closed = paths[i] + "/";
      EXPECT_EQ(closed.find("/./"), std::string::npos) << paths[i];
      EXPECT_EQ(closed.find("/../"), std::string::npos) << paths[i];
    }
    for (const auto& [path, name] : seen) {
      const auto next = seen.lower_bound(path + "/");
      EXPECT_FALSE(next != seen.end() && next->first.starts_with(path + "/"))
          << path << " " << next->first;
    }
  }
}

struct Made {
  std::vector<TensorEntry> tensors;
  std::vector<FileEntry> files;
  std::vector<std::string> paths;  ///< in the index
};

Made make(const TempDir& dir, std::span<const HostTensor> tensors) {
  const Executor executor(2);
  SavePlan plan = plan_save(sources_of(tensors), Codec::automatic, executor);
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(std::size_t{64} << 20, 2, layout.most_bytes()));
  const auto files = posix_file_system();
  const std::string name = "shards-00000-of-00001.h5";
  WrittenShardFile file = write_shard_file(plan, 0, layout, nullptr,
                                           *files->create(dir / name, Caching::direct), pool, {});
  Made made{std::move(plan.tensors), {std::move(file.entry)}, {}};
  std::vector<std::string> names;
  for (const TensorEntry& tensor : made.tensors) names.push_back(tensor.name);
  made.paths = index_paths(names);
  write_file(dir / "index.h5", build_index_file(made.tensors, made.files));
  return made;
}

std::string attribute(const std::filesystem::path& file, const std::string& path,
                      const char* name) {
  const H5File opened(H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  const H5Attribute found(
      H5Aopen_by_name(opened.get(), path.c_str(), name, H5P_DEFAULT, H5P_DEFAULT), name);
  const H5Type type(H5Aget_type(found.get()), name);
  std::string text(H5Tget_size(type.get()), '?');
  check_hdf5(H5Aread(found.get(), type.get(), text.data()), name);
  return text;
}

TEST(IndexFile, ShowsWholeTensorsOfEveryType) {
  const TempDir dir;
  std::vector<HostTensor> tensors;
  for (const DType dtype : all_dtypes()) {
    const std::string type(name(dtype));
    tensors.push_back(
        host_tensor(type + "/big", dtype, {301, 513}, "data=4,model=2", "data,model"));
    tensors.push_back(host_tensor(type + "/scalar", dtype, {}, "data=4,model=2", ""));
    tensors.push_back(host_tensor(type + "/none", dtype, {0, 3}, "data=4,model=2", "data,-"));
  }
  for (const char* name : {"a", "a/b", "./..//x%", "with space", "ünï/çødé", "end/"}) {
    tensors.push_back(host_tensor(name, DType::i32, {5, 3}, "data=4,model=2", "data,-"));
  }
  const Made made = make(dir, tensors);
  std::map<std::string, const HostTensor*> by_name;
  for (const HostTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  const Hdf5Lock lock;
  for (std::size_t t = 0; t < made.tensors.size(); ++t) {
    const TensorEntry& entry = made.tensors[t];
    const std::string& path = made.paths[t];
    SCOPED_TRACE(entry.name);
    const RawDataset raw = read_raw(dir / "index.h5", path);
    EXPECT_EQ(raw.shape, entry.shape);
    EXPECT_TRUE(raw.data == *by_name.at(entry.name)->data);
    EXPECT_GT(H5Tequal(raw.type.get(), hdf5_type(entry.dtype).get()), 0);
    if (entry.shape.empty()) continue;
    EXPECT_EQ(attribute(dir / "index.h5", path, "dtype"), name(entry.dtype));
    EXPECT_EQ(attribute(dir / "index.h5", path, "mesh"), "data=4,model=2");
    EXPECT_EQ(attribute(dir / "index.h5", path, "spec"), entry.sharding->spec().to_string());
  }
}

TEST(IndexFile, MissingShardShowsNumbersThatNobodyMeans) {
  const TempDir dir;
  std::vector<HostTensor> tensors;
  for (const DType dtype : all_dtypes()) {
    tensors.push_back(host_tensor(std::string(name(dtype)), dtype, {2, 2}, "", "-,-"));
  }
  const Made made = make(dir, tensors);
  std::filesystem::remove(dir / "shards-00000-of-00001.h5");
  const Hdf5Lock lock;
  const auto first_of = [&](const char* name, auto value) {
    std::memcpy(&value, read_raw(dir / "index.h5", name).data.data(), sizeof value);
    return value;
  };
  EXPECT_TRUE(std::isnan(first_of("f64", double{})));
  EXPECT_TRUE(std::isnan(first_of("f32", float{})));
  EXPECT_TRUE(std::isnan(f16_to_f32(first_of("f16", std::uint16_t{}))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(first_of("bf16", std::uint16_t{}))));
  EXPECT_EQ(first_of("i64", std::int64_t{}), INT64_MIN);
  EXPECT_EQ(first_of("i32", std::int32_t{}), INT32_MIN);
  EXPECT_EQ(first_of("i16", std::int16_t{}), INT16_MIN);
  EXPECT_EQ(first_of("i8", std::int8_t{}), INT8_MIN);
  EXPECT_EQ(first_of("u64", std::uint64_t{}), UINT64_MAX);
  EXPECT_EQ(first_of("u32", std::uint32_t{}), UINT32_MAX);
  EXPECT_EQ(first_of("u16", std::uint16_t{}), UINT16_MAX);
  EXPECT_EQ(first_of("u8", std::uint8_t{}), UINT8_MAX);
  EXPECT_EQ(first_of("bool", std::int8_t{}), INT8_MIN);
  EXPECT_EQ(first_of("f8_e4m3fn", std::uint8_t{}), 0x7F);
  EXPECT_EQ(first_of("f8_e5m2", std::uint8_t{}), 0x7E);
  EXPECT_EQ(first_of("f8_e4m3fnuz", std::uint8_t{}), 0x80);
  EXPECT_EQ(first_of("f8_e5m2fnuz", std::uint8_t{}), 0x80);
  EXPECT_EQ(first_of("f8_e8m0fnu", std::uint8_t{}), 0xFF);
  for (const float part : first_of("c64", std::array<float, 2>{})) EXPECT_TRUE(std::isnan(part));
  for (const double part : first_of("c128", std::array<double, 2>{})) {
    EXPECT_TRUE(std::isnan(part));
  }
}

// More elements along a dim than 32 bits count.
TEST(IndexFile, MapsPiecesBeyondFourBillion) {
  const TempDir dir;
  TensorEntry tensor{.name = "t", .dtype = DType::u8, .shape = {5'000'000'000}, .pieces = {}};
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{2'500'000'000}}) {
    tensor.pieces.push_back({.box = Box({begin}, {begin + 2'500'000'000}),
                             .dataset = {0, static_cast<std::uint32_t>(tensor.pieces.size())},
                             .chunk = {2'500'000'000}});
  }
  FileEntry file;
  file.name = "shards-00000-of-00001.h5";
  write_file(dir / "index.h5", build_index_file(std::span(&tensor, 1), std::span(&file, 1)));
  const Hdf5Lock lock;
  const H5File opened(H5Fopen((dir / "index.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  const H5Dataset dataset(H5Dopen2(opened.get(), "/t", H5P_DEFAULT), "open");
  const H5Properties creation(H5Dget_create_plist(dataset.get()), "list");
  std::size_t count = 0;
  check_hdf5(H5Pget_virtual_count(creation.get(), &count), "count");
  ASSERT_EQ(count, 2u);
  const H5Space space(H5Pget_virtual_vspace(creation.get(), 1), "space");
  hsize_t begin = 0, end = 0;
  check_hdf5(H5Sget_select_bounds(space.get(), &begin, &end), "bounds");
  EXPECT_EQ(begin, 2'500'000'000u);
  EXPECT_EQ(end, 4'999'999'999u);
}

TEST(IndexFile, EqualArgumentsGiveEqualBytes) {
  const TempDir dir;
  const HostTensor tensors[] = {host_tensor("a/b/c", DType::f32, {40, 3}, "4", "0,-"),
                                host_tensor("a/s", DType::i64, {}, "4", "")};
  const Made made = make(dir, tensors);
  EXPECT_EQ(build_index_file(made.tensors, made.files), build_index_file(made.tensors, made.files));
}

}  // namespace
}  // namespace shardwise::detail
