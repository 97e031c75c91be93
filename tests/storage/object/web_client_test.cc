#include "shardwise/storage/object/detail/web_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "storage/object/faulty_server.h"
#include "storage/object/web_file.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using enum RequestStatus;

class WebClientTest : public testing::Test {
 public:
  ServedWebFile served{"/d/f.bin", "0123456789"};
  std::shared_ptr<detail::HttpClient> http =
      std::make_shared<detail::HttpClient>(detail::HttpOptions{});
  detail::WebFile file = open(served.url());

  detail::WebFile open(const std::string& url) const { return detail::open_web_file(url, http); }

  RequestResult head() { return file.client->head(file.key, info); }
  RequestResult get(std::size_t size, std::uint64_t offset, const std::string& if_match = "") {
    text.assign(size, '?');
    return file.client->get(file.key, offset, std::as_writable_bytes(std::span(text)), if_match);
  }

  ObjectInfo info;
  std::string text;
};

TEST_F(WebClientTest, GetsRangesOfOneVersion) {
  ASSERT_TRUE(head().ok());
  EXPECT_EQ(info.size, 10u);
  EXPECT_EQ(info.etag, "\"1\"");
  ASSERT_TRUE(get(3, 4, info.etag).ok());
  EXPECT_EQ(text, "456");
  served.set("abcdefghij", "\"2\"");
  EXPECT_EQ(get(3, 4, info.etag).status, condition_failed);
  served.heeds_if_match = false;
  EXPECT_EQ(get(3, 4, info.etag).status, condition_failed);
  served.path = "/elsewhere";
  EXPECT_EQ(head().status, not_found);
}

TEST_F(WebClientTest, AsksForAByteIfHeadIsRefused) {
  for (const int status : {403, 405, 501}) {
    served.change = [status](const ServedRequest& request, ServedAnswer& answer) {
      if (request.method == "HEAD") answer = {.status = status};
    };
    ASSERT_TRUE(head().ok()) << status;
    EXPECT_EQ(info.size, 10u);
  }
  served.set("", "\"e\"");
  ASSERT_TRUE(head().ok());
  EXPECT_EQ(info.size, 0u);
}

TEST_F(WebClientTest, TakesTheTimeOfTheLastChangeWithoutAStrongETag) {
  served.set("0123456789", "W/\"1\"");
  ASSERT_TRUE(head().ok());
  EXPECT_EQ(info.etag, ServedWebFile::kTime);
  EXPECT_TRUE(get(1, 0, info.etag).ok());
  served.change = [](const ServedRequest&, ServedAnswer& answer) {
    answer.headers["Last-Modified"] = "Mon, 12 Oct 2009 17:50:31 GMT";
  };
  EXPECT_EQ(get(1, 0, info.etag).status, condition_failed);
  served.change = [](const ServedRequest&, ServedAnswer& answer) {
    answer.headers.erase("Last-Modified");
  };
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { head(); }),
              HasSubstr("found neither an ETag nor Last-Modified"));
}

TEST_F(WebClientTest, RefusesOtherBytesThanThoseAskedFor) {
  struct Case {
    ServedAnswer answer;
    const char* found;
  };
  const auto part = [](const char* range, const char* body) {
    return ServedAnswer{.status = 206, .headers = {{"Content-Range", range}}, .body = body};
  };
  for (const Case& one :
       {Case{part("bytes 3-5/10", "345"), "Content-Range \"bytes 3-5/10\""},
        Case{part("bytes 2-4/10", "23"), "an object of 4 bytes"},
        Case{part("bytes 2-4/10", "2345"), "more than 3 bytes"}, Case{part("", "234"), "\"\""},
        Case{ServedAnswer{.body = "012"}, "the object from its beginning"}}) {
    SCOPED_TRACE(one.found);
    served.change = [&](const ServedRequest&, ServedAnswer& answer) { answer = one.answer; };
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { get(3, 2); }), HasSubstr(one.found));
  }
  served.change = [](const ServedRequest&, ServedAnswer& answer) {
    answer.headers["Content-Encoding"] = "gzip";
  };
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { head(); }),
              HasSubstr("found Content-Encoding \"gzip\", needed the file's own bytes"));
}

TEST_F(WebClientTest, SaysHowARequestEnded) {
  struct Case {
    int status;
    RequestStatus needed;
  };
  for (const auto& [status, needed] :
       {Case{404, not_found}, Case{410, not_found}, Case{412, condition_failed}, Case{408, busy},
        Case{429, busy}, Case{503, busy}, Case{500, unknown}, Case{502, unknown},
        Case{504, unknown}}) {
    served.change = [status = status](const ServedRequest&, ServedAnswer& answer) {
      answer = {.status = status};
    };
    EXPECT_EQ(get(1, 0).status, needed) << status;
  }
  served.change = [](const ServedRequest&, ServedAnswer& answer) { answer.cut = 60; };
  EXPECT_EQ(get(10, 0).status, unknown);
}

TEST_F(WebClientTest, FollowsNoRedirectAndShowsNoQuery) {
  file = open(served.url() + "?token=hidden");
  const auto told_of = [&](int status) {
    served.take_requests();
    served.change = [status](const ServedRequest&, ServedAnswer& answer) {
      answer = {.status = status, .headers = {{"Location", "http://127.0.0.1:1/x?to=hidden"}}};
    };
    return message_of(ErrorCode::io, [&] { get(1, 0); });
  };
  for (const int status : {301, 302, 307, 308}) {
    EXPECT_THAT(told_of(status),
                AllOf(HasSubstr("a redirect, needed the URL that it leads to"),
                      HasSubstr("http://127.0.0.1:1/x"), Not(HasSubstr("hidden"))));
    EXPECT_THAT(served.take_requests(), ElementsAre("GET /d/f.bin?token=hidden"));
  }
  for (const int status : {401, 403}) {
    EXPECT_THAT(told_of(status),
                AllOf(HasSubstr("needed rights to read it"), Not(HasSubstr("hidden"))));
  }
}

TEST_F(WebClientTest, OnlyReads) {
  std::string etag;
  ObjectPage page;
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { file.client->put(file.key, {}, {}, etag); }),
              HasSubstr("files of a web server are only read"));
  message_of(ErrorCode::unsupported, [&] { file.client->list("", "", "", page); });
  message_of(ErrorCode::unsupported, [&] { file.client->remove(file.key); });
}

TEST_F(WebClientTest, RefusesUrlsThatNameNoFileOrTellAPassword) {
  struct Case {
    std::string url;
    const char* found;
  };
  for (const Case& one :
       {Case{"http://example.com/f", "plain http to another machine"},
        Case{"https://user:hidden@example.com/f", "a user or password"},
        Case{"https://example.com", "no file"}, Case{"https://example.com/?x=hidden", "no file"},
        Case{"https://example.com/a b", "a blank"}, Case{"https://example.com/a\nb", "a blank"},
        Case{"https://e/" + std::string(17 << 10, 'a'), "a longer URL"}}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { open(one.url); }),
                AllOf(HasSubstr(one.found), Not(HasSubstr("hidden"))));
  }
}

}  // namespace
}  // namespace shardwise
