#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "convert/weight_bytes.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/convert/model.h"
#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string u8_tensor(const std::string& name, int begin, int end) {
  const std::string size = std::to_string(end - begin);
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + size + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string text_of_tensor(const BoxReader& reader, std::size_t tensor) {
  std::string text;
  for (const std::byte byte : all_of(reader, tensor)) text += static_cast<char>(byte);
  return text;
}

std::string refusal(ErrorCode code, const fs::path& source) {
  return message_of(code, [&] { const ModelReader reader(source); });
}

/// A folder with model-1 of a and b, model-2 of c, and their index.
void write_model(const TempDir& dir) {
  write_file(dir / "model-1.safetensors",
             weight_bytes("{\"__metadata__\":{\"k\":\"1\",\"format\":\"pt\"}," +
                              u8_tensor("a", 0, 2) + "," + u8_tensor("b", 2, 3) + "}",
                          "xyz"));
  write_file(dir / "model-2.safetensors",
             weight_bytes(
                 "{\"__metadata__\":{\"k\":\"2\",\"format\":\"pt\"}," + u8_tensor("c", 0, 4) + "}",
                 "1234"));
  write_file(dir / "model.safetensors.index.json",
             R"({"metadata": {"total_size": 7}, "weight_map": {"a": "model-1.safetensors",
                 "b": "model-1.safetensors", "c": "model-2.safetensors"}})");
}

TEST(Safetensors, AFileIsReadBoxByBox) {
  const TempDir dir;
  const fs::path path = dir / "m.safetensors";
  std::string data;
  for (char c = 0; c < 24; ++c) data += c;
  write_file(path,
             weight_bytes(R"({"w":{"dtype":"I16","shape":[3,4],"data_offsets":[0,24]}})", data));
  const ModelReader reader(path);
  ASSERT_EQ(reader.tensors().size(), 1u);
  const TensorInfo& info = reader.tensors()[0];
  EXPECT_EQ(info.name, "w");
  EXPECT_EQ(info.dtype, DType::i16);
  EXPECT_EQ(info.shape, (Shape{3, 4}));
  EXPECT_EQ(info.logical_bytes, 24u);
  EXPECT_FALSE(info.sharding) << "no such file says how it was cut";
  EXPECT_EQ(text_of_tensor(reader, 0), data);
  std::vector<std::byte> out(8);
  reader.read(0, Box({1, 1}, {3, 3}), out);
  const int expected[] = {10, 11, 12, 13, 18, 19, 20, 21};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<int>(out[i]), expected[i]);

  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { reader.read(1, Box(), out); }),
              HasSubstr("no tensor number 1"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           reader.read(0, Box({1, 1}, {4, 3}), out);
                         }),
              HasSubstr("tensor \"w\": 8 bytes for box [1:4, 1:3]"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           reader.read(0, Box({0, 0}, {3, 4}), out);
                         }),
              HasSubstr("8 bytes for box"));
}

TEST(Safetensors, AModelOfSeveralFilesIsReadByItsIndexOrFolder) {
  const TempDir dir;
  write_model(dir);
  for (const fs::path& source :
       {dir.path(), dir / "model.safetensors.index.json", fs::path(dir.path() / "")}) {
    const ModelReader reader(source);
    EXPECT_EQ(names_of(reader), "a;b;c;");
    EXPECT_EQ(text_of_tensor(reader, 0), "xy");
    EXPECT_EQ(text_of_tensor(reader, 1), "z");
    EXPECT_EQ(text_of_tensor(reader, 2), "1234");
    EXPECT_EQ(reader.metadata(), R"({"k":"1","format":"pt","model-2.safetensors: k":"2"})");
    EXPECT_EQ(reader.user_json(), R"({"safetensors_metadata":)" + reader.metadata() + "}");
  }
}

TEST(Safetensors, AFolderOfLinksIsReadToo) {
  const TempDir dir, cache;
  write_model(dir);
  int number = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir.path())) {
    fs::create_symlink(entry.path(), cache / entry.path().filename().string());
    ++number;
  }
  EXPECT_EQ(number, 3);
  EXPECT_EQ(names_of(ModelReader(cache.path())), "a;b;c;");
}

TEST(Safetensors, AFolderMustHaveOneSource) {
  const TempDir dir;
  EXPECT_THAT(refusal(ErrorCode::not_found, dir.path()), HasSubstr("no safetensors file"));
  EXPECT_THAT(refusal(ErrorCode::not_found, dir / "nowhere"), HasSubstr("nowhere"));
  write_file(dir / "a.safetensors", weight_bytes("{}", ""));
  EXPECT_EQ(names_of(ModelReader(dir.path())), "");
  write_file(dir / "b.safetensors", weight_bytes("{}", ""));
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, dir.path()),
              AllOf(HasSubstr("2 safetensors files and no index"), HasSubstr("a.safetensors")));
  write_file(dir / "x.safetensors.index.json", R"({"weight_map": {}})");
  EXPECT_THAT(refusal(ErrorCode::corrupt, dir.path()),
              HasSubstr("x.safetensors.index.json: its weight_map is empty"));
  write_file(dir / "y.safetensors.index.json", R"({"weight_map": {}})");
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, dir.path()), HasSubstr("2 indexes"));
}

TEST(Safetensors, IndexAndFilesMustFit) {
  const TempDir dir;
  write_model(dir);
  const fs::path index = dir / "model.safetensors.index.json";
  const auto with_map = [&](const std::string& map) {
    write_file(index, "{\"weight_map\": {" + map + "}}");
    return dir.path();
  };
  const std::string ab = R"("a": "model-1.safetensors", "b": "model-1.safetensors")";
  EXPECT_EQ(names_of(ModelReader(with_map(ab))), "a;b;");
  EXPECT_THAT(refusal(ErrorCode::corrupt, with_map(R"("a": "model-1.safetensors")")),
              AllOf(HasSubstr("model-1.safetensors: tensor \"b\""), HasSubstr("nowhere")));
  EXPECT_THAT(refusal(ErrorCode::corrupt, with_map(ab + R"(, "c": "model-1.safetensors")")),
              HasSubstr("tensor \"c\": it is not in \"model-1.safetensors\""));
  EXPECT_THAT(refusal(ErrorCode::corrupt,
                      with_map(R"("a": "model-1.safetensors", "b": "model-2.safetensors",
                                  "c": "model-2.safetensors")")),
              HasSubstr("tensor \"b\": it is not in \"model-2.safetensors\""));
  EXPECT_THAT(refusal(ErrorCode::not_found, with_map(ab + R"(, "d": "model-3.safetensors")")),
              AllOf(HasSubstr("index.json"), HasSubstr("model-3.safetensors")));
  EXPECT_THAT(refusal(ErrorCode::corrupt, with_map(R"("a": "../model-1.safetensors")")),
              AllOf(HasSubstr("index.json"), HasSubstr("not a plain name")));
  write_file(index, "{");
  EXPECT_THAT(refusal(ErrorCode::corrupt, dir.path()),
              AllOf(HasSubstr("index.json"), HasSubstr("not JSON")));
}

TEST(Safetensors, TheIndexDecidesWhichFileATensorIsReadFrom) {
  const TempDir dir;
  write_model(dir);
  write_file(dir / "overlay.safetensors",
             weight_bytes("{" + u8_tensor("a", 0, 1) + "," + u8_tensor("b", 1, 3) + "," +
                              u8_tensor("c", 3, 4) + "}",
                          "ABBC"));
  write_file(dir / "model.safetensors.index.json",
             R"({"weight_map": {"a": "model-1.safetensors", "b": "overlay.safetensors",
                 "c": "model-2.safetensors"}})");
  const ModelReader reader(dir.path());
  EXPECT_EQ(names_of(reader), "a;b;c;");
  EXPECT_EQ(text_of_tensor(reader, 0), "xy");
  EXPECT_EQ(text_of_tensor(reader, 1), "BB");
  EXPECT_EQ(text_of_tensor(reader, 2), "1234");
}

TEST(Safetensors, OtherFilesAreRefusedByWhatTheySeemToBe) {
  const TempDir dir;
  const fs::path path = dir / "m.safetensors";
  struct Case {
    std::string bytes, part;
    ErrorCode code = ErrorCode::corrupt;
  };
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  const Case cases[] = {
      {"", "it has 0 bytes, needed are 8"},
      {std::string("\2\0\0\0\0\0\0", 7), "it has 7 bytes"},
      {std::string("\3\0\0\0\0\0\0\0{}", 10), "its header has 3 bytes, but 2 follow"},
      {huge, "its header has 18446744073709551615 bytes, but 2 follow"},
      {std::string(8, '\0'), "does not begin"},
      {std::string("PK\3\4\0\0\x08\x08", 8) + "data.pkl", "seems to be a zip archive",
       ErrorCode::unsupported},
      {"\x93NUMPY\1", "seems to be a .npy array", ErrorCode::unsupported},
      {"{\"metadata\": {}}", "seems to be JSON", ErrorCode::unsupported},
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS", ErrorCode::unsupported},
      {weight_bytes("{\"w\":7}", ""), "tensor \"w\": found a number"},
      {weight_bytes("{" + u8_tensor("w", 0, 4) + "}", "123"), "tensor \"w\": its bytes [0, 4)"},
  };
  for (const Case& c : cases) {
    write_file(path, c.bytes);
    EXPECT_THAT(refusal(c.code, path), AllOf(HasSubstr("m.safetensors"), HasSubstr(c.part)));
  }
  // The file is a hole, so that it fills no disk.
  write_file(path, std::string("\1\xe1\xf5\5\0\0\0\0", 8));
  fs::resize_file(path, 8 + 100'000'001);
  EXPECT_THAT(refusal(ErrorCode::corrupt, path),
              HasSubstr("100000001 bytes, allowed are 100000000"));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TempDir dir;
  const fs::path path = dir / "m.safetensors";
  const std::string whole = weight_bytes("{" + u8_tensor("w", 0, 9) + "}", "123456789");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    EXPECT_THAT(refusal(ErrorCode::corrupt, path), HasSubstr("m.safetensors")) << size;
  }
  write_file(path, whole + "0");
  EXPECT_THAT(refusal(ErrorCode::corrupt, path), HasSubstr("[9, 10) of data belong to no tensor"));
}

TEST(Safetensors, AFileThatShrinksIsAnErrorNotAFault) {
  const TempDir dir;
  const fs::path path = dir / "m.safetensors";
  write_file(path, weight_bytes("{" + u8_tensor("w", 0, 5000) + "}", std::string(5000, 'x')));
  const ModelReader reader(path);
  fs::resize_file(path, 2000);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { all_of(reader, 0); }),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("m.safetensors")));
}

TEST(Safetensors, AFaultOfTheDiskNamesTheTensor) {
  const TempDir dir;
  const fs::path path = dir / "m.safetensors";
  write_file(path, weight_bytes("{" + u8_tensor("w", 0, 50) + "}", std::string(50, 'x')));
  bool is_broken = false;
  const auto read = [&](const fs::path&, std::uint64_t, std::size_t) {
    if (is_broken) throw Error(ErrorCode::io, "read: Input/output error");
  };
  const ModelReader reader(
      path, std::make_shared<HookedFileSystem>([](std::string_view, const fs::path&) {}, read));
  is_broken = true;
  EXPECT_THAT(message_of(ErrorCode::io, [&] { all_of(reader, 0); }),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("Input/output error")));
}

TEST(Safetensors, OneOfVeryManyFilesIsOpenedAgain) {
  const TempDir dir;
  std::string map;
  constexpr int kFiles = 70;
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = std::to_string(100 + i);
    write_file(dir / (name + ".safetensors"),
               weight_bytes("{" + u8_tensor(name, 0, 3) + "}", name));
    map += (i == 0 ? "" : ",") + shardwise::quoted(name) + ":" +
           shardwise::quoted(name + ".safetensors");
  }
  write_file(dir / "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  const ModelReader reader(dir.path());
  for (std::size_t t = 0; t < kFiles; ++t) {
    EXPECT_EQ(text_of_tensor(reader, t), reader.tensors()[t].name);
  }
  fs::resize_file(dir / "100.safetensors", 20);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { all_of(reader, 0); }),
              HasSubstr("it has 20 bytes now"));
}

TEST(Safetensors, ImportedExportedAndImportedIsTheSame) {
  const TempDir dir;
  write_model(dir);
  const ModelReader reader(dir.path());
  const auto import = [&](const BoxReader& source, std::int64_t step, const std::string& user) {
    return reshard_checkpoint(source, {dir / "root", step}, Mesh::parse("x=2"),
                              SpecRules::parse("c=x;*=-"), {.save = {.user_json = user}})
        .directory;
  };
  const fs::path first = import(reader, 1, reader.user_json());
  EXPECT_TRUE(verify_checkpoint(first).ok());
  export_model(first, dir / "again.safetensors");
  const ModelReader again(dir / "again.safetensors");
  EXPECT_EQ(again.metadata(), reader.metadata());
  const fs::path second = import(again, 2, again.user_json());
  EXPECT_EQ(CheckpointReader(second).user_json(), CheckpointReader(first).user_json());
  EXPECT_EQ(CheckpointReader(second).tensors()[2].sharding->spec().to_string(), "x");
  for (std::size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(text_of_tensor(CheckpointReader(second), t), text_of_tensor(reader, t));
  }
}

}  // namespace
}  // namespace shardwise
