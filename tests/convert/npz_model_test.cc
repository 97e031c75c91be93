#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/weight_bytes.h"
#include "convert/zip_bytes.h"
#include "shardwise/convert/detail/zip_directory.h"
#include "shardwise/convert/model.h"
#include "testing/errors.h"
#include "testing/memory_files.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<FileSystem> archive_of(std::string_view bytes) {
  const auto content = std::as_bytes(std::span(bytes));
  return std::make_shared<MemoryFileSystem>(
      MemoryFiles{{"m.npz", {content.begin(), content.end()}}});
}

ModelReader open_archive(std::string_view bytes) { return ModelReader("m.npz", archive_of(bytes)); }

std::string refusal(ErrorCode code, const std::string& bytes) {
  return message_of(code, [&] {
    const ModelReader reader = open_archive(bytes);
    for (std::size_t t = 0; t < reader.tensors().size(); ++t) all_of(reader, t);
  });
}

/// i32 numbers 0, 1, 2, .. in row-major order.
std::string counting(std::int32_t count) {
  std::string data;
  for (std::int32_t i = 0; i < count; ++i) data.append(reinterpret_cast<const char*>(&i), 4);
  return data;
}

TEST(NpzModel, EveryBoxIsReadFromStoredAndDeflatedMembers) {
  // 3 MiB: a deflated member is read from several places on.
  const Shape shape{64, 96, 128};
  const std::string data = counting(64 * 96 * 128);
  for (const Stored stored : {Stored::plain, Stored::deflated}) {
    const ModelReader reader =
        open_archive(zip_of({{"w.npy", npy_bytes("<i4", "(64, 96, 128)", data), stored}}));
    EXPECT_EQ(reader.format(), "npz");
    ASSERT_EQ(names_of(reader), "w;");
    EXPECT_EQ(reader.tensors()[0].shape, shape);
    const Box boxes[] = {Box({60, 3, 5}, {64, 90, 9}), Box({1, 0, 0}, {2, 96, 128}),
                         Box({0, 95, 127}, {64, 96, 128}), Box({0, 0, 0}, {1, 1, 1})};
    for (const Box& box : boxes) {
      std::vector<std::int32_t> out(as_size(box.num_elements()));
      reader.read(0, box, std::as_writable_bytes(std::span(out)));
      std::size_t at = 0;
      for (std::int64_t i = box.begin(0); i < box.end(0); ++i) {
        for (std::int64_t j = box.begin(1); j < box.end(1); ++j) {
          for (std::int64_t k = box.begin(2); k < box.end(2); ++k) {
            ASSERT_EQ(out[at++], (i * 96 + j) * 128 + k) << to_string(box);
          }
        }
      }
    }
  }
}

TEST(NpzModel, FortranOrderAndTheOtherByteOrderAreRead) {
  // [2, 3, 4] whose first dim varies fastest: element (i, j, k) is i + 2 j + 6 k.
  std::string swapped;
  for (char i = 0; i < 24; ++i) swapped += std::string{'\0', '\0', '\0', i};
  const ModelReader reader =
      open_archive(zip_of({{"w.npy", npy_bytes(">i4", "(2, 3, 4)", swapped, "True")}}));
  const Box box({0, 1, 1}, {2, 3, 4});
  std::vector<std::int32_t> out(12);
  reader.read(0, box, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(out, ElementsAre(8, 14, 20, 10, 16, 22, 9, 15, 21, 11, 17, 23));
}

TEST(NpzModel, WhatIsNoNumberIsToldAndBfloat16IsKnown) {
  const ModelReader reader = open_archive(zip_of({{"a.npy", npy_bytes("<V2", "(2,)", "abcd")},
                                                  {"o.npy", npy_bytes("|O", "(1,)", "\x80\4.")},
                                                  {"note.txt", "text"},
                                                  {"raw.npy", npy_bytes("|V2", "(1,)", "ab")}}));
  EXPECT_EQ(names_of(reader), "a;");
  EXPECT_EQ(reader.tensors()[0].dtype, DType::bf16);
  EXPECT_THAT(reader.left_out(),
              ElementsAre("\"o\": its elements are no numbers that shardwise has",
                          "\"note.txt\": it is no array",
                          "\"raw\": its elements are no numbers that shardwise has"));
  EXPECT_EQ(model_format("m.npz", archive_of(zip_of({{"archive/data.pkl", "x"}}))), "");
}

TEST(NpzModel, DamagedArchivesAreErrors) {
  const std::string array = npy_bytes("<i4", "(3,)", counting(3));
  const std::string good = zip_of({{"a.npy", array}, {"b.npy", array, Stored::deflated}});
  EXPECT_EQ(names_of(open_archive(good)), "a;b;");
  for (std::size_t size = 40; size < good.size(); ++size) {
    EXPECT_THAT(refusal(ErrorCode::corrupt, good.substr(0, size)), HasSubstr("m.npz"));
  }
  const auto changed = [&](ZipChange change) {
    return zip_of({{"a.npy", array, Stored::plain, change}, {"b.npy", array}});
  };
  const struct {
    ZipChange change;
    const char* message;
    ErrorCode code = ErrorCode::corrupt;
  } cases[] = {{{.crc = 1}, "tensor \"a\" of m.npz: its CRC is "},
               {{.bytes = 1}, "member \"a.npy\": it has "},
               {{.stored_bytes = 1}, "member \"a.npy\": it has "},
               {{.stored_bytes = 1000, .bytes = 1000}, "but what follows begins at "},
               {{.stored_bytes = std::uint64_t{1} << 63, .bytes = std::uint64_t{1} << 63},
                "but what follows begins at "},
               {{.header = 1}, "member \"a.npy\": it has no header"},
               {{.flags = 1}, "it is encrypted", ErrorCode::unsupported},
               {{.method = 12}, "compressed by method 12", ErrorCode::unsupported},
               {{.local_name = "c.npy"}, "its header says something else than the directory"},
               {{.local_method = 8}, "its header says something else than the directory"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(refusal(c.code, changed(c.change)),
                AllOf(HasSubstr("m.npz"), HasSubstr(c.message)));
  }
  EXPECT_THAT(refusal(ErrorCode::corrupt, zip_of({{"a.npy", array}, {"a.npy", array}})),
              HasSubstr("member \"a.npy\": it is there twice"));
  // Two entries of one member: inflated, they are larger than the file (a bomb).
  EXPECT_THAT(refusal(ErrorCode::corrupt,
                      zip_of({{"a.npy", array}, {"b.npy", array, Stored::plain, {.header = 0}}})),
              HasSubstr("its header and what follows are one"));
}

TEST(NpzModel, ADeflatedMemberHasExactlyItsBytes) {
  const std::string array = npy_bytes("<i4", "(300,)", counting(300));
  const auto with = [&](const std::string& content, ZipChange change = {}) {
    return refusal(ErrorCode::corrupt, zip_of({{"a.npy", content, Stored::deflated, change}}));
  };
  EXPECT_THAT(with(array + "x", {.bytes = array.size(), .crc = zip_crc_of(array)}),
              HasSubstr("it has more than the "));
  EXPECT_THAT(with(array.substr(0, 1000), {.bytes = array.size()}),
              HasSubstr("it ends at its byte 1000 of "));
  EXPECT_THAT(with(array, {.method = 8, .damage = true}), HasSubstr("tensor \"a\" of m.npz: it "));
  // A member that says it is large takes no memory before it is inflated.
  const std::string large = npy_bytes("<i4", "(1000000000000,)", "x");
  const ModelReader reader = open_archive(zip_of(
      {{"a.npy", large, Stored::deflated, {.bytes = large.size() - 1 + 4'000'000'000'000}}}));
  std::vector<std::byte> out(4);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { reader.read(0, Box({5}, {6}), out); }),
              HasSubstr("it ends at its byte 129 of 4000000000128"));
}

TEST(NpzModel, ZipOf64BitsAndCommentsAreRead) {
  const std::string array = npy_bytes("<i4", "(3,)", counting(3));
  const std::string plain = zip_of({{"a.npy", array}}, {.comment = "PK\5\6 a comment"});
  EXPECT_EQ(names_of(open_archive(plain)), "a;");
  const std::string zip64 = zip_of({{"a.npy", array}, {"b.npy", array}}, {.zip64 = true});
  const ModelReader reader = open_archive(zip64);
  EXPECT_EQ(names_of(reader), "a;b;");
  EXPECT_EQ(all_of(reader, 1).size(), 12u);
  EXPECT_THAT(refusal(ErrorCode::corrupt, zip_of({{"a.npy", array}}, {.entries = 2})),
              HasSubstr("entries"));
  EXPECT_THAT(
      refusal(ErrorCode::corrupt, zip_of({{"a.npy", array}, {"b.npy", array}}, {.entries = 1})),
      HasSubstr("its directory has more entries than it says"));
  EXPECT_THAT(
      refusal(ErrorCode::corrupt, zip_of({{"a.npy", array}}, {.zip64 = true, .entries = 1 << 30})),
      HasSubstr("says that it has 1073741824 entries"));
}

}  // namespace
}  // namespace shardwise
