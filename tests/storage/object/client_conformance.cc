#include "storage/object/client_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "shardwise/shard/error.h"

#define SHARDWISE_ASSERT_DONE(request)                                   \
  do {                                                                   \
    const RequestResult asserted = (request);                            \
    ASSERT_EQ(asserted.status, RequestStatus::done) << asserted.message; \
  } while (false)

namespace shardwise {

void ClientConformance::check_all() {
  check_whole_objects();
  check_ranges();
  check_conditions();
  check_races();
  check_listings();
  check_keys();
  check_uploads();
}

void ClientConformance::check_whole_objects() {
  const std::string k = prefix_ + "whole/a";
  EXPECT_EQ(text_of(k), "not_found");
  EXPECT_EQ(head_of(k).status, RequestStatus::not_found);
  const std::string first = put(k, "one"), second = put(k, "three");
  EXPECT_NE(first, second);
  EXPECT_FALSE(second.empty());
  EXPECT_EQ(text_of(k), "three");
  ObjectInfo info;
  SHARDWISE_ASSERT_DONE(client_.head(k, info));
  EXPECT_EQ(info.key, k);
  EXPECT_EQ(info.size, 5U);
  EXPECT_EQ(info.etag, second);
  EXPECT_GT(info.modified, 0);
  const std::string empty = put(k, "");
  SHARDWISE_ASSERT_DONE(client_.head(k, info));
  EXPECT_EQ(info.size, 0U);
  EXPECT_EQ(info.etag, empty);
  SHARDWISE_ASSERT_DONE(client_.get(k, 0, {}, ""));
  SHARDWISE_ASSERT_DONE(client_.remove(k));
  EXPECT_EQ(text_of(k), "not_found");
  SHARDWISE_ASSERT_DONE(client_.remove(k));  // again
}

void ClientConformance::check_ranges() {
  const std::string k = prefix_ + "ranges/a", text = letters(100'000);
  const std::string etag = put(k, text);
  struct Range {
    std::size_t offset, size;
  };
  for (const auto [offset, size] : {Range{0, 1},
                                    {1, 1},
                                    {99'999, 1},
                                    {0, 100'000},
                                    {4'095, 4'098},
                                    {50'000, 50'000},
                                    {7, 0},
                                    {100'000, 0}}) {
    SCOPED_TRACE(offset);
    EXPECT_EQ(range_of(k, offset, size, ""), text.substr(offset, size));
    EXPECT_EQ(range_of(k, offset, size, etag), text.substr(offset, size));
  }
  for (const auto [offset, size] : {Range{100'000, 1}, {99'999, 2}, {0, 100'001}, {200'000, 3}}) {
    SCOPED_TRACE(offset);
    EXPECT_EQ(range_of(k, offset, size, ""), "corrupt");
  }
  EXPECT_EQ(range_of(k + "b", 0, 1, ""), "not_found");
  EXPECT_EQ(range_of(k + "b", 0, 0, ""), "not_found");
}

void ClientConformance::check_conditions() {
  const std::string k = prefix_ + "conditions/a";
  std::string etag, other;
  SHARDWISE_ASSERT_DONE(client_.put(k, bytes("one"), {.if_absent = true}, etag));
  EXPECT_EQ(client_.put(k, bytes("two"), {.if_absent = true}, other).status,
            RequestStatus::condition_failed);
  EXPECT_EQ(text_of(k), "one");
  const std::string old = etag;
  SHARDWISE_ASSERT_DONE(client_.put(k, bytes("three"), {.if_match = old}, etag));
  EXPECT_NE(etag, old);
  EXPECT_EQ(client_.put(k, bytes("four"), {.if_match = old}, other).status,
            RequestStatus::condition_failed);
  EXPECT_EQ(text_of(k), "three");
  EXPECT_EQ(range_of(k, 0, 5, etag), "three");
  EXPECT_EQ(range_of(k, 0, 5, old), "condition_failed");
  EXPECT_EQ(range_of(k, 0, 0, old), "condition_failed");
  SHARDWISE_ASSERT_DONE(client_.remove(k));
  // Stores differ in the status; none of them puts.
  const RequestStatus gone = client_.put(k, bytes("five"), {.if_match = etag}, other).status;
  EXPECT_TRUE(gone == RequestStatus::not_found || gone == RequestStatus::condition_failed);
  EXPECT_EQ(text_of(k), "not_found");
  SHARDWISE_ASSERT_DONE(client_.put(k, bytes("six"), {.if_absent = true}, etag));
}

void ClientConformance::check_races() {
  constexpr int kWriters = 8, kRounds = 2;
  for (int round = 0; round < 2 * kRounds; ++round) {
    SCOPED_TRACE(round);
    const std::string k = prefix_ + "races/" + std::to_string(round);
    PutCondition condition{.if_absent = true};
    if (round >= kRounds) condition = {.if_match = put(k, "before")};
    std::vector<RequestStatus> ends(kWriters);
    std::vector<std::string> etags(kWriters);
    {
      std::vector<std::jthread> writers;
      for (int i = 0; i < kWriters; ++i) {
        writers.emplace_back([&, i] {
          RequestStatus& end = ends[static_cast<std::size_t>(i)];
          do {  // a 409 says to try again
            end = client_
                      .put(k, bytes("writer " + std::to_string(i)), condition,
                           etags[static_cast<std::size_t>(i)])
                      .status;
          } while (end == RequestStatus::busy);
        });
      }
    }
    EXPECT_EQ(std::ranges::count(ends, RequestStatus::done), 1);
    EXPECT_EQ(std::ranges::count(ends, RequestStatus::condition_failed), kWriters - 1);
    const auto winner = std::ranges::find(ends, RequestStatus::done) - ends.begin();
    ASSERT_LT(winner, kWriters);
    EXPECT_EQ(text_of(k), "writer " + std::to_string(winner));
    ObjectInfo info;
    SHARDWISE_ASSERT_DONE(client_.head(k, info));
    EXPECT_EQ(info.etag, etags[static_cast<std::size_t>(winner)]);
  }
}

void ClientConformance::check_listings() {
  const std::string p = prefix_ + "list/";
  std::map<std::string, std::string> etags;
  for (const std::string_view name : {"a", "b/1", "b/2", "b/c/3", "b-", "d/4"}) {
    etags[p + std::string(name)] = put(p + std::string(name), name);
  }
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of(p, ""), (Names{"a", "b-", "b/1", "b/2", "b/c/3", "d/4"}));
  EXPECT_EQ(names_of(p, "/"), (Names{"a", "b-", "b/", "d/"}));
  EXPECT_EQ(names_of(p + "b/", "/"), (Names{"b/1", "b/2", "b/c/"}));
  EXPECT_EQ(names_of(p + "b", "/"), (Names{"b-", "b/"}));
  EXPECT_EQ(names_of(p + "x", "/"), Names{});
  ObjectPage page;
  SHARDWISE_ASSERT_DONE(client_.list(p, "", "", page));
  for (const ObjectInfo& object : page.objects) {
    EXPECT_EQ(object.etag, etags[object.key]);
    EXPECT_EQ(object.size, object.key.size() - p.size());
    EXPECT_GT(object.modified, 0);
  }
  SHARDWISE_ASSERT_DONE(client_.remove(p + "b/1"));
  EXPECT_EQ(names_of(p + "b/", ""), (Names{"b/2", "b/c/3"}));
}

void ClientConformance::check_pages(int keys) {
  const std::string p = prefix_ + "pages/";
  std::vector<std::string> needed;
  for (int i = 0; i < keys; ++i) {
    std::string number = std::to_string(i);
    number.insert(0, 6 - number.size(), '0');
    needed.push_back(number);
    put(p + number, "");
  }
  std::vector<std::string> found;
  std::string from;
  int pages = 0;
  do {
    ObjectPage page;
    SHARDWISE_ASSERT_DONE(client_.list(p, "", from, page));
    for (const ObjectInfo& object : page.objects) found.push_back(object.key.substr(p.size()));
    from = page.next;
    ++pages;
  } while (!from.empty());
  std::ranges::sort(found);
  EXPECT_EQ(found, needed);
  EXPECT_GT(pages, 1);
}

void ClientConformance::check_keys() {
  const std::string p = prefix_ + "keys/";
  std::vector<std::string> needed;
  for (const std::string_view name :
       {" blank ", "%41", "a&b=c", "a+b", "a+b c", "a<b>\"'", "a?b#c", "a~b", "plus+", "z%2Fz",
        "\xc3\xa4\xe6\xb0\xb4\xf0\x9f\x99\x82", "(*)!$,;:@[]{}|^`"}) {
    needed.emplace_back(name);
    put(p + needed.back(), name);
  }
  std::ranges::sort(needed);
  std::vector<std::string> found = names_of(p, "", p);
  EXPECT_EQ(found, needed);
  for (const std::string& name : needed) EXPECT_EQ(text_of(p + name), name);
  for (const std::string& name : needed) SHARDWISE_ASSERT_DONE(client_.remove(p + name));
  EXPECT_TRUE(names_of(p, "", p).empty());
}

void ClientConformance::check_uploads() {
  constexpr std::size_t kPart = std::size_t{5} << 20;
  const std::string k = prefix_ + "uploads/a", p = prefix_ + "uploads/";
  OpenUpload upload{k, ""}, other{k, ""};
  SHARDWISE_ASSERT_DONE(client_.begin_upload(k, upload.id));
  SHARDWISE_ASSERT_DONE(client_.begin_upload(k, other.id));
  EXPECT_NE(upload.id, other.id);
  const std::string text = letters(kPart + 12'345);
  std::vector<std::string> etags(2);
  SHARDWISE_ASSERT_DONE(client_.put_part(upload, 2, bytes(text.substr(kPart)), etags[1]));
  SHARDWISE_ASSERT_DONE(client_.put_part(upload, 1, bytes("to be replaced"), etags[0]));
  SHARDWISE_ASSERT_DONE(client_.put_part(upload, 1, bytes(text.substr(0, kPart)), etags[0]));
  EXPECT_EQ(text_of(k), "not_found");
  std::vector<OpenUpload> open;
  SHARDWISE_ASSERT_DONE(client_.list_uploads(p, open));
  EXPECT_EQ(open.size(), 2U);
  EXPECT_TRUE(std::ranges::find(open, upload) != open.end());
  EXPECT_TRUE(std::ranges::find(open, other) != open.end());
  std::string etag;
  SHARDWISE_ASSERT_DONE(client_.complete_upload(upload, etags, etag));
  EXPECT_FALSE(etag.empty());
  ObjectInfo info;
  SHARDWISE_ASSERT_DONE(client_.head(k, info));
  EXPECT_EQ(info.size, text.size());
  EXPECT_EQ(info.etag, etag);
  EXPECT_EQ(range_of(k, 0, text.size(), etag), text);
  EXPECT_EQ(range_of(k, kPart - 3, 10, etag), text.substr(kPart - 3, 10));

  SHARDWISE_ASSERT_DONE(client_.abort_upload(other));
  SHARDWISE_ASSERT_DONE(client_.abort_upload(other));  // again
  EXPECT_EQ(client_.put_part(other, 1, bytes("late"), etags[0]).status, RequestStatus::not_found);
  EXPECT_EQ(client_.complete_upload(other, {&etags[1], 1}, etag).status, RequestStatus::not_found);
  SHARDWISE_ASSERT_DONE(client_.list_uploads(p, open));
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(range_of(k, 0, 3, ""), text.substr(0, 3));
}

std::span<const std::byte> ClientConformance::bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string ClientConformance::letters(std::size_t size) {
  std::string text(size, '\0');
  std::uint32_t state = 1;
  for (char& c : text) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>('a' + (state >> 24) % 26);
  }
  return text;
}

std::string ClientConformance::name_of(RequestStatus status) {
  switch (status) {
    case RequestStatus::done:
      return "done";
    case RequestStatus::not_found:
      return "not_found";
    case RequestStatus::condition_failed:
      return "condition_failed";
    case RequestStatus::busy:
      return "busy";
    case RequestStatus::unknown:
      return "unknown";
  }
  return "";
}

std::string ClientConformance::put(const std::string& key, std::string_view text) {
  std::string etag;
  const RequestResult result = client_.put(key, bytes(text), {}, etag);
  EXPECT_TRUE(result.ok()) << result.message;
  return etag;
}

RequestResult ClientConformance::head_of(const std::string& key) {
  ObjectInfo info;
  return client_.head(key, info);
}

std::string ClientConformance::range_of(const std::string& key, std::uint64_t offset,
                                        std::size_t size, const std::string& if_match) {
  std::string text(size, '?');
  try {
    const RequestResult result =
        client_.get(key, offset, std::as_writable_bytes(std::span(text)), if_match);
    return result.ok() ? text : name_of(result.status);
  } catch (const Error& error) {
    return std::string(name(error.code()));
  }
}

std::string ClientConformance::text_of(const std::string& key) {
  ObjectInfo info;
  const RequestResult result = client_.head(key, info);
  return result.ok() ? range_of(key, 0, info.size, info.etag) : name_of(result.status);
}

std::vector<std::string> ClientConformance::names_of(const std::string& prefix,
                                                     const std::string& delimiter,
                                                     std::string below) {
  if (below.empty()) below = prefix_ + "list/";
  ObjectPage page;
  const RequestResult result = client_.list(prefix, delimiter, "", page);
  EXPECT_TRUE(result.ok()) << result.message;
  EXPECT_TRUE(page.next.empty());
  std::vector<std::string> names;
  for (const ObjectInfo& object : page.objects) names.push_back(object.key.substr(below.size()));
  for (const std::string& folded : page.prefixes) names.push_back(folded.substr(below.size()));
  std::ranges::sort(names);
  return names;
}

}  // namespace shardwise
