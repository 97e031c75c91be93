#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "loader/idx_files.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/text.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Source> open_table(std::string_view text, const CsvOptions& options = {}) {
  return detail::open_csv(file_of(text), options);
}

std::string refused_table(std::string_view text, const CsvOptions& options = {},
                          ErrorCode code = ErrorCode::corrupt) {
  return message_of(code, [&] { open_table(text, options); });
}

TEST(Csv, FindsOutTypes) {
  const auto source = open_table(
      "i,f,text,empty,mixed,hole\r\n"
      "1,1.5,hello,,7,1\r\n"
      "-9223372036854775808,-2e-3,\"a \"\"b\"\", c\",,x,\r\n"
      "\r\n"
      "\"3\", nan ,,,8,+3");
  EXPECT_EQ(source->size(), 3);
  ASSERT_THAT(source->fields(),
              ElementsAre(Field{"i", DType::i64, {}}, Field{"f", DType::f64, {}},
                          Field{"text", DType::u8, {8}, true}, Field{"empty", DType::u8, {0}, true},
                          Field{"mixed", DType::u8, {1}, true}, Field{"hole", DType::f64, {}}));
  EXPECT_THAT(read_values<std::int64_t>(*source, 0, 1), ElementsAre(INT64_MIN));
  EXPECT_THAT(read_values<std::int64_t>(*source, 0, 2), ElementsAre(3));
  EXPECT_THAT(read_values<double>(*source, 1, 1), ElementsAre(-2e-3));
  EXPECT_TRUE(std::isnan(read_values<double>(*source, 1, 2)[0]));
  EXPECT_EQ(read_text(*source, 2, 0), "hello");
  EXPECT_EQ(read_text(*source, 2, 1), "a \"b\", c");
  EXPECT_EQ(read_text(*source, 2, 2), "");
  EXPECT_EQ(read_text(*source, 3, 2), "");
  EXPECT_EQ(read_text(*source, 4, 0), "7");
  EXPECT_EQ(read_text(*source, 4, 1), "x");
  EXPECT_EQ(read_text(*source, 4, 2), "8");
  EXPECT_TRUE(std::isnan(read_values<double>(*source, 5, 1)[0]));
  EXPECT_THAT(read_values<double>(*source, 5, 2), ElementsAre(3));
  expect_boxes_agree(*source, 100, 5);
}

TEST(Csv, KeepsLargeWholeNumbersOrSaysThatItCannot) {
  const auto source = open_table("id\n9007199254740993\n18446744073709551615\n");
  ASSERT_THAT(source->fields(), ElementsAre(Field{"id", DType::u64, {}}));
  EXPECT_THAT(read_values<std::uint64_t>(*source, 0, 0), ElementsAre(9007199254740993));
  EXPECT_THAT(read_values<std::uint64_t>(*source, 0, 1), ElementsAre(UINT64_MAX));
  for (const char* table : {"id\n9007199254740993\n0.5\n", "id,x\n9007199254740993,1\n,2\n",
                            "id\n-1\n18446744073709551615\n", "id\n18446744073709551616\n"}) {
    EXPECT_THAT(refused_table(table, {}, ErrorCode::unsupported),
                AllOf(HasSubstr("field \"id\""), HasSubstr("id=f64 or id=text")));
    CsvOptions given;
    given.fields = {{.name = "id", .dtype = DType::f64}};
    EXPECT_EQ(open_table(table, given)->fields()[0].dtype, DType::f64);
  }
  EXPECT_EQ(open_table("x\n9007199254740992\n0.5\n")->fields()[0].dtype, DType::f64);
}

TEST(Csv, RefusesATableOfWhichNoRecordIsWhole) {
  EXPECT_THAT(refused_table("a,b\n1,2,3\n4\n"), HasSubstr("found 2 records, none with 2 cells"));
  EXPECT_EQ(open_table("a,b\n1,2,3\n4,5\n")->size(), 2);
  EXPECT_EQ(open_table("a,b\n")->size(), 0);
}

// As many columns as a table of genes has, ten times. A loop over all columns for each of them
// would take hours.
TEST(Csv, OpensWideTables) {
  constexpr std::int64_t kColumns = 400'000;
  std::string header, numbers;
  for (std::int64_t i = 0; i < kColumns; ++i) {
    header += fmt::format("{}c{}", i == 0 ? "" : ",", i);
    numbers += fmt::format("{}{}", i == 0 ? "" : ",", i);
  }
  const auto source = open_table(header + "\n" + numbers + "\n");
  ASSERT_EQ(std::ssize(source->fields()), kColumns);
  EXPECT_EQ(source->fields()[kColumns - 1].name, "c399999");
  EXPECT_THAT(read_values<std::int64_t>(*source, kColumns - 1, 0), ElementsAre(kColumns - 1));
  EXPECT_THAT(refused_table(header + ",c7\n"), HasSubstr("names column \"c7\" twice"));
}

TEST(Csv, TakesTypesAndListsOfColumns) {
  const auto source =
      open_table("a;b;c\n1;2;0\n4;5.25;1\n",
                 {.fields = {{.name = "pair", .dtype = DType::f32, .columns = {"b", "a"}},
                             {.name = "c", .dtype = DType::boolean},
                             {.name = "half", .dtype = DType::bf16, .columns = {"b"}},
                             {.name = "a", .text = true},
                             {.name = "found", .columns = {"a", "c"}}},
                  .delimiter = ';'});
  EXPECT_EQ(source->fields()[0], (Field{"pair", DType::f32, {2}}));
  EXPECT_THAT(read_values<float>(*source, 0, 1), ElementsAre(5.25F, 4.0F));
  EXPECT_THAT(read_values<std::uint8_t>(*source, 1, 1), ElementsAre(1));
  EXPECT_THAT(read_values<std::uint16_t>(*source, 2, 1), ElementsAre(f32_to_bf16(5.25F)));
  EXPECT_EQ(read_text(*source, 3, 1), "4");
  EXPECT_EQ(source->fields()[4], (Field{"found", DType::i64, {2}}));
  EXPECT_THAT(read_values<std::int64_t>(*source, 4, 1), ElementsAre(4, 1));
  expect_boxes_agree(*source, 100, 6);
}

TEST(Csv, ReadsHeadersAsTheyCome) {
  EXPECT_EQ(open_table("\xef\xbb\xbf\"a b\"\n1\n")->fields()[0].name, "a b");
  const auto names = [](std::string_view table) {
    std::vector<std::string> all;
    const auto source = open_table(table);
    for (const Field& field : source->fields()) all.push_back(field.name);
    return all;
  };
  // As pandas.read_csv names them.
  EXPECT_THAT(names(",0,1,2\n0,5,6,7\n"), ElementsAre("Unnamed: 0", "0", "1", "2"));
  EXPECT_THAT(names("a,,\n0,5,6\n"), ElementsAre("a", "Unnamed: 1", "Unnamed: 2"));
  EXPECT_THAT(names(",Unnamed: 0,x\n0,0,1\n"), ElementsAre("Unnamed: 0.1", "Unnamed: 0", "x"));
  EXPECT_THAT(names(",Unnamed: 0.1,Unnamed: 0\n0,0,1\n"),
              ElementsAre("Unnamed: 0.2", "Unnamed: 0.1", "Unnamed: 0"));
  const auto bare = open_table("5,6\n7,8\n", {.header = false});
  EXPECT_EQ(bare->size(), 2);
  EXPECT_EQ(bare->fields()[1], (Field{"1", DType::i64, {}}));
  EXPECT_EQ(open_table("a,b\n")->size(), 0);
  EXPECT_EQ(open_table("a,b")->fields().size(), 2u);
}

TEST(Csv, RefusesTextThatIsNotUtf8) {
  const auto wide = [](std::string_view text, bool big_end) {
    std::string all;
    for (const char c : text) all += big_end ? std::string{'\0', c} : std::string{c, '\0'};
    return all;
  };
  const auto iconv = [](const char* from) {
    return HasSubstr(fmt::format("needed UTF-8, as from \"iconv -f {} -t UTF-8\"", from));
  };
  for (const std::string& table :
       {"\xff\xfe" + wide("a,b\n1,2\n", false), "\xfe\xff" + wide("a,b\n1,2\n", true),
        wide("a,b\n1,2\n", false), wide("a,b\n1,2\n", true)}) {
    EXPECT_THAT(refused_table(table), AllOf(HasSubstr("here: line 1: found "), iconv("UTF-16")));
  }
  EXPECT_THAT(refused_table("caf\xe9,b\n1,2\n"), AllOf(HasSubstr("line 1"), iconv("LATIN1")));
  EXPECT_THAT(refused_table("a,b\n1,x\n2,\"y\nz\n\xe9\"\n"),
              AllOf(HasSubstr("here: line 5: found bytes that are no UTF-8"), iconv("LATIN1")));
  EXPECT_THAT(refused_table("a\n\xe9\n", {.fields = {{.name = "a", .text = true}}}),
              HasSubstr("here: line 2"));
  EXPECT_EQ(read_text(*open_table("\xef\xbb\xbf"
                                  "a\ncaf\xc3\xa9\n"),
                      0, 0),
            "caf\xc3\xa9");
}

TEST(Csv, UnpacksGzip) {
  const TempDir dir;
  write_file(dir / "d.csv.gz", gzip(bytes_of("a,b\n1,x\n")) + gzip(bytes_of("2,yz\n")));
  const auto source = open_csv(dir / "d.csv.gz");
  EXPECT_EQ(source->size(), 2);
  EXPECT_EQ(read_text(*source, 1, 1), "yz");
  EXPECT_EQ(source->fingerprint(), open_table("a,b\n1,x\n2,yz\n")->fingerprint());
  Bytes cut = gzip(bytes_of("a\n1\n"));
  cut.resize(cut.size() - 3);
  write_file(dir / "cut", cut);
  message_of(ErrorCode::corrupt, [&] { open_csv(dir / "cut"); });
}

TEST(Csv, NamesTheLineOfBrokenQuotes) {
  EXPECT_THAT(refused_table("a,b\n1,2\n3,4\"5\n"),
              HasSubstr("here: line 3: a quote within a cell that does not begin with one"));
  EXPECT_THAT(refused_table("a,b\n\"1\n2\",2\n\"3\"x,4\n"),
              HasSubstr("line 4: text between a closing quote and the next delimiter"));
  EXPECT_THAT(refused_table("a,b\n1,2\n3,\"4\n5,6\n"),
              HasSubstr("line 3: a quote that is not closed before the end of the file"));
  EXPECT_THAT(refused_table("a,b\n1,2\r3,4\n"),
              HasSubstr("line 2: a carriage return without a line"));
  EXPECT_THAT(refused_table("a,b\n1,2\r"), HasSubstr("line 2: a carriage return without a line"));
  EXPECT_THAT(refused_table("a\"\n"), HasSubstr("line 1: a quote within a cell"));
}

TEST(Csv, RejectsWhatItCannotBe) {
  constexpr ErrorCode bad = ErrorCode::invalid_argument;
  EXPECT_THAT(refused_table(""), HasSubstr("it has no record, needed is one with the columns"));
  EXPECT_THAT(refused_table("\n\r\n"), HasSubstr("it has no record"));
  EXPECT_THAT(refused_table("a,a\n"), HasSubstr("the header names column \"a\" twice"));
  EXPECT_THAT(refused_table("a,b\n", {.fields = {{.name = "c"}}}, ErrorCode::not_found),
              HasSubstr("there is no column \"c\"; it has \"a\", \"b\""));
  EXPECT_THAT(refused_table("a,b\n", {.fields = {{.name = "a"}, {.name = "a"}}}, bad),
              HasSubstr("field \"a\" is asked for twice"));
  EXPECT_THAT(
      refused_table("a\n", {.fields = {{.name = "a", .dtype = DType::f32, .text = true}}}, bad),
      HasSubstr("is text with a dtype"));
  EXPECT_THAT(refused_table("a\n", {.fields = {{.name = "a", .dtype = DType::c64}}},
                            ErrorCode::unsupported),
              HasSubstr("field \"a\" is c64, needed is a number or bool"));
  EXPECT_THAT(refused_table("a\n", {.delimiter = '"'}, bad), HasSubstr("the delimiter is a quote"));
  EXPECT_THAT(refused_table("a,b\n1,x\n", {.fields = {{.name = "f", .columns = {"a", "b"}}}}, bad),
              HasSubstr("needed are numbers in all; record 0 has \"x\""));
}

// A record that is wrong does not keep the others from being read.
TEST(Csv, ReportsABadRecordWhenItIsRead) {
  const auto source = open_table("n,t\n1,a\n2\n\"x\ny\",c\n4,d,5\n300,e\n6,f\n",
                                 {.fields = {{.name = "n", .dtype = DType::u8}, {.name = "t"}}});
  ASSERT_EQ(source->size(), 6);
  EXPECT_EQ(read_text(*source, 1, 0), "a");
  EXPECT_EQ(read_text(*source, 1, 2), "c");
  EXPECT_EQ(read_text(*source, 1, 5), "f");
  EXPECT_THAT(read_values<std::uint8_t>(*source, 0, 5), ElementsAre(6));
  const auto failure = [&](std::int64_t record, std::size_t field) {
    return message_of(ErrorCode::corrupt, [&] { read_whole(*source, field, record); });
  };
  EXPECT_THAT(failure(1, 0), HasSubstr("read: here: record 1 at offset 8, line 3: has 1 cells, "
                                       "needed is 2"));
  EXPECT_THAT(failure(2, 0), HasSubstr("record 2 at offset 10, line 4: column \"n\" has \"x?y\", "
                                       "needed is a number of type u8"));
  EXPECT_THAT(failure(3, 1), HasSubstr("line 6: has 3 cells, needed is 2"));
  EXPECT_THAT(failure(4, 0), HasSubstr("has \"300\", needed is a number of type u8"));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { source->length({.record = 3}, 1); }),
              HasSubstr("has 3 cells, needed is 2"));
}

TEST(Csv, NumbersAreStrict) {
  const auto reads = [](const char* cell, DType dtype) {
    const auto source =
        open_table(fmt::format("a,b\n{},1\n", cell), {.fields = {{.name = "a", .dtype = dtype}}});
    try {
      read_whole(*source, 0, 0);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  for (const char* good : {"1", " 1\t", "+1", "\"1\""}) {
    for (const DType dtype : compute_dtypes()) EXPECT_TRUE(reads(good, dtype)) << good;
  }
  for (const char* wrong : {"1x", "+-1", "--1", "0x1", "1 2", "+", "one"}) {
    for (const DType dtype : compute_dtypes()) EXPECT_FALSE(reads(wrong, dtype)) << wrong;
  }
  EXPECT_TRUE(reads("", DType::f32));
  EXPECT_FALSE(reads("", DType::i32));
  EXPECT_FALSE(reads("1.5", DType::i32));
  EXPECT_FALSE(reads("-1", DType::u64));
  EXPECT_FALSE(reads("1e999", DType::f64));
  EXPECT_FALSE(reads("2", DType::boolean));
  EXPECT_TRUE(reads("-128", DType::i8));
  EXPECT_FALSE(reads("128", DType::i8));
}

std::string quoted_cell(const std::string& value) {
  std::string cell = "\"";
  for (const char c : value) cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  return cell + '"';
}

// Random tables, larger than a read of the source, written and read again.
TEST(Csv, ReadsAnyTableThatIsWritten) {
  std::mt19937 random(7);
  constexpr std::string_view kLetters[] = {"a", "b", ",", "\"", "\n", "\r", "\xc3\xa4", " ", "0"};
  for (const bool large : {false, true}) {
    for (int round = 0; round < (large ? 2 : 60); ++round) {
      const std::size_t columns = 1 + random() % 4, rows = large ? 40000 : random() % 30;
      std::vector<std::vector<std::string>> table(rows, std::vector<std::string>(columns));
      std::string text;
      for (std::size_t c = 0; c < columns; ++c) text += fmt::format("{}c{}", c == 0 ? "" : ",", c);
      for (auto& row : table) {
        text += random() % 2 == 0 ? "\n" : "\r\n";
        if (random() % 9 == 0) text += "\n";
        for (std::size_t c = 0; c < columns; ++c) {
          for (std::size_t n = random() % (large ? 30 : 6); n > 0; --n) {
            row[c] += kLetters[random() % std::size(kLetters)];
          }
          const bool plain = row[c].find_first_of(",\"\r\n") == std::string::npos &&
                             !(columns == 1 && row[c].empty());
          text += (c == 0 ? "" : ",");
          text += plain && random() % 2 == 0 ? row[c] : quoted_cell(row[c]);
        }
      }
      if (random() % 2 == 0) text += "\n";
      CsvOptions options{.hold_bytes = random() % 2 == 0 ? 0 : kDefaultHoldBytes};
      for (std::size_t c = 0; c < columns; ++c) {
        options.fields.push_back({.name = fmt::format("c{}", c), .text = true});
      }
      const auto source = open_table(text, options);
      ASSERT_EQ(source->size(), static_cast<std::int64_t>(rows));
      for (std::size_t r = 0; r < rows; r += large ? 997 : 1) {
        for (std::size_t c = 0; c < columns; ++c) {
          ASSERT_EQ(read_text(*source, c, static_cast<std::int64_t>(r)), table[r][c]);
        }
      }
      expect_boxes_agree(*source, 10, static_cast<unsigned>(round));
    }
  }
}

TEST(Csv, TellsItsProgressAndStopsWhenAsked) {
  std::string text = "a\n";
  while (text.size() < (std::size_t{70} << 20)) text.append(1 << 20, 'x').push_back('\n');
  std::vector<std::uint64_t> done;
  open_table(text, {.progress = [&](std::uint64_t bytes, std::uint64_t all) {
               EXPECT_EQ(all, text.size());
               done.push_back(bytes);
             }});
  ASSERT_EQ(done.size(), 2u);
  EXPECT_GE(done[0], std::uint64_t{64} << 20);
  EXPECT_EQ(done[1], text.size());
  const auto stop = [](std::uint64_t, std::uint64_t) {
    throw Error(ErrorCode::cancelled, "asked to stop");
  };
  EXPECT_THAT(refused_table("a\n", {.progress = stop}, ErrorCode::cancelled), "asked to stop");
}

TEST(Csv, SaysWhereItWasCutOrChanged) {
  for (const std::size_t hold : {std::size_t{0}, std::size_t{1000}}) {
    const auto content = std::make_shared<Bytes>(bytes_of("a,b\n1,x\n2,yy\n3,z\n"));
    const auto source = detail::open_csv(file_of(content), {.hold_bytes = hold});
    content->resize(10);
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 1); }),
                AllOf(HasSubstr("record 1 at offset 8"), HasSubstr("cut short")));
    *content = bytes_of("a,b\n1,x\n2,y\n\n3,z\n");
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 1, 1); }),
                HasSubstr("had another length when the file was opened"));
  }
}

TEST(Csv, SurvivesEveryDamage) {
  for (const std::size_t hold : {std::size_t{0}, std::size_t{1000}}) {
    open_every_damage(
        bytes_of("a,b c,\"d\"\r\n1,2.5,\"x\"\"\n,y\"\r\n\r\n-3,,z\n"),
        [&](auto file) { return detail::open_csv(std::move(file), {.hold_bytes = hold}); });
  }
}

}  // namespace
}  // namespace shardwise
