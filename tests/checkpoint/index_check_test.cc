#include "shardwise/checkpoint/detail/read/index_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "shardwise/checkpoint/detail/write/index_file.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

PieceEntry piece(const Box& box, std::int64_t number) {
  return {.box = box,
          .file = number % 2,
          .dataset = "/tensors/0/" + std::to_string(number),
          .chunk = box.shape()};
}

/// "m" f32 [4, 6] in two pieces of two files, "s" a scalar, "z" without elements.
Manifest manifest() {
  Manifest made;
  made.files = {{.name = "a.h5"}, {.name = "b.h5"}};
  made.tensors = {{.name = "m",
                   .shape = {4, 6},
                   .index = "/m",
                   .pieces = {piece(Box({0, 0}, {4, 3}), 0), piece(Box({0, 3}, {4, 6}), 1)}},
                  {.name = "s", .index = "/s", .pieces = {piece(Box({}, {}), 2)}},
                  {.name = "z", .shape = {0, 2}, .index = "/z"}};
  return made;
}

class IndexCheck : public testing::Test {
 protected:
  IndexCheck() {
    const Manifest made = manifest();
    write_file(path_, build_index_file(made.tensors, made.files));
  }

  TempDir dir_;
  std::filesystem::path path_ = dir_ / "index.h5";
};

TEST_F(IndexCheck, FindsNothingInWhatWasBuilt) {
  EXPECT_THAT(check_index(path_, manifest()), IsEmpty());
}

TEST_F(IndexCheck, FindsEveryKindOfWrongMapping) {
  const struct {
    const char* name;
    std::function<void(Manifest&)> change;
    const char* message;
  } cases[] = {
      {"dataset", [](Manifest& m) { m.tensors[0].pieces[1].dataset = "/other"; },
       "mapping 1 is of \"/tensors/0/1\" in \"b.h5\", must be of \"/other\""},
      {"file", [](Manifest& m) { m.tensors[0].pieces[0].file = 1; },
       "mapping 0 is of \"/tensors/0/0\" in \"a.h5\", must be of \"/tensors/0/0\" in \"b.h5\""},
      {"box",
       [](Manifest& m) {
         m.tensors[0].pieces[0].box = Box({0, 0}, {4, 2});
       },
       "mapping 0 is to [0:4, 0:3], must be to [0:4, 0:2]"},
      {"count", [](Manifest& m) { m.tensors[0].pieces.pop_back(); },
       "it has 2 mappings, must have 1"},
      {"none", [](Manifest& m) { m.tensors[2].pieces = m.tensors[0].pieces; },
       "it has 0 mappings, must have 2"},
      {"rank", [](Manifest& m) { m.tensors[0].shape = {24}; },
       "its extents are [4, 6], must be [24]"},
      {"scalar's dataset", [](Manifest& m) { m.tensors[1].pieces[0].dataset = "/x"; },
       "it links to \"/tensors/0/2\" in \"a.h5\", must link to \"/x\""},
      {"scalar that is none", [](Manifest& m) { m.tensors[1].index = "/m"; },
       "it is not an external link"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Manifest changed = manifest();
    c.change(changed);
    EXPECT_THAT(check_index(path_, changed), ElementsAre(HasSubstr(c.message)));
  }
}

TEST_F(IndexCheck, ReportsEveryTensorAndWhatIsNoHdf5File) {
  Manifest changed = manifest();
  for (TensorEntry& tensor : changed.tensors) tensor.index += "x";
  EXPECT_THAT(
      check_index(path_, changed),
      ElementsAre(HasSubstr("tensor \"m\""), HasSubstr("tensor \"s\""), HasSubstr("tensor \"z\"")));
  write_file(path_, std::as_bytes(std::span("not HDF5", 8)));
  EXPECT_THAT(check_index(path_, manifest()), ElementsAre(HasSubstr("index.h5: open")));
}

}  // namespace
}  // namespace shardwise::detail
