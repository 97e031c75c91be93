#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "loader/images/image_files.h"
#include "shardwise/loader/detail/image/resize.h"
#include "shardwise/loader/open_source.h"
#include "shardwise/loader/sources/images.h"
#include "testing/errors.h"
#include "testing/random_boxes.h"
#include "testing/random_shardings.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

namespace fs = std::filesystem;

/// A PNG of one colour, so that it can be told from others.
Bytes flat_png(int value, std::uint32_t height = 2, std::uint32_t width = 3, int channels = 3) {
  return make_png(height, width, channels,
                  Bytes(std::size_t{height} * width * static_cast<std::size_t>(channels),
                        static_cast<std::byte>(value)));
}

void put(const TempDir& dir, const std::string& name, const Bytes& content) {
  fs::create_directories((dir / name).parent_path());
  write_file(dir / name, content);
}

std::vector<std::string> names_of(const ImageSource& source) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < source.size(); ++i) names.push_back(source.record_name(i));
  return names;
}

std::vector<std::int64_t> labels_of(const Source& source) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < source.size(); ++i) labels.push_back(read_label(source, i));
  return labels;
}

std::string open_error(ErrorCode code, const TempDir& dir, const ImageOptions& options = {}) {
  return message_of(code, [&] { open_image_folder(dir.path(), options); });
}

TEST(ImageFolder, NumbersClassesAndOrdersImagesAsTorchvision) {
  const TempDir dir;
  for (const char* name : {"dog/b.png", "dog/a.PNG", "cat/z.png", "Zebra/1.png", "dog/sub/0.png",
                           "dog/sub-x/9.png", "dog/sub/in/8.png", "cat/10.png", "cat/9.png"}) {
    put(dir, name, flat_png(1));
  }
  for (const char* name :
       {"cat/readme.txt", "cat/.hidden.png", ".cache/x.png", "outside.png", "notes.csv"}) {
    put(dir, name, to_bytes("no image"));
  }
  const auto source = open_image_folder(dir.path());
  EXPECT_THAT(source->class_names(), ElementsAre("Zebra", "cat", "dog"));
  EXPECT_THAT(names_of(*source),
              ElementsAre("Zebra/1.png", "cat/10.png", "cat/9.png", "cat/z.png", "dog/a.PNG",
                          "dog/b.png", "dog/sub/0.png", "dog/sub-x/9.png", "dog/sub/in/8.png"));
  EXPECT_THAT(labels_of(*source), ElementsAre(0, 1, 1, 1, 2, 2, 2, 2, 2));
  const Field image{"image", DType::u8, {2, 3, 3}}, label{"label", DType::i64, {}};
  EXPECT_THAT(source->fields(), ElementsAre(image, label));
}

TEST(ImageFolder, AFolderOfImagesHasNoLabels) {
  const TempDir dir;
  put(dir, "b.png", flat_png(7));
  put(dir, "a.jpg",
      make_jpeg({.height = 2, .width = 3, .channels = 3, .pixels = smooth_pixels(2, 3, 3)}));
  put(dir, "texts/readme.txt", to_bytes("x"));
  const auto source = open_image_folder(dir.path());
  EXPECT_THAT(names_of(*source), ElementsAre("a.jpg", "b.png"));
  const Field image{"image", DType::u8, {2, 3, 3}};
  EXPECT_THAT(source->fields(), ElementsAre(image));
  EXPECT_THAT(source->class_names(), IsEmpty());
  EXPECT_THAT(read_field(*source, "image", 1), Each(std::byte{7}));
}

TEST(ImageFolder, WithoutLabelsTakesImagesWhereverTheyLie) {
  const TempDir dir;
  for (const char* name : {"b/1.png", "a/x/2.png", "top.png"}) put(dir, name, flat_png(1));
  const auto source = open_image_folder(dir.path(), {.labels = ImageLabels::none});
  EXPECT_THAT(names_of(*source), ElementsAre("top.png", "a/x/2.png", "b/1.png"));
  EXPECT_EQ(source->fields().size(), 1U);
}

TEST(ImageFolder, ConvertsAndScalesEveryRecord) {
  const TempDir dir;
  const Bytes pixels = pattern_pixels(20, 30, 3);
  put(dir, "x/a.png", make_png(20, 30, 3, pixels));
  put(dir, "x/b.jpg",
      make_jpeg({.height = 9, .width = 5, .channels = 1, .pixels = smooth_pixels(9, 5, 1)}));
  put(dir, "x/c.png", flat_png(99, 40, 4, 4));
  put(dir, "x/d.jpg", flat_png(55, 8, 6, 1));  // ImageNet has such names, too
  for (const ImageResize mode : {ImageResize::stretch, ImageResize::crop}) {
    for (const std::int64_t channels : {1, 3, 4}) {
      const auto source = open_image_folder(
          dir.path(), {.height = 8, .width = 6, .channels = channels, .resize = mode});
      EXPECT_EQ(source->fields()[0].shape, (Shape{8, 6, channels}));
      if (channels == 3) {
        const detail::ImageSize from{20, 30}, to{8, 6};
        Bytes expected(8 * 6 * 3);
        detail::ScratchMemory scratch;
        resize_image(pixels.data(), from, 3,
                     mode == ImageResize::crop ? detail::cropped(from, to) : detail::stretched(to),
                     1000, scratch, expected.data());
        EXPECT_EQ(read_field(*source, "image", 0), expected);
      }
      EXPECT_EQ(read_field(*source, "image", 1).size(), static_cast<std::size_t>(48 * channels));
      EXPECT_THAT(read_field(*source, "image", 2), Each(std::byte{99}));
      if (channels < 4) {
        EXPECT_THAT(read_field(*source, "image", 3), Each(std::byte{55}));
      }
    }
  }
}

TEST(ImageFolder, ReadsAnyBoxesInOneCall) {
  const TempDir dir;
  put(dir, "c0/a.png", make_png(7, 9, 3, pattern_pixels(7, 9, 3)));
  put(dir, "c1/b.png", make_png(7, 9, 3, smooth_pixels(7, 9, 3)));
  const auto source = open_image_folder(dir.path());
  const Box whole = Box::whole({7, 9, 3});
  RandomShardings random(5);
  for (int i = 0; i < 60; ++i) {
    const std::int64_t record = i % 2;
    const Bytes pixels = record == 0 ? pattern_pixels(7, 9, 3) : smooth_pixels(7, 9, 3);
    std::vector<Box> places;
    if (i % 3 == 0) places.push_back(whole);
    for (int n = 0; n < i % 4; ++n) places.push_back(random_box(whole, random));
    if (i % 5 == 0) places.push_back(whole);
    places.push_back(Box({2, 3, 1}, {2, 5, 2}));  // nothing
    std::vector<Bytes> found;
    for (const Box& box : places) found.emplace_back(num_bytes(box.shape(), 1));
    std::int64_t label = -1;
    std::vector<FieldBox> boxes{{1, {reinterpret_cast<std::byte*>(&label), Box()}}};
    for (std::size_t n = 0; n < places.size(); ++n)
      boxes.push_back({0, {found[n].data(), places[n]}});
    source->read({.record = record}, boxes);
    EXPECT_EQ(label, record);
    for (std::size_t n = 0; n < places.size(); ++n) {
      Bytes expected;
      for (const Index& at : indices_of(places[n]))
        expected.push_back(pixels[offset_in(whole, at)]);
      EXPECT_EQ(found[n], expected) << to_string(places[n]);
    }
  }
}

TEST(ImageFolder, ThreadsReadTheSame) {
  const TempDir dir;
  for (int i = 0; i < 8; ++i) {
    put(dir, std::to_string(i) + ".png", flat_png(i, static_cast<std::uint32_t>(5 + i), 7));
  }
  const auto source = open_image_folder(dir.path(), {.height = 6, .width = 6});
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          const int record = (i + static_cast<int>(t)) % 8;
          const Bytes found = read_field(*source, "image", record);
          wrong[t] += found != Bytes(6 * 6 * 3, static_cast<std::byte>(record)) ? 1 : 0;
        }
      });
    }
  }
  EXPECT_THAT(wrong, Each(0));
}

TEST(ImageFolder, LabelsAloneOpenNoFile) {
  const TempDir dir;
  put(dir, "a/1.png", flat_png(1));
  put(dir, "b/2.png", flat_png(2));
  const auto source = open_image_folder(dir.path());
  fs::remove(dir / "b/2.png");
  EXPECT_EQ(read_label(*source, 1), 1);
}

TEST(ImageFolder, ErrorsOfReadingNameTheFile) {
  const TempDir dir;
  const Bytes jpeg =
      make_jpeg({.height = 2, .width = 3, .channels = 3, .pixels = pattern_pixels(2, 3, 3)});
  for (const char* name :
       {"a.png", "gone.png", "text.png", "cut.jpg", "other.png", "shrunk.jpg", "big.png"}) {
    put(dir, name, flat_png(1));
  }
  put(dir, "text.png", to_bytes("not an image"));
  put(dir, "cut.jpg", first_of(jpeg, jpeg.size() - 4));
  put(dir, "other.png", flat_png(1, 3, 2));
  put(dir, "shrunk.jpg", jpeg);
  put(dir, "big.png", flat_png(1, 100, 101));
  const auto source = open_image_folder(dir.path(), {.max_pixels = 10000});
  fs::remove(dir / "gone.png");
  fs::resize_file(dir / "shrunk.jpg", 300);
  const auto error = [&](ErrorCode code, const std::string& name) {
    const auto names = names_of(*source);
    const auto record = std::find(names.begin(), names.end(), name) - names.begin();
    const std::string message = message_of(code, [&] { read_field(*source, "image", record); });
    EXPECT_THAT(message, HasSubstr((dir / name).string()));
    return message;
  };
  error(ErrorCode::not_found, "gone.png");
  EXPECT_THAT(error(ErrorCode::corrupt, "text.png"),
              AllOf(StartsWith("read image: "),
                    HasSubstr("12 bytes that begin 6e 6f 74 20, needed are those of a PNG")));
  EXPECT_THAT(error(ErrorCode::corrupt, "cut.jpg"),
              HasSubstr("damaged JPEG: Premature end of JPEG file"));
  error(ErrorCode::corrupt, "shrunk.jpg");
  EXPECT_THAT(
      error(ErrorCode::invalid_argument, "other.png"),
      HasSubstr(
          "3 x 2 pixels, needed is the first image's 2 x 3, or a height and width to scale to"));
  EXPECT_THAT(error(ErrorCode::unsupported, "big.png"),
              HasSubstr("100 x 101 pixels, needed is at most 10000"));
  EXPECT_THAT(read_field(*source, "image", 0), Each(std::byte{1}));  // after all that
}

TEST(ImageFolder, AFileOfHolesIsNotReadIntoMemory) {
  const TempDir dir;
  put(dir, "a.png", flat_png(1));
  put(dir, "b.png", flat_png(1));
  fs::resize_file(dir / "b.png", std::uintmax_t{1} << 40);
  const auto source = open_image_folder(dir.path());
  EXPECT_THAT(
      message_of(ErrorCode::unsupported, [&] { read_field(*source, "image", 1); }),
      AllOf(HasSubstr("b.png: 1099511627776 bytes, needed is at most "), HasSubstr("max_pixels")));
}

TEST(ImageFolder, RefusesFoldersThatAreNone) {
  const TempDir dir;
  EXPECT_THAT(open_error(ErrorCode::not_found, dir),
              HasSubstr("no image in it, needed is .png, .jpg or .jpeg"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { open_image_folder(dir / "absent"); }),
              HasSubstr("absent"));
  put(dir, "file", to_bytes("x"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { open_image_folder(dir / "file"); }),
              HasSubstr("file"));
  put(dir, "cat/1.png", flat_png(1));
  fs::create_directories(dir / "dog/sub");
  EXPECT_THAT(open_error(ErrorCode::not_found, dir),
              HasSubstr("dog: a class folder without an image"));
  put(dir, "dog/x.webp", to_bytes("x"));
  EXPECT_THAT(open_error(ErrorCode::unsupported, dir),
              HasSubstr("dog/x.webp: an image of another format, needed is PNG or JPEG"));
}

TEST(ImageFolder, FollowsLinksButNotForEver) {
  const TempDir dir, far;
  put(far, "1.png", flat_png(3));
  fs::create_directories(dir / "a");
  fs::create_directory_symlink(far.path(), dir / "b");
  fs::create_symlink(far / "1.png", dir / "a/l.png");
  EXPECT_THAT(names_of(*open_image_folder(dir.path())), ElementsAre("a/l.png", "b/1.png"));
  fs::create_symlink(far / "absent.png", dir / "a/m.png");
  EXPECT_THAT(open_error(ErrorCode::not_found, dir), HasSubstr("a/m.png"));
  fs::remove(dir / "a/m.png");
  fs::create_directory_symlink(dir.path(), dir / "a/up");
  EXPECT_THAT(open_error(ErrorCode::unsupported, dir), HasSubstr("a/up: a link that leads back"));
  fs::remove(dir / "a/up");
  ASSERT_EQ(mkfifo((dir / "a/pipe.png").c_str(), 0600), 0);
  EXPECT_THAT(open_error(ErrorCode::io, dir), HasSubstr("a/pipe.png: not a regular file"));
}

TEST(ImageFolder, RefusesOptionsThatAreWrong) {
  const TempDir dir;
  put(dir, "a.png", flat_png(1));
  const struct {
    ImageOptions options;
    const char* found;
  } cases[] = {{{.channels = 2}, "channels is 2, needed is 1, 3 or 4"},
               {{.height = 3}, "height is 3 and width 0, needed are two of 1 or more"},
               {{.height = -1, .width = 4}, "height is -1"},
               {{.height = 100, .width = 101, .max_pixels = 10000}, "with at most 10000 pixels"},
               {{.height = INT64_MAX, .width = INT64_MAX}, "height is 9223372036854775807"},
               {{.max_pixels = 0}, "max_pixels is 0, needed is 1 to"},
               {{.byte_fields = {"json"}}, "byte field \"json\"; only a tar has byte fields"}};
  for (const auto& c : cases) {
    EXPECT_THAT(open_error(ErrorCode::invalid_argument, dir, c.options), HasSubstr(c.found));
  }
}

TEST(ImageFolder, FingerprintsDifferWhereDataDo) {
  const auto fingerprint = [](const std::function<void(const TempDir&)>& change,
                              const ImageOptions& options) {
    const TempDir dir;
    for (int i = 0; i < 100; ++i)
      put(dir, std::to_string(i % 3) + "/" + std::to_string(i) + ".png", flat_png(i));
    change(dir);
    return open_image_folder(dir.path(), options)->fingerprint();
  };
  const ImageOptions small{.height = 4, .width = 4};
  const auto nothing = [](const TempDir&) {};
  const std::uint64_t first = fingerprint(nothing, small);
  EXPECT_EQ(first, fingerprint(nothing, small));
  std::vector<std::uint64_t> all{
      first,
      fingerprint(nothing, {.height = 4, .width = 5}),
      fingerprint(nothing, {.height = 4, .width = 4, .channels = 1}),
      fingerprint(nothing, {.height = 4, .width = 4, .resize = ImageResize::crop}),
      fingerprint(nothing, {.height = 4, .width = 4, .labels = ImageLabels::none}),
      fingerprint([](const TempDir& dir) { put(dir, "0/0.png", flat_png(77)); }, small),
      fingerprint([](const TempDir& dir) { put(dir, "0/3.png", flat_png(3, 3, 3)); }, small),
      fingerprint([](const TempDir& dir) { fs::rename(dir / "0/3.png", dir / "0/4.png"); }, small),
      fingerprint([](const TempDir& dir) { fs::rename(dir / "1", dir / "00"); }, small),
      fingerprint([](const TempDir& dir) { fs::remove(dir / "2/50.png"); }, small)};
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

TEST(ImageFolder, FingerprintsDecodeNothing) {
  const TempDir dir;
  put(dir, "a.png", to_bytes("not an image"));
  EXPECT_NE(open_image_folder(dir.path(), {.height = 4, .width = 4})->fingerprint(), 0U);
}

TEST(ImageFolder, TellsHowFarItIs) {
  const TempDir dir;
  for (int i = 0; i < 1100; ++i) write_file(dir / (std::to_string(i) + ".txt"), "");
  put(dir, "c/1.png", flat_png(1));
  std::vector<std::int64_t> told;
  open_image_folder(dir.path(),
                    {.progress = [&](std::int64_t entries) { told.push_back(entries); }});
  EXPECT_THAT(told, ElementsAre(1024, 1102));
}

TEST(ImageFolder, IsOpenedByATextToo) {
  const TempDir dir;
  put(dir, "cat/1.png", flat_png(7));
  put(dir, "dog/1.png", flat_png(9));
  const std::string text = "images:" + dir.path().string();
  const auto source = open_source(text + "?height=4&width=5&channels=1&resize=crop");
  EXPECT_EQ(source->fields()[0], (Field{"image", DType::u8, {4, 5, 1}}));
  EXPECT_THAT(labels_of(*source), ElementsAre(0, 1));
  EXPECT_EQ(open_source(text + "?labels=none")->fields().size(), 1u);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { open_source(text + "?resize=fit"); }),
              HasSubstr("resize is \"fit\", needed is \"stretch\" or \"crop\""));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { open_source(text + "?size=4"); }),
              AllOf(HasSubstr("size"), HasSubstr("height, width")));

  write_file(dir / "a.tar", make_tar({{.name = "0.png", .data = flat_png(7)},
                                      {.name = "0.cls", .data = to_bytes("3")},
                                      {.name = "0.json", .data = to_bytes("{}")}}));
  const auto tar = open_source("tar:" + (dir / "a.tar").string() + "?bytes=json");
  EXPECT_EQ(tar->fields()[tar->field_index("json")].shape, Shape{2});
  EXPECT_THAT(labels_of(*tar), ElementsAre(3));
}

}  // namespace
}  // namespace shardwise
