#include "shardwise/storage/object/detail/credentials/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shardwise/storage/object/detail/credentials/command_output.h"
#include "storage/object/faulty_server.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Finds credentials in variables and files of its own, at a time of its own.
class CredentialsTest : public testing::Test {
 public:
  TempDir dir;
  std::map<std::string, std::string> variables{
      {"AWS_SHARED_CREDENTIALS_FILE", (dir / "credentials").string()},
      {"AWS_CONFIG_FILE", (dir / "config").string()},
      {"AWS_EC2_METADATA_DISABLED", "true"}};
  std::int64_t now = 1'000'000'000;

  CredentialsFinder finder() {
    return CredentialsFinder(
        [this](const char* name) {
          const auto found = variables.find(name);
          return found != variables.end() ? found->second : std::string();
        },
        [this] { return now; }, "us-east-1");
  }

  /// The access key's id; every secret is "hushed-" and that.
  std::string id() {
    CredentialsFinder one = finder();
    const Credentials keys = one.get();
    EXPECT_EQ(keys.secret_access_key, "hushed-" + keys.access_key_id);
    return keys.access_key_id;
  }

  std::string message(ErrorCode code) {
    std::string text = message_of(code, [this] { finder().get(); });
    EXPECT_THAT(text, Not(HasSubstr("hushed")));
    return text;
  }

  static std::string json(const std::string& id, const std::string& expiration) {
    return R"({"Version": 1, "Code": "Success", "AccessKeyId": ")" + id +
           R"(", "SecretAccessKey": "hushed-)" + id +
           R"(", "Token": "hushed-token", "Tags": [{"a": 1}])" +
           (expiration.empty() ? "" : R"(, "Expiration": ")" + expiration + '"') + "}";
  }
};

TEST_F(CredentialsTest, LooksInTheOrderOfTheAwsTools) {
  EXPECT_THAT(message(ErrorCode::io),
              HasSubstr("find credentials: found none in AWS_ACCESS_KEY_ID"));
  const LoopbackServer container(
      [](const ServedRequest&) { return ServedAnswer{.body = json("container", "")}; });
  variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url() + "/v1";
  EXPECT_EQ(id(), "container");
  write_file(dir / "config",
             "[default]\ncredential_process = echo '" + json("process", "") + "'\n");
  EXPECT_EQ(id(), "process");
  write_file(dir / "config",
             "[profile default]\naws_access_key_id=config\n"
             "aws_secret_access_key = hushed-config\n");
  EXPECT_EQ(id(), "config");
  write_file(dir / "credentials",
             "# mine\n[other]\naws_access_key_id = other\naws_secret_access_key=hushed-other\n"
             "[default]\n\naws_access_key_id = file\naws_secret_access_key = hushed-file\n"
             "s3 =\n  addressing_style = path\n");
  EXPECT_EQ(id(), "file");
  variables["AWS_PROFILE"] = "other";
  EXPECT_EQ(id(), "other");
  variables["AWS_ACCESS_KEY_ID"] = "variable";
  EXPECT_THAT(message(ErrorCode::io), HasSubstr("found one of AWS_ACCESS_KEY_ID"));
  variables["AWS_SECRET_ACCESS_KEY"] = "hushed-variable";
  EXPECT_EQ(id(), "variable");
}

TEST_F(CredentialsTest, RefusesProfilesThatItCannotUse) {
  variables["AWS_PROFILE"] = "mine";
  EXPECT_THAT(message(ErrorCode::not_found), HasSubstr("read the profile \"mine\": found none"));
  write_file(dir / "config", "[profile mine]\nsso_session = hushed\n");
  EXPECT_THAT(message(ErrorCode::unsupported), HasSubstr("found sso_session, needed keys"));
  write_file(dir / "config", "[profile mine]\nrole_arn = hushed\nsource_profile = default\n");
  EXPECT_THAT(message(ErrorCode::unsupported), HasSubstr("found role_arn, needed keys"));
  write_file(dir / "config", "[profile mine]\nhushed\n");
  EXPECT_THAT(message(ErrorCode::corrupt), HasSubstr("config: found line 2"));
  write_file(dir / "config", "hushed = hushed\n");
  EXPECT_THAT(message(ErrorCode::corrupt), HasSubstr("config: found line 1"));
  write_file(dir / "config", std::string((1 << 20) + 1, '\n'));
  EXPECT_THAT(message(ErrorCode::io), HasSubstr("needed a text of 1.00 MiB at most"));
}

TEST_F(CredentialsTest, RefusesWhatACredentialProcessShouldNotGive) {
  const auto process = [&](const std::string& command) {
    write_file(dir / "config", "[default]\ncredential_process = " + command + "\n");
  };
  process("echo hushed; exit 3");
  EXPECT_THAT(message(ErrorCode::io), HasSubstr("run credential_process: found exit status 3"));
  process("kill -9 $$");
  EXPECT_THAT(message(ErrorCode::io), HasSubstr("found that it was killed"));
  process("echo hushed");
  EXPECT_THAT(message(ErrorCode::corrupt), HasSubstr("found a text that is not an object"));
  process("echo '{\"AccessKeyId\": \"hushed\"}'");
  EXPECT_THAT(message(ErrorCode::corrupt), HasSubstr("found no keys"));
  process("head -c 70000 /dev/zero");
  EXPECT_THAT(message(ErrorCode::io), HasSubstr("of output"));
  process("echo '" + json("a", "tomorrow") + "'");
  EXPECT_THAT(message(ErrorCode::corrupt), HasSubstr("Expiration \"tomorrow\""));
  EXPECT_THAT(
      message_of(ErrorCode::io,
                 [] { command_output("read line < /dev/full; tail -f /dev/null", 10, 20); }),
      HasSubstr("no end after 20 ms"));
}

TEST_F(CredentialsTest, FetchesBeforeKeysExpire) {
  std::vector<std::string> requests;
  std::string expiration = "2001-09-09T02:46:40Z";  // an hour after `now`
  bool is_there = true;
  const LoopbackServer server([&](const ServedRequest& request) {
    requests.push_back(request.method + " " + request.path + " " + request.header("authorization"));
    if (!is_there) return ServedAnswer{.status = 500};
    return ServedAnswer{.body = json("key-" + std::to_string(requests.size()), expiration)};
  });
  write_file(dir / "token", "hushed-of-the-container\n");
  variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.url() + "/keys";
  variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = (dir / "token").string();
  CredentialsFinder one = finder();
  EXPECT_EQ(one.get().access_key_id, "key-1");
  EXPECT_EQ(requests, std::vector<std::string>{"GET /keys hushed-of-the-container"});
  EXPECT_EQ(one.get().session_token, "hushed-token");
  now += 3'299;
  EXPECT_EQ(one.get().access_key_id, "key-1");
  now += 1;
  is_there = false;  // the old ones do for 5 minutes more
  EXPECT_EQ(one.get().access_key_id, "key-1");
  is_there = true;
  expiration = "2001-09-09T03:46:40Z";
  EXPECT_EQ(one.get().access_key_id, "key-3");
  one.expire(Credentials{.access_key_id = "key-1"});  // others have been fetched since
  EXPECT_EQ(one.get().access_key_id, "key-3");
  one.expire(one.get());
  EXPECT_EQ(one.get().access_key_id, "key-4");
  is_there = false;
  now += 7'200;
  EXPECT_THAT(message_of(ErrorCode::io, [&] { one.get(); }), HasSubstr("found status 500"));
}

TEST_F(CredentialsTest, ReadsAFileThatHasChanged) {
  const auto write = [&](const std::string& id) {
    write_file(dir / "credentials", "[default]\naws_access_key_id = " + id +
                                        "\naws_secret_access_key = hushed-" + id + "\n");
  };
  write("one");
  CredentialsFinder finder = this->finder();
  EXPECT_EQ(finder.get().access_key_id, "one");
  write("three");
  EXPECT_EQ(finder.get().access_key_id, "three");
}

TEST_F(CredentialsTest, TrustsOnlyKnownHostsWithoutTls) {
  for (const char* const url :
       {"http://example.com/keys", "ftp://127.0.0.1/", "http://127.0.0.1.example.com/",
        "http://169.254.170.2.example.com/", "127.0.0.1"}) {
    variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    EXPECT_THAT(message(ErrorCode::invalid_argument), HasSubstr("needed https")) << url;
  }
}

TEST_F(CredentialsTest, AsksAnInstanceForATokenFirst) {
  std::vector<std::string> requests;
  const LoopbackServer server([&](const ServedRequest& request) {
    requests.push_back(request.method + " " + request.path);
    if (request.method == "PUT") {
      EXPECT_EQ(request.header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
      return ServedAnswer{.body = "hushed-imds"};
    }
    EXPECT_EQ(request.header("x-aws-ec2-metadata-token"), "hushed-imds");
    return ServedAnswer{.body = request.path.ends_with("/") ? "my role\n" : json("instance", "")};
  });
  variables["AWS_EC2_METADATA_DISABLED"] = "false";
  variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.url() + "/";
  EXPECT_EQ(id(), "instance");
  EXPECT_EQ(requests,
            (std::vector<std::string>{"PUT /latest/api/token",
                                      "GET /latest/meta-data/iam/security-credentials/",
                                      "GET /latest/meta-data/iam/security-credentials/my%20role"}));
}

TEST_F(CredentialsTest, AssumesARoleByAWebIdentity) {
  std::string body;
  ServedAnswer answer{.body =
                          "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                          "<Credentials><AccessKeyId>web</AccessKeyId><SecretAccessKey>hushed-web"
                          "</SecretAccessKey><SessionToken>t</SessionToken>"
                          "<Expiration>2001-09-09T02:46:40Z</Expiration></Credentials>"
                          "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"};
  const LoopbackServer sts([&](const ServedRequest& request) {
    EXPECT_EQ(request.query, "");
    body = request.body;
    return answer;
  });
  write_file(dir / "token", "hushed/token\n");
  variables["AWS_ENDPOINT_URL_STS"] = sts.url();
  variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = (dir / "token").string();
  variables["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  EXPECT_EQ(id(), "web");
  EXPECT_EQ(body,
            "Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"
            "RoleSessionName=shardwise&Version=2011-06-15&WebIdentityToken=hushed%2Ftoken");
  answer = {.status = 400,
            .body =
                "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>m</Message>"
                "</Error></ErrorResponse>"};
  EXPECT_THAT(message(ErrorCode::io),
              HasSubstr("found status 400, \"ExpiredTokenException\": \"m\""));
  variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = (dir / "nothing").string();
  EXPECT_THAT(message(ErrorCode::io), HasSubstr("found no file"));
}

}  // namespace
}  // namespace shardwise::detail
