#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "convert/memory_model.h"
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

/// Every dtype that a format has, no elements, scalars, groups.
Model model_for(std::string_view format) {
  std::vector<HostTensor> tensors;
  std::uint64_t seed = 1;
  for (const DType dtype : all_dtypes()) {
    const bool is_plain = is_computed(dtype) || dtype == DType::c64 || dtype == DType::c128;
    if (!is_plain && !(format == "hdf5" && dtype == DType::f8_e5m2)) continue;
    const std::string type(name(dtype));
    tensors.push_back(whole_tensor(type + "/matrix", dtype, {7, 5}, seed++));
    tensors.push_back(whole_tensor(type + "/scalar", dtype, {}, seed++));
    tensors.push_back(whole_tensor(type + "/deep/empty", dtype, {3, 0}, seed++));
  }
  tensors.push_back(whole_tensor("dims", DType::u8, Shape(Dims::filled(16, 1)), seed++));
  for (const char* name : {"\u00e4", "\U0001F600", "a \"b\"", "a\\b", "layers.0.w:0", "50%"}) {
    tensors.push_back(whole_tensor(name, DType::f32, {3}, seed++));
  }
  return Model(std::move(tensors));
}

constexpr std::pair<const char*, const char*> kFormats[] = {{"npz", ".npz"}, {"hdf5", ".h5"}};

TEST(ExportFormats, AllKindsOfTensorsComeBack) {
  const TempDir dir;
  for (const auto& [format, suffix] : kFormats) {
    SCOPED_TRACE(format);
    const Model model = model_for(format);
    const fs::path path = dir / ("m" + std::string(suffix));
    const ExportStats stats = export_model(model, path);
    EXPECT_THAT(stats.files, ElementsAre(path));
    EXPECT_EQ(stats.file_bytes, fs::file_size(path));
    const ModelReader reader(path);
    EXPECT_EQ(reader.format(), format);
    EXPECT_TRUE(reader.left_out().empty());
    expect_same(model, reader);
    export_model(Model({}), dir / ("none" + std::string(suffix)));
  }
  EXPECT_EQ(ModelReader(dir / "none.h5").tensors().size(), 0u);
}

TEST(ExportFormats, FoldersHaveFilesAndAnIndex) {
  const TempDir dir;
  for (const auto& [format, suffix] : kFormats) {
    SCOPED_TRACE(format);
    const Model model({whole_tensor("a", DType::u8, {10}), whole_tensor("b/c", DType::u8, {30}),
                       whole_tensor("d", DType::u8, {10}), whole_tensor("e", DType::u8, {10})});
    const std::string end(suffix);
    const fs::path folder = dir / format;
    export_model(model, folder, {.format = format});
    EXPECT_THAT(posix_file_system()->list(folder), ElementsAre("model" + end));
    expect_same(model, ModelReader(folder));
    export_model(model, folder,
                 {.format = format, .max_shard_bytes = 20, .existing = Existing::replace});
    EXPECT_THAT(posix_file_system()->list(folder),
                ElementsAre("model-00001-of-00003" + end, "model-00002-of-00003" + end,
                            "model-00003-of-00003" + end, "model" + end + ".index.json"));
    for (const fs::path& path : {folder, folder / ("model" + end + ".index.json")}) {
      EXPECT_EQ(model_format(path), format);
      expect_same(model, ModelReader(path));
    }
  }
}

TEST(ExportFormats, AFolderOfDataIsNotReplaced) {
  const TempDir dir;
  for (const auto& [format, suffix] : kFormats) {
    const fs::path folder = dir / format;
    fs::create_directory(folder);
    const std::string name = "train" + std::string(suffix);
    write_file(folder / name, "data");
    EXPECT_THAT(message_of(ErrorCode::already_exists,
                           [&, format = format] {
                             export_model(Model({}), folder,
                                          {.format = format, .existing = Existing::replace});
                           }),
                HasSubstr("holds \"" + name + "\", too"));
  }
}

TEST(ExportFormats, WhatAFormatHasNotIsNamedBeforeAnythingIsWritten) {
  const TempDir dir;
  const auto refused = [&](const char* target, std::vector<HostTensor> tensors,
                           ErrorCode code = ErrorCode::unsupported) {
    const Model model(std::move(tensors));
    return message_of(code, [&] { export_model(model, dir / target); });
  };
  const HostTensor narrow = whole_tensor("w", DType::f8_e4m3fn, {2});
  EXPECT_THAT(refused("m.npz", {narrow, whole_tensor("v", DType::f8_e5m2, {2})}),
              AllOf(HasSubstr("no dtype f8_e4m3fn of \"w\""), HasSubstr("f8_e5m2 of \"v\"")));
  EXPECT_THAT(refused("m.h5", {narrow}), HasSubstr("hdf5 has no dtype f8_e4m3fn of \"w\""));
  const HostTensor long_name = whole_tensor(std::string(65532, 'a'), DType::u8, {1});
  EXPECT_THAT(refused("m.npz", {long_name}), HasSubstr("65,531"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { export_model(Model({}), dir / "m", {.format = "zip"}); }),
              HasSubstr("format \"zip\" is not known, needed is one of safetensors, npz, hdf5"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { export_model(Model({}), dir / "m.npz", {.format = "hdf5"}); }),
              HasSubstr("the format is hdf5, but its name ends in .npz"));
  EXPECT_THAT(posix_file_system()->list(dir.path()), ElementsAre());
}

}  // namespace
}  // namespace shardwise
