#include "shardwise/loader/open_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loader/images/image_files.h"
#include "loader/sources/hdf5_files.h"
#include "loader/sources/source_reads.h"
#include "loader/sources/tf_files.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OpenSource, OpensEveryFormat) {
  const TempDir dir;
  const std::string in = dir.path().string() + "/";
  write_file(dir / "i", idx_header(0x08, {2, 3}) + bytes({1, 2, 3, 4, 5, 6}));
  write_file(dir / "t", bytes({1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
  write_file(dir / "c", "a;b;c\n1;2;x\n");
  write_file(dir / "j", "{\"a\": [1, 2], \"b\": 3, \"c\": [[1, 2, 3]]}\n");
  write_file(dir / "r", tf_frame(tf_example({{"a", tf_integers({7})}, {"b", tf_floats({1, 2})}})));
  write_hdf5(dir / "h", {{"x", DType::u8, {2, 3}}, {"y", DType::f32, {2}}}, {Bytes(6), Bytes(8)});
  const auto fields = [&](const std::string& text) {
    const auto source = open_source(text);
    return std::vector<Field>(source->fields().begin(), source->fields().end());
  };
  EXPECT_THAT(fields("idx:" + in + "i?field=image"), ElementsAre(Field{"image", DType::u8, {3}}));
  EXPECT_THAT(fields("idx:" + in + "i"), ElementsAre(Field{"x", DType::u8, {3}}));
  EXPECT_THAT(fields("tokens:" + in + "t?window=2"), ElementsAre(Field{"tokens", DType::u16, {2}}));
  EXPECT_EQ(open_source("tokens:" + in + "t?dtype=uint8&window=4&stride=1&header_bytes=2&field=f")
                ->size(),
            5);
  EXPECT_THAT(fields("hdf5:" + in + "h?label=y&image=/x"),
              ElementsAre(Field{"label", DType::f32, {}}, Field{"image", DType::u8, {3}}));
  EXPECT_EQ(fields("hdf5:" + in + "h").size(), 2u);
  EXPECT_THAT(fields("csv:" + in + "c?delimiter=;&b=f32&c=text&a=?"),
              ElementsAre(Field{"b", DType::f32, {}}, Field{"c", DType::u8, {1}, true},
                          Field{"a", DType::i64, {}}));
  EXPECT_EQ(open_source("csv:" + in + "c?header=no")->size(), 2);
  EXPECT_THAT(fields("jsonl:" + in + "j?a=i32[]&b=f32&c=u8[1,3]"),
              ElementsAre(Field{"a", DType::i32, {2}, true}, Field{"b", DType::f32, {}},
                          Field{"c", DType::u8, {1, 3}}));
  EXPECT_EQ(fields("jsonl:" + in + "j").size(), 3u);
  EXPECT_THAT(fields("tfrecord:" + in + "r?a=i64&b=f32[,2]"),
              ElementsAre(Field{"a", DType::i64, {}}, Field{"b", DType::f32, {1, 2}, true}));
  EXPECT_TRUE(fields("tfrecord:" + in + "r")[0].ragged);
  EXPECT_EQ(open_source("idx:" + in + "i," + in + "i")->size(), 4);
}

TEST(OpenSource, FindsTheFormatOfPaths) {
  const TempDir dir;
  const std::string in = dir.path().string() + "/";
  const Bytes idx = idx_header(0x08, {2, 3}) + bytes({1, 2, 3, 4, 5, 6});
  const std::string json = "{\"a\": 1}\n";
  std::filesystem::create_directories(dir / "photos" / "dog");
  write_file(dir / "photos" / "dog" / "1.png", make_png(2, 2, 1, Bytes(4)));
  write_file(dir / "s.tar", make_tar({{.name = "1.png", .data = make_png(2, 2, 1, Bytes(4))}}));
  write_file(dir / "d.CSV", "a:b,c\n1,2\n");
  write_file(dir / "d.tsv", "a\tb\n1\t2\n");
  write_file(dir / "d.csv.gz", gzip(bytes_of("a\n1\n")));
  write_file(dir / "d.jsonl", json);
  write_file(dir / "x-idx2-ubyte.gz", gzip(idx));
  write_file(dir / "r.tfrecord", tf_frame(bytes_of("one")));
  write_hdf5(dir / "x.h5", {{"x", DType::u8, {2}}}, {Bytes(2)});
  const std::pair<const char*, const char*> cases[] = {
      {"photos", "image"},      {"s.tar", "image"},       {"d.CSV", "a:b"},
      {"d.tsv", "a"},           {"d.csv.gz", "a"},        {"d.jsonl", "a"},
      {"x-idx2-ubyte.gz", "x"}, {"r.tfrecord", "record"}, {"x.h5", "x"}};
  for (const auto& [path, field] : cases) {
    EXPECT_EQ(open_source(in + path)->fields()[0].name, field) << path;
  }
  // By their first bytes.
  for (const char* path : {"s.tar", "d.jsonl", "x-idx2-ubyte.gz", "x.h5"}) {
    std::filesystem::copy_file(dir / path, dir / "plain",
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(open_source(in + "plain")->fingerprint(), open_source(in + path)->fingerprint());
  }
  EXPECT_EQ(open_source(in + "d.tsv")->fields().size(), 2U);
  EXPECT_EQ(open_source(in + "d.CSV?a:b=f32")->fields()[0], (Field{"a:b", DType::f32, {}}));
  EXPECT_EQ(open_source(in + "d.jsonl," + in + "d.jsonl")->size(), 2);
  message_of(ErrorCode::not_found, [&] { open_source(in + "absent.csv"); });
}

TEST(OpenSource, TakesEscapedCharacters) {
  const TempDir dir;
  write_file(dir / "a,b?c%", idx_header(0x08, {2}) + bytes({1, 2}));
  const auto source = open_source("idx:" + dir.path().string() + "/a%2cb%3Fc%25?field=%26%3d");
  EXPECT_EQ(source->fields()[0].name, "&=");
}

TEST(OpenSource, ZipsSeveralTexts) {
  const TempDir dir;
  write_file(dir / "i", idx_header(0x08, {2, 3}) + bytes({1, 2, 3, 4, 5, 6}));
  write_file(dir / "l", idx_header(0x08, {2}) + bytes({8, 9}));
  const std::vector<std::string> texts{"idx:" + (dir / "i").string() + "?field=image",
                                       "idx:" + (dir / "l").string() + "?field=label"};
  const auto both = open_source(texts);
  EXPECT_EQ(both->fields().size(), 2u);
  EXPECT_EQ(read_whole(*both, 1, 1), bytes({9}));
}

TEST(OpenSource, SaysWhatThereIs) {
  const auto refused = [](std::string_view text) {
    return message_of(ErrorCode::invalid_argument, [&] { open_source(text); });
  };
  EXPECT_THAT(refused("nothing"),
              HasSubstr("open source \"nothing\": \"nothing\" does not tell its format, needed is "
                        "FORMAT:PATH"));
  EXPECT_THAT(refused("a.csv,b.npy"),
              HasSubstr("\"a.csv\" is csv and \"b.npy\" is npy, needed is one format for all"));
  EXPECT_THAT(refused("tokens:a?length=3"),
              HasSubstr("has an option \"length\", needed is \"window\""));
  EXPECT_THAT(refused("csv:a?sep=;"), HasSubstr("has an option \"sep\", needed is \"delimiter\""));
  EXPECT_THAT(refused("parquet:x"),
              HasSubstr("there is no format \"parquet\"; there are csv, hdf5, idx, images, jsonl, "
                        "npy, tar, tfrecord, tokens"));
  EXPECT_THAT(refused("idx:"), HasSubstr("has an empty path"));
  EXPECT_THAT(refused("idx:a,,b"), HasSubstr("has an empty path"));
  EXPECT_THAT(refused("idx:a?field"), HasSubstr("has an option that is not NAME=VALUE"));
  EXPECT_THAT(refused("idx:a?=x"), HasSubstr("has an option that is not NAME=VALUE"));
  EXPECT_THAT(refused("idx:a?field=x&field=y"), HasSubstr("has option \"field\" twice"));
  EXPECT_THAT(refused("idx:a?fields=x"),
              HasSubstr("has an option \"fields\"; the options of idx are field"));
  EXPECT_THAT(refused("tokens:a?windows=3"),
              HasSubstr("the options of tokens are dtype, window, stride, header_bytes, field"));
  EXPECT_THAT(refused("tokens:a?window=-3"),
              HasSubstr("window is \"-3\", needed is a number from 0 on"));
  EXPECT_THAT(refused("tokens:a?dtype=u17"), HasSubstr("u17"));
  EXPECT_THAT(refused("csv:a?x=f32[3]"), HasSubstr("field \"x\" has a shape"));
  EXPECT_THAT(refused("csv:a?delimiter=ab"),
              HasSubstr("delimiter is \"ab\", needed is one character"));
  EXPECT_THAT(refused("csv:a?header=1"), HasSubstr("header is \"1\", needed is \"yes\" or \"no\""));
  EXPECT_THAT(refused("jsonl:a?x=f32[3"), HasSubstr("field \"x\" has no \"]\""));
  EXPECT_THAT(refused("jsonl:a?x=f32[3,]"), HasSubstr("has the shape \"[3,]\""));
  EXPECT_THAT(refused("jsonl:a?x=f32[,,]"), HasSubstr("has the shape"));
  EXPECT_THAT(refused("jsonl:a?x=f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), HasSubstr("up to 16"));
  EXPECT_THAT(refused("tfrecord:a?x=?"), HasSubstr("field \"x\" has no type"));
  for (const char* wrong : {"idx:%", "idx:a%2", "idx:a%2g"}) {
    EXPECT_THAT(refused(wrong), HasSubstr("needed is \"%25\" for itself")) << wrong;
  }
  EXPECT_THAT(refused("idx:a%0ab"), HasSubstr("has an escape for a control character"));
  EXPECT_THAT(refused("idx:a\nb"), HasSubstr("open source \"idx:a?b\": has a control character"));
  EXPECT_THAT(refused(std::string_view("idx:a\0b", 7)), HasSubstr("has a control character"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [] { open_source("idx:/nonexistent/x"); }),
              HasSubstr("No such file"));
}

}  // namespace
}  // namespace shardwise
