#include "shardwise/jobs/detail/save/terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "shardwise/checkpoint/detail/record/packer.h"
#include "testing/errors.h"

namespace shardwise::jobs_detail {
namespace {

SaveTerms terms() {
  return terms_of(7, {.codec = Codec::none, .writers = 2}, 12,
                  LocalRoots{.copies = 1, .processes_per_host = 4}, 2);
}

SaveTerms sent(const SaveTerms& terms) {
  Packer packer;
  put(packer, terms);
  const Bytes message = sealed(packer.take());
  Unpacker unpacker = Unpacker::of_sealed(message, "terms");
  SaveTerms taken = take_terms(unpacker);
  unpacker.end();
  return taken;
}

TEST(SaveTerms, ArriveAsTheyWereSent) {
  EXPECT_EQ(sent(terms()), terms());
  EXPECT_EQ(sent(SaveTerms()), SaveTerms());
  const SaveTerms without_roots = terms_of(0, {}, 0, std::nullopt, 0);
  EXPECT_EQ(without_roots.copies, -1);
  EXPECT_EQ(sent(without_roots), without_roots);
}

TEST(SaveTerms, ThatDifferAreNamedWithBothValues) {
  struct Case {
    std::function<void(SaveTerms&)> change;
    const char* needed;
  };
  const std::string user = "user_json a text with the hash " + to_hex(terms().user) +
                           ", rank 5 with a text with the hash " + to_hex(std::uint64_t{1}) + ":";
  for (const Case& test : {
           Case{[](SaveTerms& t) { t.step = 8; }, "step 7, rank 5 with 8:"},
           Case{[](SaveTerms& t) { t.codec = Codec::zstd; }, "codec none, rank 5 with zstd:"},
           Case{[](SaveTerms& t) { t.existing = Existing::replace; },
                "existing fail, rank 5 with replace:"},
           Case{[](SaveTerms& t) { t.writers = 1; }, "writers 2, rank 5 with 1:"},
           Case{[](SaveTerms& t) { t.devices = 0; }, "devices 12, rank 5 with 0:"},
           Case{[](SaveTerms& t) { t.most_failed_saves = 3; },
                "most_failed_saves 2, rank 5 with 3:"},
           Case{[](SaveTerms& t) { t.most_failed_saves = 0; },
                "most_failed_saves 2, rank 5 with none (OnSaveError::raise):"},
           Case{[](SaveTerms& t) { t.copies = -1; },
                "local_roots 1 copies and 4 processes per host, rank 5 with none:"},
           Case{[](SaveTerms& t) { t.processes_per_host = 2; },
                "rank 5 with 1 copies and 2 processes per host:"},
           Case{[](SaveTerms& t) { t.user = 1; }, user.c_str()},
           Case{[](SaveTerms& t) { t.objects = 1; }, "objects_json a text with the hash "},
       }) {
    SCOPED_TRACE(test.needed);
    SaveTerms other = terms();
    test.change(other);
    const std::string text = difference(terms(), other, 5);
    EXPECT_THAT(text, testing::StartsWith("rank 0 saves with "));
    EXPECT_THAT(text, testing::HasSubstr(test.needed));
    EXPECT_THAT(text, testing::EndsWith(": needed is the same on all ranks"));
  }
  EXPECT_EQ(difference(terms(), terms(), 5), "");
}

TEST(SaveTerms, OutOfTheirBoundsAreRefused) {
  for (const auto& change : std::initializer_list<std::function<void(SaveTerms&)>>{
           [](SaveTerms& t) { t.step = -1; },
           [](SaveTerms& t) { t.codec = static_cast<Codec>(9); },
           [](SaveTerms& t) { t.existing = static_cast<Existing>(3); },
           [](SaveTerms& t) { t.writers = 0; },
           [](SaveTerms& t) { t.devices = -1; },
           [](SaveTerms& t) { t.most_failed_saves = -1; },
           [](SaveTerms& t) { t.copies = -2; },
           [](SaveTerms& t) { t.processes_per_host = -1; },
       }) {
    SaveTerms other = terms();
    change(other);
    message_of(ErrorCode::invalid_argument, [&] { sent(other); });
  }
}

}  // namespace
}  // namespace shardwise::jobs_detail
