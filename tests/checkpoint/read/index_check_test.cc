#include "shardwise/checkpoint/detail/read/index_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

/// "m" f32 [4, 6] in two pieces of two files, "s" a scalar, "z" without elements.
Manifest manifest() {
  Manifest made;
  made.writers = WriterMap::even(2, 2);
  made.files = {{.name = "a.h5", .writer = 0}, {.name = "b.h5", .writer = 1}};
  made.tensors = {{.name = "m",
                   .shape = {4, 6},
                   .listed = {{0, Box({0, 0}, {4, 3})}, {1, Box({0, 3}, {4, 6})}}},
                  {.name = "s", .listed = {{0, Box()}}},
                  {.name = "z", .shape = {0, 2}}};
  return made;
}

class IndexCheck : public testing::Test {
 protected:
  IndexCheck() {
    Manifest made = manifest();
    place_pieces(made);
    good_ = build_index_file(made.tensors, made.files);
  }

  std::string check(std::span<const std::byte> index, const Manifest& against = manifest()) {
    write_file(path_, index);
    return check_index(*posix_file_system()->open(path_), "index.h5", against);
  }

  TempDir dir_;
  std::filesystem::path path_ = dir_ / "index.h5";
  std::vector<std::byte> good_;
};

TEST_F(IndexCheck, FindsNothingInWhatWasBuilt) { EXPECT_EQ(check(good_), ""); }

TEST_F(IndexCheck, FindsAChangeOfAnyByteAndSaysWhichIsTheFirst) {
  for (std::size_t place = 0; place < good_.size(); place += 17) {
    std::vector<std::byte> changed = good_;
    changed[place] ^= std::byte{4};
    changed.back() ^= std::byte{8};
    ASSERT_THAT(
        check(changed),
        HasSubstr(fmt::format("it does not map the tensors of the manifest: its byte at {} is "
                              "{}, needed is {}",
                              place, std::to_integer<int>(changed[place]),
                              std::to_integer<int>(good_[place]))));
  }
}

TEST_F(IndexCheck, FindsWhatIsLongerOrShorterOrNoHdf5File) {
  const auto message = [&](std::size_t bytes) {
    return fmt::format("it has {} bytes, needed are {}", bytes, good_.size());
  };
  std::vector<std::byte> changed = good_;
  changed.push_back(std::byte{0});
  EXPECT_THAT(check(changed), HasSubstr(message(changed.size())));
  EXPECT_THAT(check(std::span(good_).first(100)), HasSubstr(message(100)));
  EXPECT_THAT(check({}), HasSubstr(message(0)));
  EXPECT_THAT(check(std::vector<std::byte>(good_.size())),
              HasSubstr("its byte at 0 is 0, needed is"));
}

TEST_F(IndexCheck, FindsEveryKindOfWrongMapping) {
  const struct {
    const char* name;
    std::function<void(Manifest&)> change;
  } cases[] = {
      {"file", [](Manifest& m) { m.tensors[0].listed[0].writer = 1; }},
      {"file's name", [](Manifest& m) { m.files[1].name = "c.h5"; }},
      {"box",
       [](Manifest& m) {
         m.tensors[0].listed[0].box = Box({0, 0}, {4, 2});
       }},
      {"count", [](Manifest& m) { m.tensors[0].listed.pop_back(); }},
      {"none",
       [](Manifest& m) {
         m.tensors[2].listed = {{0, Box({0, 0}, {0, 2})}};
       }},
      {"extents",
       [](Manifest& m) {
         m.tensors[0].shape = {4, 7};
       }},
      {"type", [](Manifest& m) { m.tensors[0].dtype = DType::i32; }},
      {"scalar's file", [](Manifest& m) { m.tensors[1].listed[0].writer = 1; }},
      {"no scalar",
       [](Manifest& m) {
         m.tensors[1].shape = {1};
         m.tensors[1].listed[0].box = Box({0}, {1});
       }},
      {"name", [](Manifest& m) { m.tensors[1].name = "t"; }},
      {"spec",
       [](Manifest& m) {
         m.tensors[0].sharding = Sharding(Mesh::parse("a=2"), PartitionSpec::parse("a,-"));
       }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Manifest changed = manifest();
    c.change(changed);
    EXPECT_THAT(check(good_, changed),
                HasSubstr("it does not map the tensors of the manifest: it"));
  }
}

// No writer could write an index of such a manifest, so no index is right.
TEST_F(IndexCheck, FindsAManifestThatNoIndexCanHold) {
  for (const std::string& name : {std::string(100'000, 'x'), std::string("a\0b", 3)}) {
    Manifest changed = manifest();
    changed.files[0].name = name;
    EXPECT_THAT(check(good_, changed),
                HasSubstr(fmt::format("a file whose name of {} bytes", name.size())));
  }
}

// More than is read at once.
TEST_F(IndexCheck, ComparesALargeIndexToItsEnd) {
  Manifest many;
  many.files = {{.name = "a.h5"}};
  for (int i = 0; i < 6000; ++i) {
    const std::string name = fmt::format("t{:05}", i);
    many.tensors.push_back({.name = name, .shape = {0}});
  }
  std::vector<std::byte> index = build_index_file(many.tensors, many.files);
  ASSERT_GT(index.size(), std::size_t{1} << 20);
  EXPECT_EQ(check(index, many), "");
  index.back() ^= std::byte{1};
  EXPECT_THAT(check(index, many), HasSubstr(fmt::format("its byte at {} is", index.size() - 1)));
}

}  // namespace
}  // namespace shardwise::detail
