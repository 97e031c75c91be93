#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "convert/memory_model.h"
#include "shardwise/convert/detail/write/export_format.h"
#include "shardwise/convert/detail/zip_directory.h"
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
    const fs::path index = folder / ("model" + end + ".index.json");
    const auto refused = [&](const std::string& map) {
      write_file(index, "{\"weight_map\": {" + map + "}}");
      return message_of(ErrorCode::corrupt, [&] { ModelReader{folder}; });
    };
    const std::string second = "\"b/c\": \"model-00002-of-00003" + end + "\"";
    EXPECT_THAT(refused("\"a\": \"model-00002-of-00003" + end + "\""),
                HasSubstr("has tensor \"a\"; found \"b/c\""));
    EXPECT_THAT(refused(second + ", \"x\": \"model-00002-of-00003" + end + "\""),
                HasSubstr("has tensor \"x\"; found none"));
    EXPECT_THAT(refused("\"a\": \"model" + end + ".index.json\""),
                HasSubstr("is no file of tensors"));
    EXPECT_THAT(refused(""), HasSubstr("its weight_map is empty"));
  }
}

/// The frame of a file whose elements are zeros, without these.
class SparseFile final : public File {
 public:
  SparseFile(const detail::ExportFormat& format, const std::vector<TensorInfo>& tensors) {
    const auto frame = format.frame(tensors, {});
    std::uint64_t at = 0;
    const auto put = [&](const std::string& text) {
      if (!text.empty()) texts_.emplace(at, text);
      at += text.size();
    };
    put(frame->begin());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      put(frame->before(t));
      at += num_bytes(tensors[t].shape, size_bytes(tensors[t].dtype));
      put(frame->after(t, 0));
    }
    put(frame->end());
    size_ = at;
    EXPECT_EQ(frame->bytes(), at);
  }

  std::uint64_t size() override { return size_; }
  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    std::fill_n(data, size, std::byte{});
    auto text = texts_.upper_bound(offset);
    if (text != texts_.begin()) --text;
    for (; text != texts_.end() && text->first < offset + size; ++text) {
      for (std::size_t i = 0; i < text->second.size(); ++i) {
        const std::uint64_t at = text->first + i;
        if (at >= offset && at < offset + size) {
          data[at - offset] = static_cast<std::byte>(text->second[i]);
        }
      }
    }
  }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override {}
  void resize(std::uint64_t) override {}
  void sync() override {}
  void close() override {}

 private:
  std::map<std::uint64_t, std::string> texts_;
  std::uint64_t size_ = 0;
};

TEST(ExportFormats, NpzOf64BitsSaysWhereItsMembersAre) {
  const auto tensor = [](std::string name, Shape shape) {
    return TensorInfo{.name = std::move(name), .dtype = DType::u8, .shape = shape};
  };
  const std::int64_t large = std::int64_t{5} << 30;
  SparseFile file(detail::npz_export(), {tensor("a", {large}), tensor("b", {3})});
  const std::vector<detail::ZipMember> members = detail::read_zip_directory(file);
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].bytes, static_cast<std::uint64_t>(large) + 128);
  EXPECT_EQ(members[1].bytes, 131u);
  EXPECT_GT(members[1].offset, static_cast<std::uint64_t>(large));

  std::vector<TensorInfo> many;
  for (int t = 0; t < 70'000; ++t) many.push_back(tensor(std::to_string(t), {}));
  SparseFile of_many(detail::npz_export(), many);
  EXPECT_EQ(detail::read_zip_directory(of_many).size(), 70'000u);
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
  const auto named = [](std::string name) { return whole_tensor(std::move(name), DType::u8, {1}); };
  EXPECT_THAT(refused("m.h5", {named("a"), named("a/b")}),
              HasSubstr("tensor \"a\" would be a group with tensor \"a/b\" in it"));
  for (const char* name : {"", "/a", "a/", "a//b"}) {
    EXPECT_THAT(refused("m.h5", {named(name)}), HasSubstr("an empty part"));
  }
  EXPECT_THAT(refused("m.h5", {named("a/../b")}), HasSubstr("a part of dots"));
  EXPECT_THAT(refused("m.h5", {named(std::string("a\0b", 3))}), HasSubstr("a zero byte"));
  EXPECT_THAT(refused("m.h5", {named(std::string(4000, 'a'))}), HasSubstr("3,072"));
  EXPECT_THAT(refused("m.npz", {named(std::string(65532, 'a'))}), HasSubstr("65,531"));
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
