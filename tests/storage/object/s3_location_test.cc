#include "shardwise/storage/object/detail/s3_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shardwise/storage/object/detail/endpoint.h"
#include "shardwise/storage/object/detail/s3_client.h"
#include "storage/object/environment.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

TEST(S3Location, ReadsUrls) {
  struct Case {
    const char* url;
    detail::S3Location needed;
  };
  const Case cases[] = {
      {"s3://bucket", {.bucket = "bucket"}},
      {"s3://bucket/", {.bucket = "bucket"}},
      {"s3://my.bucket-1/runs/a//", {.bucket = "my.bucket-1", .prefix = "runs/a"}},
      {"s3://bucket/a b%20#c", {.bucket = "bucket", .prefix = "a b%20#c"}},
      {"s3://bucket/p?region=eu-central-1",
       {.bucket = "bucket", .prefix = "p", .region = "eu-central-1"}},
      {"s3://bucket?endpoint=http://127.0.0.1:8333&style=path",
       {.bucket = "bucket",
        .endpoint = "http://127.0.0.1:8333",
        .style = detail::BucketStyle::path}},
      {"s3://bucket/p?style=virtual&endpoint=https%3A%2F%2Fstore.example",
       {.bucket = "bucket",
        .prefix = "p",
        .endpoint = "https://store.example",
        .style = detail::BucketStyle::virtual_host}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.url);
    EXPECT_EQ(detail::parse_s3_location(c.url), c.needed);
  }
  EXPECT_EQ(detail::parse_s3_location("s3://bucket/a/b/?region=x").to_string(), "s3://bucket/a/b");
}

TEST(S3Location, RefusesOtherTexts) {
  struct Case {
    std::string url;
    const char* found;
  };
  const Case cases[] = {
      {"", "no scheme"},
      {"bucket/key", "no scheme"},
      {"gs://bucket", "the scheme \"gs\""},
      {"S3://bucket", "the scheme \"S3\""},
      {"s3://", "no bucket"},
      {"s3:///key", "no bucket"},
      {"s3://?region=a", "no bucket"},
      {"s3://ab", "the bucket \"ab\""},
      {"s3://" + std::string(64, 'a'), "the bucket"},
      {"s3://Bucket", "the bucket \"Bucket\""},
      {"s3://-bucket", "the bucket"},
      {"s3://bucket.", "the bucket"},
      {"s3://a..b", "the bucket"},
      {"s3://192.168.1.1", "the bucket"},
      {"s3://user:pass@bucket", "the bucket"},
      {"s3://bucket/p?", "the parameter \"\""},
      {"s3://bucket/p?zone=a", "the parameter \"zone\""},
      {"s3://bucket/p?region", "the parameter \"region\""},
      {"s3://bucket/p?region=", "region \"\""},
      {"s3://bucket/p?region=a/b", "region \"a/b\""},
      {"s3://bucket/p?region=a&region=a", "twice the parameter \"region\""},
      {"s3://bucket/p?style=host", "style \"host\""},
      {"s3://bucket/p?region=%2", "a lone %"},
      {"s3://bucket/p?endpoint=store", "no https:// or http://"},
      {"s3://bucket/p?endpoint=ftp://store", "no https:// or http://"},
      {"s3://bucket/p?endpoint=https://", "no host"},
      {"s3://bucket/p?endpoint=https://a/b", "the host \"a/b\""},
      {"s3://bucket/p?endpoint=https://u@a", "the host \"u@a\""},
      {"s3://bucket/p?endpoint=https://a:0", "after the host"},
      {"s3://bucket/p?endpoint=https://a:65536", "after the host"},
      {"s3://bucket/p?endpoint=https://[::1", "no host"},
      {"s3://bucket/" + std::string(901, 'a'), "a prefix of 901 bytes"},
      {"s3://bucket/\xff", "a prefix of 1 bytes"},
      {"s3://bucket/" + std::string(5000, 'a'), "5012 bytes"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.url);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { detail::parse_s3_location(c.url); }),
                HasSubstr(c.found));
  }
}

TEST(S3Location, KnowsUrlsFromPaths) {
  for (const char* const url : {"s3://b", "https://x/y", "gs://", "a+b://c"}) {
    EXPECT_TRUE(detail::is_url(url)) << url;
  }
  for (const char* const path : {"", "a", "/s3://b", "://b", "C:/x", "a b://c", "run/s3://b"}) {
    EXPECT_FALSE(detail::is_url(path)) << path;
  }
}

TEST(Endpoint, LeavesOutTheSchemesOwnPort) {
  EXPECT_EQ(detail::parse_endpoint("https://a:443").authority, "a");
  EXPECT_EQ(detail::parse_endpoint("http://a:80/").authority, "a");
  EXPECT_EQ(detail::parse_endpoint("http://a:443").authority, "a:443");
  EXPECT_EQ(detail::parse_endpoint("http://[::1]:8333").host, "[::1]");
  EXPECT_TRUE(detail::parse_endpoint("http://[::1]:8333").has_address());
  EXPECT_TRUE(detail::parse_endpoint("http://10.0.0.1").has_address());
  EXPECT_FALSE(detail::parse_endpoint("http://localhost").has_address());
  EXPECT_EQ(detail::aws_s3_endpoint("eu-west-1").authority, "s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(detail::aws_s3_endpoint("cn-north-1").authority, "s3.cn-north-1.amazonaws.com.cn");
}

TEST(S3Client, RefusesAStyleThatDoesNotFit) {
  const ScopedEnvironment environment{};
  for (const char* const url : {"s3://my.bucket?style=virtual",
                                "s3://bucket?style=virtual&endpoint=http://127.0.0.1:8333"}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { detail::open_s3(detail::parse_s3_location(url)); }),
                HasSubstr("found style=virtual"));
  }
  EXPECT_EQ(detail::open_s3(detail::parse_s3_location("s3://my.bucket/p"))->name(),
            "s3://my.bucket");
}

TEST(S3Client, RefusesARegionOrAnEndpointOfTheEnvironmentThatIsNone) {
  const detail::S3Location location{.bucket = "bucket"};
  {
    const ScopedEnvironment environment{{"AWS_REGION", "a b"}};
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { detail::open_s3(location); }),
                HasSubstr("region \"a b\""));
  }
  const ScopedEnvironment environment{{"AWS_ENDPOINT_URL", "store.example"}};
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { detail::open_s3(location); }),
              HasSubstr("endpoint \"store.example\""));
}

}  // namespace
}  // namespace shardwise
