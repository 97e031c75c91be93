#include "shardwise/loader/detail/files/tar_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "loader/images/image_files.h"
#include "testing/errors.h"
#include "testing/run_program.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using detail::TarBytes;
using detail::TarIndex;
using detail::TarMember;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Reads past the end are seen by a sanitizer.
TarBytes in_memory(const Bytes& archive) {
  return {archive.size(), [&archive](std::uint64_t offset, std::span<std::byte> out) {
            const std::size_t begin = std::min<std::size_t>(offset, archive.size());
            const std::size_t count = std::min(out.size(), archive.size() - begin);
            if (count > 0) std::memcpy(out.data(), archive.data() + begin, count);
            return count;
          }};
}

TarIndex index_of(const Bytes& archive) { return read_tar_index(in_memory(archive), {}); }

/// "name=content" of each member.
std::vector<std::string> contents(const Bytes& archive) {
  const TarIndex index = index_of(archive);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < index.size(); ++i) {
    const TarMember member = index[i];
    EXPECT_EQ(member.offset % 512, 0U);
    EXPECT_LE(member.offset + member.size_bytes, archive.size());
    const char* data = reinterpret_cast<const char*>(archive.data()) + member.offset;
    all.push_back(std::string(member.name) + (member.is_link ? "->" : "=") +
                  std::string(data, member.size_bytes));
  }
  return all;
}

std::string error_of(ErrorCode code, const Bytes& archive) {
  return message_of(code, [&] { index_of(archive); });
}

TEST(TarIndex, FindsFilesOfEveryDialect) {
  const std::string long_name = std::string(150, 'd') + '/' + std::string(120, 'f');
  const std::vector<TarEntry> entries{
      {.name = "plain", .data = to_bytes("abc")},
      {.name = "empty"},
      {.name = "folder/", .type = '5'},
      {.name = "old/folder/"},
      {.name = "old", .data = to_bytes("v7"), .type = '\0', .magic = {}},
      {.name = "block", .data = Bytes(512, std::byte{'x'})},
      {.name = std::string(100, 'n'), .data = to_bytes("full"), .prefix = std::string(155, 'p')},
      {.name = "not a prefix", .data = to_bytes("gnu"), .magic = "ustar  ", .prefix = "times"},
      {.name = "link", .data = {}, .type = '2', .size_field = "00000000007"},
      {.name = "hard", .data = {}, .type = '1', .size_field = "00000000007"},
      {.name = "fifo", .type = '6'},
      {.name = "././@LongLink", .data = to_bytes(long_name) + bytes({0}), .type = 'L'},
      {.name = "cut", .data = to_bytes("gnu long")},
      {.name = "././@LongLink", .data = to_bytes("far away"), .type = 'K'},
      {.name = "after", .data = to_bytes("1")},
      {.name = "pax",
       .data = to_bytes(pax_record("mtime", "1.5") + pax_record("path", long_name + "2") +
                        pax_record("size", "4")),
       .type = 'x'},
      {.name = "cut", .data = to_bytes("four"), .size_field = "00000000000"},
      {.name = "volume", .type = 'V'},
      {.name = "contiguous", .data = to_bytes("7"), .type = '7'},
      {.name = "vendor", .data = to_bytes("Z"), .type = 'Z'},
      {.name = "g", .data = to_bytes(pax_record("comment", "of all")), .type = 'g'},
      {.name = "blanks", .data = to_bytes("12345678"), .size_field = "        10 "}};
  EXPECT_THAT(
      contents(make_tar(entries)),
      ElementsAre("plain=abc", "empty=", "old=v7", "block=" + std::string(512, 'x'),
                  std::string(155, 'p') + '/' + std::string(100, 'n') + "=full", "not a prefix=gnu",
                  "link->", "hard->", long_name + "=gnu long", "after=1", long_name + "2=four",
                  "contiguous=7", "vendor=Z", "blanks=12345678"));
}

TEST(TarIndex, NamesAreOnlyNames) {
  const std::string hostile[] = {
      "../../etc/passwd", "/etc/passwd", "a\nb", "\xff\xfe", "..", "a", "a"};
  std::vector<TarEntry> entries;
  for (const std::string& name : hostile) entries.push_back({.name = name});
  const std::string with_nul("x\0y", 3), huge(900000, 'h');
  for (const std::string& name : {with_nul, huge}) {
    entries.push_back({.name = "p", .data = to_bytes(pax_record("path", name)), .type = 'x'});
    entries.push_back({.name = "short"});
  }
  const TarIndex index = index_of(make_tar(entries));
  ASSERT_EQ(index.size(), 9U);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(index[i].name, hostile[i]);
  EXPECT_EQ(index[7].name, with_nul);
  EXPECT_EQ(index[8].name, huge);
}

TEST(TarIndex, ReadsLargeSizesOfAnArchiveWithHoles) {
  // 9 GiB of zeros, none of them stored: only the headers are read.
  const std::uint64_t size = std::uint64_t{9} << 30;
  std::string base256(12, '\0');
  base256[0] = '\x80';
  for (std::size_t i = 0; i < 8; ++i) base256[4 + i] = static_cast<char>(size >> (56 - 8 * i));
  const Bytes first = tar_header({.name = "huge", .size_field = base256});
  const Bytes rest = make_tar({{.name = "next", .data = to_bytes("n")}});
  std::size_t calls = 0;
  const TarBytes bytes{
      512 + size + rest.size(), [&](std::uint64_t offset, std::span<std::byte> out) {
        ++calls;
        const bool in_rest = offset >= 512 + size;
        const Bytes& from = in_rest ? rest : first;
        const std::size_t begin = static_cast<std::size_t>(in_rest ? offset - 512 - size : offset);
        const std::size_t count = std::min(out.size(), from.size() - std::min(begin, from.size()));
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(begin), count, out.begin());
        return count;
      }};
  const TarIndex index = read_tar_index(bytes, {});
  ASSERT_EQ(index.size(), 2U);
  EXPECT_EQ(index[0].size_bytes, size);
  EXPECT_EQ(index[1].name, "next");
  EXPECT_EQ(index[1].header_offset, 512 + size);
  EXPECT_LT(calls, 8U);
}

TEST(TarIndex, RefusesSizesThatAreWrong) {
  std::string negative(12, '\xff'), over(12, '\xff'), past(12, '\0');
  over[0] = '\x80';
  past[0] = '\x80';
  past[4] = '\x7f';
  const struct {
    std::string size_field;
    const char* found;
  } cases[] = {{negative, "its size reads \"\\xff\\xff"},
               {over, "its size reads \"\\x80\\xff"},
               {"0000000009", "its size reads \"0000000009"},
               {"-0000000001", "its size reads \"-0000000001"},
               {"        ", "its size reads"},
               {"1 2", "its size reads \"1 2"},
               {"77777777777",
                "8589934591 bytes from offset 1536 on, needed are bytes within the archive's"},
               {past, "9151314442816847872 bytes from offset 1536 on"}};
  for (const auto& c : cases) {
    const Bytes archive =
        make_tar({{.name = "ok"}, {.name = "ok2"}, {.name = "bad\n", .size_field = c.size_field}});
    EXPECT_THAT(error_of(ErrorCode::corrupt, archive),
                AllOf(HasSubstr("member \"bad\\x0a\" at offset 1024: "), HasSubstr(c.found)));
  }
}

TEST(TarIndex, RefusesDamage) {
  Bytes flipped = make_tar({{.name = "a", .data = to_bytes("x")}, {.name = "b"}});
  flipped[1024 + 5] = std::byte{'!'};
  EXPECT_THAT(error_of(ErrorCode::corrupt, flipped),
              HasSubstr("header at offset 1024: its checksum is wrong"));
  EXPECT_THAT(error_of(ErrorCode::corrupt, {}), HasSubstr("0 bytes are left, needed is a header"));
  EXPECT_THAT(error_of(ErrorCode::corrupt, Bytes(100)), HasSubstr("100 bytes are left"));
  EXPECT_THAT(
      error_of(ErrorCode::corrupt, tar_entry({.name = "a"})),
      HasSubstr(
          "header at offset 512: 0 bytes are left, needed is a header of 512 or two of zeros"));
  const Bytes one = make_tar({{.name = "a"}});
  EXPECT_THAT(error_of(ErrorCode::corrupt, one + one),
              HasSubstr("needed is one archive, not several"));
  EXPECT_THAT(error_of(ErrorCode::corrupt, one + Bytes(200000) + bytes({1})),
              HasSubstr("bytes follow"));
  EXPECT_THAT(contents(one + Bytes(200000)), ElementsAre("a="));
  EXPECT_THAT(
      error_of(ErrorCode::corrupt, make_tar({{.name = "l", .data = to_bytes("n"), .type = 'L'}})),
      HasSubstr("the archive ends after an extended header"));
  EXPECT_THAT(error_of(ErrorCode::corrupt,
                       make_tar({{.name = "l", .data = Bytes((1 << 20) + 1), .type = 'x'}})),
              HasSubstr("a pax header of 1048577 bytes, needed is at most 1048576"));
}

TEST(TarIndex, RefusesPaxHeadersThatAreWrong) {
  for (const std::string text : {"x", "12", "5 a=b\n", "7 a=b\n", "6 a=b ", "6\na=b\n", "0 a=b\n",
                                 "3 \n", "-6 a=b\n", "99999999999999999999999 a=b\n"}) {
    EXPECT_THAT(
        error_of(ErrorCode::corrupt,
                 make_tar({{.name = "x", .data = to_bytes(text), .type = 'x'}, {.name = "y"}})),
        HasSubstr("header at offset 0: a pax header with "));
  }
  for (const std::string size : {"-1", "9223372036854775808", "1x", " 1"}) {
    EXPECT_THAT(
        error_of(ErrorCode::corrupt,
                 make_tar({{.name = "x", .data = to_bytes(pax_record("size", size)), .type = 'x'},
                           {.name = "y"}})),
        HasSubstr("a pax header with size"));
  }
}

TEST(TarIndex, RefusesWhatCannotBeReadInPlace) {
  const struct {
    Bytes archive;
    const char* found;
  } cases[] = {
      {gzip(make_tar({{.name = "a"}})), "an archive packed by gzip, needed is a plain one"},
      {to_bytes("BZh91AY") + Bytes(600), "packed by bzip2"},
      {bytes({0x28, 0xb5, 0x2f, 0xfd}), "packed by zstd"},
      {bytes({0xfd, '7', 'z', 'X', 'Z', 0}), "packed by xz"},
      {make_tar({{.name = "s", .type = 'S'}}), "member \"s\" at offset 0: is a sparse file"},
      {make_tar({{.name = "m", .type = 'M'}}), "began in another volume"},
      {make_tar(
           {{.name = "x", .data = to_bytes(pax_record("GNU.sparse.major", "1")), .type = 'x'}}),
       "a sparse file"}};
  for (const auto& c : cases) {
    EXPECT_THAT(error_of(ErrorCode::unsupported, c.archive), HasSubstr(c.found));
  }
}

TEST(TarIndex, CutAnywhereIsAnErrorOrTheSame) {
  const Bytes archive =
      make_tar({{.name = "a", .data = to_bytes("abc")},
                {.name = "p", .data = to_bytes(pax_record("path", "long")), .type = 'x'},
                {.name = "b", .data = Bytes(513, std::byte{1})}});
  const std::vector<std::string> whole = contents(archive);
  for (std::size_t size = 0; size < archive.size(); ++size) {
    const Bytes part = first_of(archive, size);
    if (size < archive.size() - 512) {
      EXPECT_NE(error_of(ErrorCode::corrupt, part), "");
    } else {
      EXPECT_EQ(contents(part), whole);  // one block of zeros is an end
    }
  }
}

TEST(TarIndex, ChangedAnywhereIsAnErrorOrAnIndex) {
  const Bytes archive =
      make_tar({{.name = "a", .data = to_bytes("abc")},
                {.name = "p",
                 .data = to_bytes(pax_record("path", "long") + pax_record("size", "5")),
                 .type = 'x'},
                {.name = "b", .data = to_bytes("12345")}});
  std::mt19937 random(3);
  for (int i = 0; i < 4000; ++i) {
    Bytes changed = archive;
    const std::size_t at = random() % (5 * 512);
    changed[at] = static_cast<std::byte>(random());
    try {
      contents(changed);  // checks its bounds
    } catch (const Error& error) {
      EXPECT_THAT(error.code(), AnyOf(ErrorCode::corrupt, ErrorCode::unsupported));
    }
  }
}

TEST(TarIndex, ReadsWhatTarWrites) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "in/sub");
  const std::string long_name(180, 'l');
  write_file(dir / "in/a.txt", "hello");
  write_file(dir / ("in/sub/" + long_name), "long");
  for (const std::string format : {"ustar", "gnu", "pax", "v7"}) {
    SCOPED_TRACE(format);
    const std::string path = (dir / "x.tar").string();
    const bool all = format == "gnu" || format == "pax";
    std::vector<std::string> command{
        "/bin/tar", "--format=" + format, "-C", (dir / "in").string(), "-cf", path, "a.txt"};
    if (all) command.push_back("sub");
    ASSERT_TRUE(ends_by_itself(command));
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (all) {
      EXPECT_THAT(contents(to_bytes(text)),
                  ElementsAre("a.txt=hello", "sub/" + long_name + "=long"));
    } else {
      EXPECT_THAT(contents(to_bytes(text)), ElementsAre("a.txt=hello"));
    }
  }
}

TEST(TarIndex, TellsHowFarItIs) {
  const Bytes entry = tar_entry({.name = "a"});
  Bytes archive;
  for (int i = 0; i < 9000; ++i) archive.insert(archive.end(), entry.begin(), entry.end());
  archive.resize(archive.size() + 1024);
  std::vector<std::int64_t> told;
  read_tar_index(in_memory(archive),
                 [&](std::int64_t entries_so_far) { told.push_back(entries_so_far); });
  EXPECT_THAT(told, ElementsAre(4096, 8192, 9000));
  EXPECT_THROW(
      read_tar_index(in_memory(archive), [](std::int64_t) { throw std::runtime_error("stop"); }),
      std::runtime_error);
}

}  // namespace
}  // namespace shardwise
