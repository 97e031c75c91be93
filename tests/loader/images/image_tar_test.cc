#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "loader/images/image_files.h"
#include "shardwise/loader/sources/images.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Bytes grey_png(int value) { return make_png(2, 2, 1, Bytes(4, static_cast<std::byte>(value))); }

/// An archive in a file.
class TarFile {
 public:
  explicit TarFile(const std::vector<TarEntry>& entries) : TarFile(make_tar(entries)) {}
  explicit TarFile(const Bytes& archive) { write_file(path(), archive); }

  std::filesystem::path path() const { return dir_ / "x.tar"; }
  std::shared_ptr<const ImageSource> open(const ImageOptions& options = {}) const {
    return open_image_tar(path(), options);
  }
  std::string error(ErrorCode code, const ImageOptions& options = {}) const {
    const std::string message = message_of(code, [&] { open(options); });
    EXPECT_THAT(message, HasSubstr(path().string()));
    return message;
  }

 private:
  TempDir dir_;
};

std::vector<std::int64_t> labels(const Source& source) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < source.size(); ++i) all.push_back(read_label(source, i));
  return all;
}

TEST(ImageTar, ClassesAreTheLastFolders) {
  const TarFile tar({{.name = "./", .type = '5'},
                     {.name = "./train/dog/1.png", .data = grey_png(10)},
                     {.name = "train/cat/2.PNG", .data = grey_png(20)},
                     {.name = "train/cat/readme.txt", .data = to_bytes("x")},
                     {.name = "train/cat/._3.png", .data = to_bytes("a Mac's")},
                     {.name = "/dog//./4.jpeg", .data = grey_png(40)},
                     {.name = "../5.png", .data = grey_png(50)},
                     {.name = "a/../6.png", .data = grey_png(60)},
                     {.name = "train/dog/1.png", .data = grey_png(70)}});  // twice: two records
  const auto source = tar.open({.channels = 1});
  EXPECT_THAT(source->class_names(), ElementsAre("..", "cat", "dog"));
  EXPECT_THAT(labels(*source), ElementsAre(2, 1, 2, 0, 0, 2));
  for (std::int64_t i = 0; i < 6; ++i) {
    const int values[] = {10, 20, 40, 50, 60, 70};
    EXPECT_THAT(read_field(*source, "image", i), Each(static_cast<std::byte>(values[i])));
  }
  EXPECT_EQ(source->record_name(4), "a/../6.png");
}

TEST(ImageTar, WithoutFoldersHasNoLabels) {
  const TarFile tar(
      {{.name = "b.png", .data = grey_png(1)}, {.name = "./a.png", .data = grey_png(2)}});
  const auto source = tar.open();
  const Field image{"image", DType::u8, {2, 2, 3}};
  EXPECT_THAT(source->fields(), ElementsAre(image));
  EXPECT_THAT(source->class_names(), IsEmpty());
  EXPECT_THAT(read_field(*source, "image", 1), Each(std::byte{2}));
}

TEST(ImageTar, OneImageInNoFolderIsAnErrorUnlessLabelsAreUnwanted) {
  const TarFile tar(
      {{.name = "c/b.png", .data = grey_png(1)}, {.name = "a.png", .data = grey_png(2)}});
  EXPECT_THAT(tar.error(ErrorCode::corrupt),
              HasSubstr("member \"a.png\" at offset 1024: an image in no folder"));
  EXPECT_EQ(tar.open({.labels = ImageLabels::none})->size(), 2);
}

std::vector<TarEntry> webdataset() {
  return {{.name = "meta.json", .data = to_bytes("{}")},
          {.name = "s/000.jpg", .data = grey_png(0)},
          {.name = "s/000.cls", .data = to_bytes("7\n")},
          {.name = "s/000.json", .data = to_bytes("{\"n\": 0}")},
          {.name = "s/001.json", .data = to_bytes("{}")},
          {.name = "s/001.seg.png", .data = grey_png(99)},
          {.name = "s/001.CLS", .data = to_bytes(" -12 ")},
          {.name = "s/001.png", .data = grey_png(1)}};
}

TEST(ImageTar, FilesOfOneStemAreARecord) {
  const TarFile tar(webdataset());
  const auto source = tar.open({.channels = 1});
  ASSERT_EQ(source->size(), 2);
  EXPECT_THAT(labels(*source), ElementsAre(7, -12));
  EXPECT_THAT(source->class_names(), IsEmpty());
  EXPECT_EQ(source->record_name(1), "s/001.png");
  EXPECT_THAT(read_field(*source, "image", 0), Each(std::byte{0}));
  EXPECT_THAT(read_field(*source, "image", 1), Each(std::byte{1}));
  EXPECT_EQ(tar.open({.labels = ImageLabels::none})->size(), 3);  // 001.seg.png among them
}

TEST(ImageTar, MembersBecomeRaggedFieldsOfBytes) {
  auto entries = webdataset();
  entries.erase(entries.begin());
  const auto source = TarFile(entries).open({.byte_fields = {"json"}});
  const Field json{"json", DType::u8, {8}, true};
  ASSERT_EQ(source->fields().size(), 3U);
  EXPECT_EQ(source->fields()[2], json);
  EXPECT_EQ(source->length({.record = 0}, 2), 8);
  EXPECT_EQ(source->length({.record = 1}, 2), 2);
  EXPECT_EQ(source->length({.record = 1}, 0), 2);
  EXPECT_EQ(read_field(*source, "json", 0), to_bytes("{\"n\": 0}"));
  EXPECT_EQ(read_field(*source, "json", 1), to_bytes("{}") + Bytes(6));
  for (std::int64_t begin = 0; begin <= 8; ++begin) {
    for (std::int64_t end = begin; end <= 8; ++end) {
      const Bytes all = to_bytes("{}") + Bytes(6);
      Bytes part(static_cast<std::size_t>(end - begin), std::byte{1});
      source->read_box(2, 1, {part.data(), Box({begin}, {end})});
      EXPECT_EQ(part, Bytes(all.begin() + begin, all.begin() + end));
    }
  }
  const TarFile seg(std::vector<TarEntry>{{.name = "1.png", .data = grey_png(3)},
                                          {.name = "1.seg.png", .data = grey_png(4)}});
  EXPECT_EQ(read_field(*seg.open({.byte_fields = {"seg.png"}}), "seg.png", 0), grey_png(4));
}

TEST(ImageTar, RefusesRecordsThatAreNone) {
  const TarEntry image{.name = "0.png", .data = grey_png(0)};
  const auto cls = [](const std::string& text) {
    return TarEntry{.name = "0.cls", .data = to_bytes(text)};
  };
  const struct {
    std::vector<TarEntry> entries;
    const char* found;
  } cases[] = {
      {{{.name = "1.cls", .data = to_bytes("1")}, image},
       "found 2 records, each without a part that is needed: an image, a label (.cls)"},
      {{image, {.name = "1.txt"}, cls("1")}, "found 2 records, each without a part"},
      {{{.name = "d/22.05.png"}, {.name = "d/22.05.cls"}, {.name = "d/22.06.png"}},
       "member \"d/22.06.png\" at offset 1024: is of the same record as \"d/22.05.png\", since a "
       "record's name ends at the first dot"},
      {{image, cls("1"), {.name = "0.jpg", .data = grey_png(1)}},
       "\"0.jpg\" at offset 2048: comes after \"0.png\" for the same part of the record, needed is "
       "one"},
      {{image, cls("1"), cls("1")}, "\"0.cls\" at offset 2048: comes after \"0.cls\""},
      {{image, cls("")}, "a label that reads \"\", needed is a decimal number"},
      {{image, cls("1x")}, "a label that reads \"1x\""},
      {{image, cls("9223372036854775808")}, "a label that reads \"9223372036854775808\""},
      {{image, cls(std::string(65, '1'))}, "a label of 65 bytes"}};
  for (const auto& c : cases) {
    EXPECT_THAT(TarFile(c.entries).error(ErrorCode::corrupt), HasSubstr(c.found));
  }
  EXPECT_THAT(labels(*TarFile({image, cls("9223372036854775807")}).open()), ElementsAre(INT64_MAX));
  EXPECT_THAT(
      TarFile(std::vector<TarEntry>{image}).error(ErrorCode::corrupt, {.byte_fields = {"txt"}}),
      HasSubstr("each without a part that is needed: an image, \".txt\""));
}

// Records as the library webdataset makes them (base_plus_ext, group_by_keys).
TEST(ImageTar, GroupsMembersAsWebDatasetDoes) {
  const auto png = [](const std::string& name, int grey) {
    return TarEntry{.name = name, .data = grey_png(grey)};
  };
  const auto cls = [](const std::string& name, const std::string& text) {
    return TarEntry{.name = name, .data = to_bytes(text)};
  };
  const TarFile dots({png("train/22.05.png", 0), cls("train/22.05.cls", "5"),
                      png("v1.0/b.c/22.png", 1), cls("v1.0/b.c/22.cls", "6"), png("a.1.PNG", 2),
                      cls("a.1.Cls", "7"), png("a.1.seg.png", 3), png("b.png", 4),
                      png("b.1.png", 5), cls("b.cls", "8")});
  const auto source = dots.open();
  ASSERT_EQ(source->size(), 4);
  EXPECT_THAT(labels(*source), ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(source->record_name(0), "train/22.05.png");
  EXPECT_EQ(source->record_name(2), "a.1.PNG");
  EXPECT_EQ(source->record_name(3), "b.png");
  // Skipped: they neither are records nor part them.
  const TarFile hidden({cls("__meta__/x.cls", "3"), cls(".gitignore", "x"), cls("._a.png", "mac"),
                        png("a.png", 0), cls("README", "x"), cls("._a.cls", "mac"),
                        cls("a.cls", "1"), cls("d/.b.cls", "9"), png("d/b.png", 1),
                        cls("d/b.cls", "2")});
  EXPECT_THAT(labels(*hidden.open()), ElementsAre(1, 2));
  const TarFile seg({png("a.png", 0), cls("a.cls", "1"), png("b.seg.png", 1), cls("b.cls", "2")});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_field(*seg.open(), "image", 1); }),
              HasSubstr("member \"b.seg.png\" at offset 2560: no image"));
  const TarFile json({png("1.2.png", 0), cls("1.2.JSON", "{}")});
  EXPECT_EQ(read_field(*json.open({.byte_fields = {"json"}}), "json", 0), to_bytes("{}"));
}

TEST(ImageTar, ARecordThatLacksAPartIsAnErrorWhenItIsRead) {
  const TarEntry image{.name = "0.png", .data = grey_png(0)};
  const TarEntry label{.name = "0.cls", .data = to_bytes("4")};
  const TarFile tar({image,
                     label,
                     {.name = "1.png", .data = grey_png(1)},
                     {.name = "2.cls", .data = to_bytes("5")}});
  const auto source = tar.open();
  EXPECT_EQ(source->size(), 3);
  const auto failure = [&](const ImageSource& of, const char* field, std::int64_t record) {
    return message_of(ErrorCode::corrupt, [&] { read_field(of, field, record); });
  };
  EXPECT_THAT(failure(*source, "label", 1),
              HasSubstr("member \"1.png\" at offset 2560: no label (.cls) right next to it"));
  EXPECT_EQ(read_field(*source, "image", 1),
            Bytes(read_field(*tar.open({.labels = ImageLabels::none}), "image", 1)));
  EXPECT_THAT(failure(*source, "image", 2), HasSubstr("no image (.png, .jpg or .jpeg)"));
  const TarFile texts({{.name = "0.txt", .data = to_bytes("a")},
                       {.name = "1.json"},
                       {.name = "2.txt", .data = to_bytes("bcd")},
                       {.name = "2.json"}});
  const auto bytes = texts.open({.byte_fields = {"txt", "json"}});
  ASSERT_EQ(bytes->fields().size(), 2U);
  EXPECT_EQ(bytes->fields()[0], (Field{"txt", DType::u8, {3}, true}));
  EXPECT_EQ(read_field(*bytes, "txt", 2), to_bytes("bcd"));
  EXPECT_EQ(bytes->length({.record = 2}, 0), 3);
  EXPECT_THAT(failure(*bytes, "txt", 1), HasSubstr("no \".txt\" right next to it"));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { bytes->length({.record = 1}, 0); }),
              HasSubstr("no \".txt\" right next to it"));
}

TEST(ImageTar, RefusesImagesThatAreNotThere) {
  EXPECT_THAT(TarFile(std::vector<TarEntry>{{.name = "a/1.png", .type = '1'}})
                  .error(ErrorCode::unsupported),
              HasSubstr("member \"a/1.png\" at offset 0: a link to a file, needed is the file"));
  EXPECT_THAT(TarFile(std::vector<TarEntry>{{.name = "a/1.gif"}}).error(ErrorCode::unsupported),
              HasSubstr("an image of another format"));
  EXPECT_THAT(TarFile(std::vector<TarEntry>{{.name = "a/1.txt"}}).error(ErrorCode::not_found),
              HasSubstr("no image"));
  EXPECT_THAT(TarFile(gzip(make_tar({}))).error(ErrorCode::unsupported),
              HasSubstr("packed by gzip"));
  EXPECT_THAT(TarFile(to_bytes("not a tar")).error(ErrorCode::corrupt),
              HasSubstr("9 bytes are left"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [] { open_image_tar("absent.tar"); }),
              HasSubstr("absent.tar"));
}

TEST(ImageTar, RefusesByteFieldsThatAreWrong) {
  const TarFile tar(webdataset());
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{""}, {"json", "json"}, {"label"}, {"image"}}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { tar.open({.byte_fields = names}); }),
                HasSubstr("needed are distinct names other than \"image\" and \"label\""));
  }
}

TEST(ImageTar, ErrorsOfReadingNameMemberAndOffset) {
  const std::string long_name = "c/" + std::string(3000, 'n') + "\n.png";
  const TarFile tar({{.name = "c/a.png", .data = grey_png(1)},
                     {.name = "c/\x01.png", .data = first_of(grey_png(1), 40)},
                     {.name = "x", .data = to_bytes(long_name), .type = 'L'},
                     {.name = "x", .data = to_bytes("none")},
                     {.name = "c/b.png", .data = grey_png(2)}});
  const auto source = tar.open();
  const auto error = [&](std::int64_t record) {
    return message_of(ErrorCode::corrupt, [&] { read_field(*source, "image", record); });
  };
  EXPECT_THAT(error(1), AllOf(HasSubstr("x.tar: member \"c/\\x01.png\" at offset 1536: "),
                              HasSubstr("damaged PNG")));
  EXPECT_THAT(error(2), AllOf(HasSubstr("nnn\\x0a.png\" (3007 bytes)"),
                              HasSubstr("4 bytes that begin 6e 6f 6e 65")));
  EXPECT_LT(error(2).size(), 600U);
  std::filesystem::resize_file(tar.path(), 1024 + 512 + 30);
  EXPECT_THAT(error(3), AllOf(HasSubstr("member \"c/b.png\""),
                              HasSubstr("the file was cut short since it was opened")));
  EXPECT_THAT(read_field(*source, "image", 0), Each(std::byte{1}));
}

TEST(ImageTar, CutAnywhereIsAnErrorOrTheSame) {
  const Bytes archive = make_tar(
      {{.name = "c/a.png", .data = grey_png(1)}, {.name = "d/b.png", .data = grey_png(2)}});
  std::size_t whole = 0;
  for (std::size_t size = 0; size < archive.size();
       size += size % 512 == 511 || size % 512 == 0 ? 1 : 37) {
    const TarFile tar(first_of(archive, size));
    try {
      const auto source = tar.open();
      EXPECT_THAT(labels(*source), ElementsAre(0, 1));
      EXPECT_THAT(read_field(*source, "image", 1), Each(std::byte{2}));
      ++whole;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
    }
  }
  EXPECT_GT(whole, 0U);
}

TEST(ImageTar, FingerprintsDifferWhereDataDo) {
  const auto fingerprint = [](const std::vector<TarEntry>& entries,
                              const ImageOptions& options = {}) {
    return TarFile(entries).open(options)->fingerprint();
  };
  auto other_label = webdataset(), other_image = webdataset();
  other_label[2].data = to_bytes("8\n");
  other_image[7].data = grey_png(5);
  std::vector<std::uint64_t> all{fingerprint(webdataset()), fingerprint(other_label),
                                 fingerprint(other_image),
                                 fingerprint(webdataset(), {.channels = 1})};
  EXPECT_EQ(all[0], fingerprint(webdataset()));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

}  // namespace
}  // namespace shardwise
