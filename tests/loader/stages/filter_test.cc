#include "shardwise/loader/stages/filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/stages/select.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::int32_t as_i32(const FieldValue& value) {
  std::int32_t number = 0;
  std::memcpy(&number, value.data.data(), sizeof(number));
  return number;
}

// Keeps numbers for which `keep` is true; counts the calls.
RecordPredicate of_numbers(std::string name, std::function<bool(std::int32_t)> keep,
                           std::atomic<int>* calls = nullptr) {
  return {.name = std::move(name),
          .fields = {"x"},
          .keep = [keep = std::move(keep), calls](std::span<const FieldValue> values) {
            if (calls != nullptr) ++*calls;
            return keep(as_i32(values[0]));
          }};
}

TEST(FilterStage, KeepsWhatAPlainLoopKeeps) {
  for (const std::int64_t size : {1, 63, 64, 65, 1024, 1025, 5000}) {
    for (const int threads : {1, 4}) {
      for (const std::int32_t modulus : {1, 2, 7, 64, 700}) {
        SCOPED_TRACE(size * 1000 + modulus);
        std::atomic<int> calls{0};
        const auto kept = filter(counted(size),
                                 of_numbers(
                                     "multiples", [&](auto x) { return x % modulus == 0; }, &calls),
                                 {.threads = threads});
        std::vector<std::int32_t> expected;
        for (std::int32_t x = 0; x < size; x += modulus) expected.push_back(x);
        EXPECT_EQ(epoch_of(*kept, 3), expected);
        EXPECT_EQ(calls, size);
      }
    }
  }
}

TEST(FilterStage, ReadsOnlyTheFieldsOfThePredicate) {
  const auto inner = std::make_shared<RaggedSource>(
      200, std::vector<Field>{
               {"a", DType::u8, {3}}, {"text", DType::u16, {20}, true}, {"b", DType::i16, {}}});
  const auto kept = filter(inner, {.name = "long",
                                   .fields = {"b"},
                                   .lengths = {"text"},
                                   .keep = [](std::span<const FieldValue> values) {
                                     EXPECT_EQ(values.size(), 2u);
                                     EXPECT_EQ(values[0].field->name, "b");
                                     EXPECT_EQ(values[0].data.size(), 2u);
                                     EXPECT_TRUE(values[1].data.empty());
                                     return values[1].length >= 16;
                                   }});
  for (const RaggedSource::Asked& asked : inner->take_asked()) EXPECT_EQ(asked.field, 2u);
  std::vector<std::int64_t> expected;
  for (std::int64_t record = 0; record < 200; ++record) {
    if (inner->length({record, 0, 0}, 1) >= 16) expected.push_back(record);
  }
  ASSERT_EQ(kept->size(), static_cast<std::int64_t>(expected.size()));
  RandomShardings random(1);
  for (std::int64_t i = 0; i < kept->size(); ++i) {
    EXPECT_EQ(whole_of(*kept, {i, 4, 2}, 1),
              whole_of(*inner, {expected[static_cast<std::size_t>(i)], 4, 2}, 1));
    EXPECT_GE(kept->length({i, 4, 2}, 1), 16);
    expect_boxes_of_whole(*kept, {i, 4, 2}, 3, random);
  }
}

TEST(FilterStage, TellsProgressUntilAll) {
  std::vector<std::int64_t> done;
  filter(counted(3000), of_numbers("all", [](auto) { return true; }),
         {.threads = 3, .progress = [&](std::int64_t now, std::int64_t total) {
            EXPECT_EQ(total, 3000);
            done.push_back(now);
          }});
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 3000);
  EXPECT_EQ(done.size(), 3u);
  const auto stop = [](std::int64_t, std::int64_t) {
    throw Error(ErrorCode::cancelled, "asked to stop");
  };
  EXPECT_EQ(message_of(ErrorCode::cancelled,
                       [&] {
                         filter(counted(3000), of_numbers("all", [](auto) { return true; }),
                                {.progress = stop});
                       }),
            "asked to stop");
}

TEST(FilterStage, AnErrorIsThatOfTheLowestRecordForAnyThreads) {
  const auto failing = std::make_shared<PatternSource>(
      20000, std::vector<Field>{{"x", DType::i32, {}}}, [](std::size_t, std::int64_t record) {
        if (record % 2500 == 2499) throw Error(ErrorCode::corrupt, "is damaged");
      });
  for (const int threads : {1, 2, 8}) {
    EXPECT_EQ(message_of(ErrorCode::corrupt,
                         [&] {
                           filter(failing, of_numbers("all", [](auto) { return true; }),
                                  {.threads = threads});
                         }),
              "filter \"all\": record 2499: is damaged");
  }
}

TEST(FilterStage, RefusesWhatItCannotDo) {
  const auto any = of_numbers("any", [](auto) { return true; });
  const auto source = counted(9);
  const auto nameless = of_numbers("", [](auto) { return true; });
  const RecordPredicate no_function{.name = "n", .fields = {"x"}, .keep = nullptr};
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] { filter(nullptr, any); }, "the source is null"},
      {[&] { filter(source, nameless); }, "name is empty"},
      {[&] { filter(source, no_function); }, "the function of \"n\" is null"},
      {[&] { filter(source, of_numbers("none", [](auto) { return false; })); },
       "\"none\" keeps none of 9 records, needed is one or more"},
      {[&] { filter(take(source, 1, 1), any); }, "keeps none of 0 records"},
      {[&] { filter(source, any, {.threads = 0}); }, "threads is 0, needed is 1 to 1024"},
      {[&] { filter(shuffle(source), any); }, "changes with the epoch"},
      {[&] { filter(take(mix({source}, {1}), 0, 3), any); }, "changes with the epoch"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, c.body), HasSubstr(c.message));
  }
  EXPECT_THAT(message_of(ErrorCode::no_such_name,
                         [&] { filter(source, {.name = "y", .fields = {"y"}, .keep = any.keep}); }),
              HasSubstr("no field \"y\""));
}

TEST(FilterStage, FingerprintTellsWhatIsKept) {
  const auto even = [](std::int32_t x) { return x % 2 == 0; };
  const auto print = [&](std::int64_t size, const char* name,
                         std::function<bool(std::int32_t)> keep) {
    return filter(counted(size), of_numbers(name, std::move(keep)))->fingerprint();
  };
  EXPECT_EQ(print(9, "even", even), print(9, "even", even));
  EXPECT_NE(print(9, "even", even), print(9, "pair", even));
  EXPECT_NE(print(9, "even", even), print(10, "even", even));
  EXPECT_NE(print(9, "even", even), print(9, "even", [](auto x) { return x < 4; }));
}

// Cache files.

struct CachedFilter {
  TempDir dir;
  std::filesystem::path path = dir / "kept";
  std::atomic<int> calls{0};

  std::vector<std::int32_t> run(std::int64_t size = 3000, const char* name = "sevenths",
                                std::int32_t first = 0) {
    calls = 0;
    return epoch_of(*filter(counted(size, first),
                            of_numbers(
                                name, [](auto x) { return x % 7 == 0; }, &calls),
                            {.threads = 2, .cache = path}),
                    0);
  }
  std::string content() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::int64_t files() const {
    return std::distance(std::filesystem::directory_iterator(dir.path()),
                         std::filesystem::directory_iterator());
  }
};

TEST(FilterCache, IsTakenTheSecondTime) {
  CachedFilter cached;
  const std::vector<std::int32_t> kept = cached.run();
  EXPECT_EQ(cached.calls, 3000);
  EXPECT_EQ(cached.run(), kept);
  EXPECT_EQ(cached.calls, 0);
  EXPECT_EQ(cached.files(), 1);
}

TEST(FilterCache, OfOtherDataOrPredicateIsMadeAgain) {
  CachedFilter cached;
  const std::vector<std::int32_t> kept = cached.run();
  EXPECT_NE(cached.run(2990), kept);
  EXPECT_EQ(cached.calls, 2990);
  EXPECT_NE(cached.run(3000, "sevenths", 1), kept);
  EXPECT_EQ(cached.calls, 3000);
  EXPECT_EQ(cached.run(), kept);
  EXPECT_EQ(cached.calls, 3000);
  EXPECT_EQ(cached.run(3000, "other name"), kept);
  EXPECT_EQ(cached.calls, 3000);
  EXPECT_EQ(cached.files(), 1);
}

TEST(FilterCache, DamageAnywhereIsFoundAndMendedOrRefused) {
  CachedFilter cached;
  const std::vector<std::int32_t> kept = cached.run(500);
  const std::string good = cached.content();
  ASSERT_EQ(good.size(), 64u + 8 * 8 + 8);
  for (std::size_t at = 0; at < good.size(); at += at < 64 ? 1 : 5) {
    SCOPED_TRACE(at);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write_file(cached.path, bad);
    if (at < 8) {  // not a cache, as far as one can tell
      EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { cached.run(500); }),
                  HasSubstr("is a file of another kind"));
      EXPECT_EQ(cached.content(), bad);
      continue;
    }
    ASSERT_EQ(cached.run(500), kept);
    EXPECT_EQ(cached.calls, 500);
    EXPECT_EQ(cached.content(), good);
  }
}

TEST(FilterCache, CutShortOrWithMoreBehindIsMadeAgain) {
  CachedFilter cached;
  const std::vector<std::int32_t> kept = cached.run(500);
  const std::string good = cached.content();
  for (std::size_t size = 8; size < good.size(); size += 12) {
    write_file(cached.path, good.substr(0, size));
    ASSERT_EQ(cached.run(500), kept) << size;
    EXPECT_EQ(cached.calls, 500);
  }
  write_file(cached.path, good + "12345678");
  EXPECT_EQ(cached.run(500), kept);
  EXPECT_EQ(cached.calls, 500);
  EXPECT_EQ(cached.content(), good);
}

TEST(FilterCache, AFileOfAnotherKindStays) {
  CachedFilter cached;
  for (const char* text : {"", "short", "a text that somebody wrote and wants to keep"}) {
    write_file(cached.path, std::string_view(text));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { cached.run(); }),
                HasSubstr("is a file of another kind"));
    EXPECT_EQ(cached.content(), text);
    EXPECT_EQ(cached.calls, 0);
  }
}

TEST(FilterCache, AFolderThatIsNotThereIsFoundBeforeTheWork) {
  CachedFilter cached;
  cached.path = cached.dir / "absent" / "kept";
  EXPECT_THROW(cached.run(), Error);
  EXPECT_EQ(cached.calls, 0);
}

TEST(FilterCache, AFailedEvaluationLeavesNoFile) {
  CachedFilter cached;
  EXPECT_THROW(
      filter(counted(10), of_numbers("fails", [](auto) -> bool { throw std::runtime_error("no"); }),
             {.cache = cached.path}),
      std::runtime_error);
  EXPECT_EQ(cached.files(), 0);
}

}  // namespace
}  // namespace shardwise
