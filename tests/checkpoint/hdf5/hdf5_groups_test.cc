// Groups made without the library, read by it.
#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <unordered_map>

#include "shardwise/checkpoint/detail/hdf5/address_driver.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

/// A file whose links all lead to empty datasets, each of another extent: their number in the list.
void write_links(const std::filesystem::path& path, const std::vector<std::string>& paths) {
  AddressDriver driver(0, 0);
  driver.finish(driver.create_file());
  const Hdf5Types types;
  Hdf5Bytes out(driver.end());
  Hdf5Datasets datasets(out);
  std::vector<Hdf5Link> links;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const Shape shape{0, static_cast<std::int64_t>(i)};
    links.push_back(
        {paths[i], datasets.add_contiguous(types[DType::u8], shape, kHdf5NoAddress, 0)});
  }
  const std::uint64_t root = add_hdf5_groups(out, links);
  driver.append(out, root);
  EXPECT_EQ(driver.end(), driver.tail().size());
  write_file(path, {driver.tail().begin(), driver.tail().end()});
}

H5File open(const std::filesystem::path& path) {
  return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open"};
}

hsize_t number_at(const H5File& file, const std::string& path) {
  const H5Dataset dataset(H5Dopen2(file.get(), path.c_str(), H5P_DEFAULT), path);
  const H5Space space(H5Dget_space(dataset.get()), path);
  hsize_t extents[2] = {};
  EXPECT_EQ(H5Sget_simple_extent_dims(space.get(), extents, nullptr), 2);
  return extents[1];
}

herr_t collect(hid_t, const char* name, const H5L_info_t* info, void* names) {
  EXPECT_EQ(info->cset, H5T_CSET_UTF8);
  static_cast<std::vector<std::string>*>(names)->push_back(name);
  return 0;
}

std::vector<std::string> names_in(const H5File& file, const char* group) {
  std::vector<std::string> names;
  check_hdf5(H5Literate_by_name(file.get(), group, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect,
                                &names, H5P_DEFAULT),
             "list a group");
  return names;
}

// From no links to more than one node of a B-tree counts; with names of one length and of many.
TEST(Hdf5Groups, AnyNumberOfLinksIsFound) {
  const TempDir dir;
  const Hdf5Lock lock;
  for (const std::size_t count : {1U, 8U, 9U, 45U, 46U, 47U, 70U, 1149U, 1150U, 5000U, 70000U}) {
    SCOPED_TRACE(count);
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < count; ++i) {
      paths.push_back("/g/" + std::to_string(i) + std::string(i * 7 % 60, 'x'));
    }
    write_links(dir / "f.h5", paths);
    const H5File file = open(dir / "f.h5");
    std::vector<std::string> expected;
    for (const std::string& path : paths) expected.push_back(path.substr(3));
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(names_in(file, "/g"), expected);
    const std::size_t step = count / 2000 + 1;
    for (std::size_t i = 0; i < count; i += step) {
      ASSERT_EQ(number_at(file, paths[i]), i);
      ASSERT_EQ(H5Lexists(file.get(), (paths[i] + "y").c_str(), H5P_DEFAULT), 0);
    }
    EXPECT_EQ(H5Lexists(file.get(), "/none", H5P_DEFAULT), 0);
  }
}

TEST(Hdf5Groups, NamesMayBeLongDeepAndAnyCharacters) {
  const TempDir dir;
  const Hdf5Lock lock;
  std::vector<std::string> paths;
  for (int i = 0; i < 200; ++i) {
    paths.push_back("/long/" + std::string(static_cast<std::size_t>(3072 - i), 'a'));
  }
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += "/d";
  paths.push_back(deep);
  for (const char* odd :
       {"/a b", "/a", "/a!/x", "/a-/x", "/a0/x", "/b/\xc3\xbc", "/b.c/...", "/%2F"}) {
    paths.push_back(odd);
  }
  write_links(dir / "f.h5", paths);
  const H5File file = open(dir / "f.h5");
  for (std::size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(number_at(file, paths[i]), i);
  EXPECT_EQ(names_in(file, "/b"), std::vector<std::string>{"\xc3\xbc"});
}

H5G_info_t info_of(const H5File& file, const char* group) {
  H5G_info_t info{};
  check_hdf5(H5Gget_info_by_name(file.get(), group, &info, H5P_DEFAULT), group);
  return info;
}

// Eight links are in the group's header, as in files that the library makes.
TEST(Hdf5Groups, ManyLinksLieInAHeap) {
  const TempDir dir;
  const Hdf5Lock lock;
  for (const std::size_t count : {1U, 8U, 9U, 10U}) {
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < count; ++i) paths.push_back("/g/" + std::to_string(i));
    write_links(dir / "f.h5", paths);
    const H5G_info_t info = info_of(open(dir / "f.h5"), "/g");
    EXPECT_EQ(info.nlinks, count);
    EXPECT_EQ(info.storage_type, count <= 8 ? H5G_STORAGE_TYPE_COMPACT : H5G_STORAGE_TYPE_DENSE);
  }
}

// From 256 bytes on a name's length takes two.
TEST(Hdf5Groups, NamesMayHaveAnyLength) {
  const TempDir dir;
  const Hdf5Lock lock;
  for (const std::size_t more : {0U, 20U}) {
    std::vector<std::string> paths;
    for (const std::size_t length : {1U, 2U, 127U, 128U, 254U, 255U, 256U, 257U}) {
      paths.push_back("/g/" + std::string(length, 'a'));
    }
    for (std::size_t i = 0; i < more; ++i) paths.push_back("/g/" + std::to_string(i));
    write_links(dir / "f.h5", paths);
    const H5File file = open(dir / "f.h5");
    for (std::size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(number_at(file, paths[i]), i);
  }
}

// A heap is searched by the checksums of names, and by the names where these are equal.
TEST(Hdf5Groups, NamesMayHaveEqualChecksums) {
  std::unordered_map<std::uint32_t, std::string> seen;
  std::vector<std::string> paths;
  for (int i = 0; paths.size() < 6; ++i) {
    const std::string name = "n" + std::to_string(i);
    const auto [other, is_new] = seen.emplace(hdf5_checksum(std::as_bytes(std::span(name))), name);
    if (is_new) continue;
    paths.push_back("/g/" + other->second);
    paths.push_back("/g/" + name);
  }
  for (int i = 0; i < 60; ++i) paths.push_back("/g/m" + std::to_string(i));
  const TempDir dir;
  const Hdf5Lock lock;
  write_links(dir / "f.h5", paths);
  const H5File file = open(dir / "f.h5");
  for (std::size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(number_at(file, paths[i]), i);
}

// Two of these fill a block of 8 KiB. The number of blocks in a row would exceed 16 bits, so blocks
// are larger then.
TEST(Hdf5Groups, LinksOf180MiBAreFound) {
  constexpr std::size_t kCount = 66'000, kLength = 2'720;
  const TempDir dir;
  const Hdf5Lock lock;
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::string number = std::to_string(i);
    paths.push_back("/g/" + number + std::string(kLength - number.size(), 'x'));
  }
  write_links(dir / "f.h5", paths);
  const H5File file = open(dir / "f.h5");
  EXPECT_EQ(info_of(file, "/g").nlinks, kCount);
  for (std::size_t i = 0; i < kCount; i += 97) ASSERT_EQ(number_at(file, paths[i]), i);
  ASSERT_EQ(number_at(file, paths.back()), kCount - 1);
}

// The library believes a heap's header, so the test looks at the bytes.
TEST(Hdf5Groups, AHeapSaysWhatItHoldsAndWhatIsFree) {
  constexpr std::size_t kFree = 30, kAllocated = 54, kObjects = 70, kName = 4;
  for (const std::uint64_t count : {9U, 20U, 4000U}) {
    std::vector<std::string> paths;
    for (std::uint64_t i = 0; i < count; ++i) paths.push_back("/" + std::to_string(1000 + i));
    std::vector<Hdf5Link> links;
    for (const std::string& path : paths) links.push_back({.path = path, .address = 8});
    Hdf5Bytes out(0);
    add_hdf5_groups(out, links);
    const std::span<const std::byte> bytes = out.bytes();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t header = text.find("FRHP");
    ASSERT_NE(header, text.npos);
    const auto number = [&](std::size_t place) {
      std::uint64_t value = 0;
      std::memcpy(&value, text.data() + header + place, sizeof value);
      return value;
    };
    std::uint64_t blocks = 0;
    for (std::size_t at = text.find("FHDB"); at != text.npos; at = text.find("FHDB", at + 1)) {
      ++blocks;
    }
    EXPECT_EQ(blocks > 1, count == 4000);
    EXPECT_EQ(number(kObjects), count);
    EXPECT_EQ(number(kAllocated) - number(kFree), blocks * 21 + count * (12 + kName));
  }
}

TEST(Hdf5Groups, RandomTreesAreFound) {
  const TempDir dir;
  const Hdf5Lock lock;
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    std::set<std::string> made;
    const std::size_t count = 1 + random() % 3000, width = 1 + random() % 60;
    while (made.size() < count) {
      std::string path;
      for (std::size_t level = 0; level < 3; ++level) {
        path += "/g" + std::to_string(random() % width);
      }
      made.insert(path + "/t" + std::to_string(random() % 1000));
    }
    const std::vector<std::string> paths(made.begin(), made.end());
    write_links(dir / "f.h5", paths);
    const H5File file = open(dir / "f.h5");
    for (std::size_t i = 0; i < paths.size(); ++i) ASSERT_EQ(number_at(file, paths[i]), i);
  }
}

TEST(Hdf5Groups, ExternalLinksLeadToOtherFiles) {
  const TempDir dir;
  const Hdf5Lock lock;
  write_raw(dir / "other.h5", DType::u8, {2}, {std::byte{3}, std::byte{4}});
  for (const std::size_t count : {3U, 300U}) {
    AddressDriver driver(0, 0);
    driver.finish(driver.create_file());
    Hdf5Bytes out(driver.end());
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < count; ++i) paths.push_back("/x/" + std::to_string(i));
    std::vector<Hdf5Link> links;
    for (const std::string& path : paths) {
      links.push_back({.path = path, .file = "other.h5", .object = "/data"});
    }
    const std::uint64_t root = add_hdf5_groups(out, links);
    driver.append(out, root);
    write_file(dir / "f.h5", {driver.tail().begin(), driver.tail().end()});
    EXPECT_EQ(read_raw(dir / "f.h5", paths.back()).data.at(1), std::byte{4});
  }
}

TEST(Hdf5Groups, AFileWithoutLinksIsAFile) {
  const TempDir dir;
  const Hdf5Lock lock;
  write_links(dir / "f.h5", {});
  EXPECT_EQ(names_in(open(dir / "f.h5"), "/").size(), 0u);
}

// The library can go on with what we made: it adds to the groups and takes away.
TEST(Hdf5Groups, TheLibraryCanChangeThem) {
  const TempDir dir;
  const Hdf5Lock lock;
  for (const std::size_t count : {5U, 40U, 5000U}) {
    SCOPED_TRACE(count);
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < count; ++i) paths.push_back("/g/" + std::to_string(i));
    write_links(dir / "f.h5", paths);
    {
      H5File file(H5Fopen((dir / "f.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
      for (int i = 0; i < 300; ++i) {
        const std::string name = "/g/new" + std::to_string(i);
        const H5Group group(
            H5Gcreate2(file.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), name);
      }
      for (std::size_t i = 0; i < count; i += 2) {
        check_hdf5(H5Ldelete(file.get(), paths[i].c_str(), H5P_DEFAULT), paths[i]);
      }
      file.close("close");
    }
    const H5File file = open(dir / "f.h5");
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(H5Lexists(file.get(), paths[i].c_str(), H5P_DEFAULT), i % 2 == 1 ? 1 : 0);
    }
    for (std::size_t i = 1; i < count; i += 2) ASSERT_EQ(number_at(file, paths[i]), i);
    EXPECT_EQ(info_of(file, "/g").nlinks, count / 2 + 300);
  }
}

// Removes every link, so the heap's header must be right to the last object.
TEST(Hdf5Groups, TheLibraryCanEmptyThem) {
  const TempDir dir;
  const Hdf5Lock lock;
  for (const std::size_t count : {5U, 40U, 5000U}) {
    SCOPED_TRACE(count);
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < count; ++i) paths.push_back("/g/" + std::to_string(i));
    write_links(dir / "f.h5", paths);
    {
      H5File file(H5Fopen((dir / "f.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
      for (const std::string& path : paths) {
        check_hdf5(H5Ldelete(file.get(), path.c_str(), H5P_DEFAULT), path);
      }
      const H5Group group(H5Gcreate2(file.get(), "/g/new", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                          "new");
      file.close("close");
    }
    const H5File file = open(dir / "f.h5");
    EXPECT_EQ(info_of(file, "/g").nlinks, 1u);
    EXPECT_EQ(H5Lexists(file.get(), "/g/new", H5P_DEFAULT), 1);
  }
}

}  // namespace
}  // namespace shardwise::detail
