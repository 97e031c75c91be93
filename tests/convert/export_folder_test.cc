#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/convert/model.h"
#include "shardwise/storage/file.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::vector<std::string> names_below(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), folder).string());
  }
  std::ranges::sort(names);
  return names;
}

void write_orbax(const fs::path& folder) {
  put(folder / "_METADATA", "{}");
  put(folder / "ocdbt.process_0/d/1", "data");
}

TEST(ExportFolder, HasItsNameWhenAllIsWritten) {
  const TempDir dir;
  const ExportStats stats =
      export_folder(dir / "o", "orbax", Existing::fail, [&](const fs::path& folder) {
        EXPECT_EQ(folder.filename(), "o");
        EXPECT_TRUE(fs::is_empty(folder));
        write_orbax(folder);
        EXPECT_FALSE(fs::exists(dir / "o"));
      });
  EXPECT_THAT(stats.files, ElementsAre(dir / "o/_METADATA", dir / "o/ocdbt.process_0/d/1"));
  EXPECT_EQ(stats.file_bytes, 6u);
  EXPECT_THAT(names_below(dir.path()), ElementsAre("o/_METADATA", "o/ocdbt.process_0/d/1"));
}

TEST(ExportFolder, NothingIsLeftOfOneThatFails) {
  const TempDir dir;
  const auto fail = [](const fs::path& folder) {
    write_orbax(folder);
    throw std::runtime_error("the disk is full");
  };
  EXPECT_THROW(export_folder(dir / "o", "orbax", Existing::fail, fail), std::runtime_error);
  EXPECT_TRUE(fs::is_empty(dir.path()));
  export_folder(dir / "o", "orbax", Existing::fail, write_orbax);
  EXPECT_THROW(export_folder(dir / "o", "orbax", Existing::replace, fail), std::runtime_error);
  EXPECT_THAT(names_below(dir.path()), ElementsAre("o/_METADATA", "o/ocdbt.process_0/d/1"));
}

TEST(ExportFolder, AFolderGivesWayIfItHoldsNothingElse) {
  const TempDir dir;
  const auto write_dcp = [](const fs::path& folder) { put(folder / ".metadata", "m"); };
  const auto refused = [&](std::string_view format, Existing existing) {
    return message_of(ErrorCode::already_exists,
                      [&] { export_folder(dir / "t", format, existing, write_dcp); });
  };
  put(dir / "t/.metadata", "old");
  put(dir / "t/__0_0.distcp", "old");
  EXPECT_THAT(refused("dcp", Existing::fail), HasSubstr("it exists: Existing::replace"));
  EXPECT_THAT(refused("orbax", Existing::replace), HasSubstr(R"(holds ".metadata", too)"));
  EXPECT_THAT(export_folder(dir / "t", "dcp", Existing::skip, write_dcp).files, IsEmpty());
  EXPECT_THAT(names_below(dir / "t"), ElementsAre(".metadata", "__0_0.distcp"));
  fs::create_directory(dir / "empty");
  EXPECT_THAT(message_of(ErrorCode::already_exists,
                         [&] { export_folder(dir / "empty", "dcp", Existing::skip, write_dcp); }),
              HasSubstr("it is of no known format, needed is a checkpoint of dcp"));
  fs::remove(dir / "empty");
  EXPECT_THAT(refused("orbax", Existing::skip), HasSubstr("(DCP), needed is"));
  export_folder(dir / "t", "dcp", Existing::replace, write_dcp);
  EXPECT_THAT(names_below(dir.path()), ElementsAre("t/.metadata"));
  put(dir / "t/notes.txt", "mine");
  EXPECT_THAT(refused("dcp", Existing::replace), HasSubstr(R"(holds "notes.txt", too)"));

  // A step of Orbax's, whose items may have any name.
  put(dir / "s/_CHECKPOINT_METADATA", "{}");
  put(dir / "s/state/_METADATA", "{}");
  put(dir / "s/loader/metadata", "{}");
  put(dir / "s/metrics/metrics", "{}");
  export_folder(dir / "s", "orbax", Existing::replace, write_orbax);
  EXPECT_THAT(names_below(dir / "s"), ElementsAre("_METADATA", "ocdbt.process_0/d/1"));
  put(dir / "s/photos/1.jpg", "mine");
  const std::string said = message_of(ErrorCode::already_exists, [&] {
    export_folder(dir / "s", "orbax", Existing::replace, write_orbax);
  });
  EXPECT_THAT(said, HasSubstr(R"(holds "photos", too)"));
}

TEST(ExportFolder, SaysWhatItNeeds) {
  const TempDir dir;
  const auto said = [&](ErrorCode code, const fs::path& target, std::string_view format) {
    return message_of(code, [&] { export_folder(target, format, Existing::fail, write_orbax); });
  };
  EXPECT_THAT(said(ErrorCode::invalid_argument, dir / "a.npz", "dcp"),
              AllOf(HasSubstr("a.npz"), HasSubstr("the format is dcp, but its name ends in .npz")));
  EXPECT_THAT(said(ErrorCode::invalid_argument, dir / "a", "zip"),
              HasSubstr(R"(format "zip" is not known, needed is dcp or orbax)"));
  said(ErrorCode::not_found, dir / "none/a", "dcp");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace shardwise
