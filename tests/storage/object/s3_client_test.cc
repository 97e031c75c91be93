#include "shardwise/storage/object/detail/s3_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/object/client_conformance.h"
#include "storage/object/environment.h"
#include "storage/object/faulty_server.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Fault = FaultyS3::Fault;
using enum RequestStatus;

/// A client of a store that can be made to fail.
class S3ClientTest : public testing::Test {
 public:
  FaultyS3 store;
  const ScopedEnvironment environment{{"AWS_ACCESS_KEY_ID", "key"},
                                      {"AWS_SECRET_ACCESS_KEY", "secret"}};
  std::shared_ptr<ObjectClient> client = open();

  std::shared_ptr<ObjectClient> open() const {
    return detail::open_s3(detail::parse_s3_location("s3://bucket?endpoint=" + store.url()),
                           {.stall_s = 1});
  }

  static std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }

  RequestResult put(std::string_view content, const PutCondition& condition = {}) {
    return client->put("k", bytes(content), condition, etag);
  }

  RequestResult get(std::size_t size, std::uint64_t offset = 0) {
    text.assign(size, '?');
    return client->get("k", offset, std::as_writable_bytes(std::span(text)), "");
  }

  RequestResult head() { return client->head("k", info); }

  std::string etag, text;
  ObjectInfo info;
};

TEST_F(S3ClientTest, Conforms) {
  ClientConformance conformance(*client, "run/");
  conformance.check_all();
  conformance.check_pages(230);
}

TEST_F(S3ClientTest, KeepsItsConnection) {
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(put("text").ok());
  EXPECT_EQ(store.connections(), 1);
}

TEST_F(S3ClientTest, SaysHowARequestEnded) {
  struct Case {
    int status;
    const char* code;
    RequestStatus needed;
  };
  for (const auto& [status, code, needed] :
       {Case{404, "NoSuchKey", not_found}, Case{409, "ConditionalRequestConflict", busy},
        Case{412, "PreconditionFailed", condition_failed}, Case{429, "TooManyRequests", busy},
        Case{503, "SlowDown", busy}, Case{400, "RequestTimeout", busy}, Case{408, "", busy},
        Case{500, "InternalError", unknown}, Case{502, "", unknown}, Case{504, "", unknown}}) {
    SCOPED_TRACE(code);
    store.plan({Fault{.answer = error_answer(status, code)}});
    store.take_requests();
    const RequestResult result = put("text");
    EXPECT_EQ(result.status, needed);
    EXPECT_THAT(result.message, HasSubstr("put s3://bucket/k: found status " +
                                          std::to_string(status) + " to PUT, " + code));
    EXPECT_THAT(result.message, HasSubstr("request-1"));
    EXPECT_THAT(store.take_requests(), ElementsAre("PUT /bucket/k"));  // once
  }
}

TEST_F(S3ClientTest, ThrowsWhatNoRepeatMends) {
  struct Case {
    int status;
    const char* code;
    const char* needed;
  };
  for (const auto& [status, code, needed] :
       {Case{403, "AccessDenied", "needed rights"},
        Case{403, "SignatureDoesNotMatch", "needed keys that the store knows"},
        Case{403, "InvalidAccessKeyId", "needed keys that the store knows"},
        Case{403, "RequestTimeTooSkewed", "needed a clock within 15 minutes"},
        Case{404, "NoSuchBucket", "needed a bucket that exists"},
        Case{400, "InvalidArgument", "needed a request that the store takes"}}) {
    SCOPED_TRACE(code);
    store.plan({Fault{.answer = error_answer(status, code)}});
    const std::string message = message_of(ErrorCode::io, [&] { put("text"); });
    EXPECT_THAT(message,
                HasSubstr("put s3://bucket/k: found status " + std::to_string(status) +
                          " to PUT, " + code + ", \"words of the store\", request request-1"));
    EXPECT_THAT(message, HasSubstr(needed));
    EXPECT_THAT(message, Not(HasSubstr("secret")));
  }
}

TEST_F(S3ClientTest, NamesTheBucketsRegionAndFollowsNoRedirect) {
  ServedAnswer moved = error_answer(301, "PermanentRedirect");
  moved.headers["x-amz-bucket-region"] = "eu-west-3";
  moved.headers["Location"] = store.url() + "/bucket/other";
  for (const int status : {301, 302, 307, 308}) {
    moved.status = status;
    store.plan({Fault{.answer = moved}});
    store.take_requests();
    EXPECT_THAT(message_of(ErrorCode::io, [&] { put("text"); }),
                HasSubstr("needed the bucket's region: ?region=eu-west-3"));
    EXPECT_EQ(store.take_requests().size(), 1U);
  }
  ServedAnswer wrong = error_answer(400, "AuthorizationHeaderMalformed");
  wrong.body.insert(wrong.body.find("</Error>"), "<Region>eu-west-3</Region>");
  store.plan({Fault{.answer = wrong}});
  EXPECT_THAT(message_of(ErrorCode::io, [&] { put("text"); }),
              HasSubstr("needed the bucket's region: ?region=eu-west-3"));
}

TEST_F(S3ClientTest, DoesNotKnowHowARequestEndedWithoutItsAnswer) {
  for (const auto when : {Fault::before, Fault::after}) {
    for (const std::size_t cut : {0U, 5U, 30U}) {
      SCOPED_TRACE(cut);
      ASSERT_TRUE(client->remove("k").ok());  // so that the connection is a kept one
      store.take_requests();
      store.plan({Fault{when, {.headers = {{"ETag", "\"x\""}}, .cut = cut}}});
      const RequestResult result = put("text", {.if_absent = true});
      EXPECT_EQ(result.status, unknown) << result.message;
      EXPECT_THAT(result.message, HasSubstr("put s3://bucket/k: found no answer of 127.0.0.1"));
      EXPECT_THAT(store.take_requests(), ElementsAre("PUT /bucket/k"));  // not sent again by itself
      EXPECT_EQ(head().status, when == Fault::before ? not_found : done);
    }
  }
}

TEST_F(S3ClientTest, SaysThatNothingWasSentToNobody) {
  std::string url;
  {
    const LoopbackServer gone([](const ServedRequest&) { return ServedAnswer(); });
    url = gone.url();
  }
  client = detail::open_s3(detail::parse_s3_location("s3://bucket?endpoint=" + url));
  EXPECT_EQ(put("text").status, busy);
  client = detail::open_s3(
      detail::parse_s3_location("s3://bucket?endpoint=http://no-such-host.invalid"));
  EXPECT_EQ(put("text").status, busy);
}

TEST_F(S3ClientTest, GivesUpOnAStoreThatStalls) {
  ASSERT_TRUE(put("text").ok());
  // Says that more comes than it sends, and keeps the connection.
  store.change = [](const ServedRequest&, ServedAnswer& answer) { answer.length = 10; };
  const RequestResult result = get(10);
  EXPECT_EQ(result.status, unknown) << result.message;
}

TEST_F(S3ClientTest, RefusesAnotherRange) {
  ASSERT_TRUE(put("0123456789").ok());
  struct Case {
    const char* range;
    const char* body;
    const char* found;
  };
  for (const auto& [range, body, found] :
       {Case{"bytes 3-5/10", "345", "Content-Range \"bytes 3-5/10\""},
        Case{"bytes 2-5/10", "2345", "more than 3 bytes"},
        Case{"bytes 2-3/4", "23", "an object of 4 bytes"},
        Case{"bytes 2-4/10", "23", "an object of 4 bytes"}, Case{"", "234", "Content-Range \"\""},
        Case{"bytes */10", "234", "Content-Range"}}) {
    SCOPED_TRACE(range);
    const ServedAnswer answer{.status = 206, .headers = {{"Content-Range", range}}, .body = body};
    store.plan({Fault{.answer = answer}});
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { get(3, 2); }), HasSubstr(found));
  }
  store.plan({Fault{.answer = {.body = "012"}}});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { get(3, 2); }),
              HasSubstr("the object from its beginning"));
  store.plan({Fault{.answer = {.body = "012"}}});
  EXPECT_TRUE(get(3).ok());  // a store without ranges, and the whole object
  EXPECT_EQ(text, "012");
  store.plan({Fault{.answer = {.body = "0123"}}});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { get(3); }), HasSubstr("more than 3 bytes"));
  store.plan({Fault{.answer = {.status = 206,
                               .headers = {{"Content-Range", "bytes 0-9/10"}},
                               .body = "0123456789",
                               .cut = 78}}});
  EXPECT_EQ(get(10).status, unknown);
}

TEST_F(S3ClientTest, RefusesAnswersWithoutWhatTheyPromise) {
  store.plan({Fault{}, Fault{.answer = {.body = "<A/>"}}, Fault{.answer = {.body = "<A"}}});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { put("text"); }), HasSubstr("no ETag"));
  ObjectPage page;
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { client->list("", "", "", page); }),
              HasSubstr("the element \"A\""));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { client->list("", "", "", page); }),
              HasSubstr("a tag without an end"));
  store.plan({Fault{.answer = {.body = "<ListBucketResult><Contents><Key>b</Key><Size>1</Size>"
                                       "</Contents></ListBucketResult>"}}});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { client->list("a/", "", "", page); }),
              HasSubstr("the key \"b\""));
}

TEST_F(S3ClientTest, TakesA200WithAnErrorInsideForAFailure) {
  OpenUpload upload{"k", ""};
  std::vector<std::string> etags(1);
  struct Case {
    const char* code;
    RequestStatus needed;
  };
  for (const auto& [code, needed] : {Case{"InternalError", unknown}, Case{"SlowDown", busy},
                                     Case{"NoSuchUpload", not_found}, Case{"Strange", unknown}}) {
    ASSERT_TRUE(client->begin_upload("k", upload.id).ok());
    ASSERT_TRUE(client->put_part(upload, 1, bytes("text"), etags[0]).ok());
    ServedAnswer late = error_answer(200, code);
    late.body.insert(late.body.find("<Error>"), "   \n  ");  // S3 sends blanks to keep the line up
    store.plan({Fault{.answer = late}});
    EXPECT_EQ(client->complete_upload(upload, etags, etag).status, needed) << code;
  }
  store.plan({Fault{}});
  message_of(ErrorCode::corrupt, [&] { client->complete_upload(upload, etags, etag); });
  store.plan({Fault{.answer = error_answer(200, "AccessDenied")}});
  message_of(ErrorCode::io, [&] { client->complete_upload(upload, etags, etag); });
  EXPECT_TRUE(client->complete_upload(upload, etags, etag).ok());
}

TEST_F(S3ClientTest, AsksForOtherKeysOnceIfTheyHaveExpired) {
  const TempDir dir;
  write_file(dir / "credentials",
             "[default]\naws_access_key_id = old\naws_secret_access_key = secret\n");
  const ScopedEnvironment profiles{{"AWS_SHARED_CREDENTIALS_FILE", (dir / "credentials").string()}};
  client = open();
  ASSERT_TRUE(put("text").ok());
  store.take_requests();
  store.plan({Fault{.answer = error_answer(400, "ExpiredToken")}});
  EXPECT_TRUE(put("text").ok());
  EXPECT_EQ(store.take_requests().size(), 2U);
  const Fault expired{.answer = error_answer(400, "ExpiredToken")};
  store.plan({expired, expired, expired});
  EXPECT_THAT(message_of(ErrorCode::io, [&] { put("text"); }),
              HasSubstr("needed keys that have not expired"));
  EXPECT_EQ(store.take_requests().size(), 2U);
}

TEST_F(S3ClientTest, SignsWithThePresentKeysOfTheFile) {
  const TempDir dir;
  const auto write = [&](const std::string& secret) {
    write_file(dir / "credentials",
               "[default]\naws_access_key_id=a\naws_secret_access_key=" + secret);
  };
  write("wrong");
  const ScopedEnvironment profiles{{"AWS_SHARED_CREDENTIALS_FILE", (dir / "credentials").string()}};
  client = open();
  EXPECT_THAT(message_of(ErrorCode::io, [&] { put("text"); }), HasSubstr("SignatureDoesNotMatch"));
  write("secret");
  EXPECT_TRUE(put("text").ok());
}

TEST_F(S3ClientTest, RefusesKeysThatAreNone) {
  for (const std::string& key :
       {std::string(), std::string(1025, 'a'), std::string("a\0b", 3), std::string("\xff")}) {
    message_of(ErrorCode::invalid_argument, [&] { client->remove(key); });
  }
  EXPECT_TRUE(client->remove(std::string(1024, 'a')).ok());
  message_of(ErrorCode::invalid_argument, [&] { put("text", {.if_match = "\"x\"\r\nx: y"}); });
}

TEST_F(S3ClientTest, PutsTheBucketIntoTheHost) {
  std::string host, path;
  const LoopbackServer server([&](const ServedRequest& request) {
    host = request.header("host");
    path = request.path;
    return ServedAnswer{.headers = {{"ETag", "\"x\""}}};
  });
  std::string url = server.url();
  const std::string port = url.substr(url.rfind(':'));
  client = detail::open_s3(
      detail::parse_s3_location("s3://bucket?style=virtual&endpoint=http://localhost" + port));
  EXPECT_TRUE(put("text").ok());
  EXPECT_EQ(host, "bucket.localhost" + port);
  EXPECT_EQ(path, "/k");
}

TEST_F(S3ClientTest, AsksNoProxyForThisMachine) {
  const ScopedEnvironment proxy{{"AWS_ACCESS_KEY_ID", "key"},
                                {"AWS_SECRET_ACCESS_KEY", "secret"},
                                {"http_proxy", "http://127.0.0.1:1"},
                                {"all_proxy", "http://127.0.0.1:1"}};
  client = open();
  EXPECT_TRUE(put("text").ok());
}

}  // namespace
}  // namespace shardwise
