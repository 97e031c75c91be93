// The conformance suite against the store that SHARDWISE_TEST_S3 names (seaweedfs_test.py starts
// one): s3://BUCKET/PREFIX?endpoint=..., with keys in the usual variables.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "shardwise/storage/object/detail/s3_client.h"
#include "storage/object/client_conformance.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

detail::S3Location server() {
  const char* const url = std::getenv("SHARDWISE_TEST_S3");
  if (url == nullptr) throw std::runtime_error("SHARDWISE_TEST_S3 is not set");
  return detail::parse_s3_location(url);
}

class Server : public testing::Test {
 public:
  const detail::S3Location location = server();
  const std::shared_ptr<ObjectClient> client = detail::open_s3(location);
  ClientConformance conformance{
      *client, location.prefix + "/" + std::to_string(::getpid()) + "-" +
                   testing::UnitTest::GetInstance()->current_test_info()->name() + "/"};
};

TEST_F(Server, PutsAndGetsWholeObjects) { conformance.check_whole_objects(); }
TEST_F(Server, GetsRanges) { conformance.check_ranges(); }
TEST_F(Server, KeepsConditions) { conformance.check_conditions(); }
TEST_F(Server, LetsOneWriterWin) { conformance.check_races(); }
TEST_F(Server, Lists) { conformance.check_listings(); }
TEST_F(Server, ListsPages) { conformance.check_pages(1'003); }
TEST_F(Server, TakesStrangeKeys) { conformance.check_keys(); }
TEST_F(Server, TakesMultipartUploads) { conformance.check_uploads(); }

TEST_F(Server, RefusesWrongKeys) {
  const std::string secret = std::getenv("AWS_SECRET_ACCESS_KEY");
  ::setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
  const std::shared_ptr<ObjectClient> stranger = detail::open_s3(location);
  const std::string message = message_of(ErrorCode::io, [&] {
    ObjectPage page;
    stranger->list("", "", "", page);
  });
  EXPECT_THAT(message, testing::HasSubstr("SignatureDoesNotMatch"));
  EXPECT_THAT(message, testing::Not(testing::HasSubstr("wrong")));
  ::setenv("AWS_SECRET_ACCESS_KEY", secret.c_str(), 1);
}

TEST_F(Server, HasNoOtherBucket) {
  detail::S3Location other = location;
  other.bucket = "no-such-bucket";
  const std::string message = message_of(ErrorCode::io, [&] {
    ObjectPage page;
    detail::open_s3(other)->list("", "", "", page);
  });
  EXPECT_THAT(message, testing::HasSubstr("NoSuchBucket"));
}

}  // namespace
}  // namespace shardwise
