// AWS's published vectors: the suite of aws-c-auth (tests/aws-signing-test-suite/v4), and the
// examples of S3's documentation ("Signature Calculations for the Authorization Header").

#include "shardwise/storage/object/detail/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

namespace shardwise::detail {
namespace {

constexpr std::string_view kHashOfNothing =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string signature_of(const std::string& authorization) {
  constexpr std::string_view kName = "Signature=";
  return authorization.substr(authorization.find(kName) + kName.size());
}

struct Vector {
  const char* name;
  const char* method;
  const char* path;
  NamedTexts query;
  NamedTexts headers;
  const char* signature;
};

TEST(Sigv4, GivesTheSignaturesOfTheSuite) {
  const NamedTexts none;
  const Vector vectors[] = {
      {"get-vanilla", "GET", "/", none, none,
       "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
      {"get-vanilla-query-order-key-case",
       "GET",
       "/",
       {{"Param2", "value2"}, {"Param1", "value1"}},
       none,
       "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
      {"get-vanilla-query-order-encoded",
       "GET",
       "/",
       {{"Param-3", "Value3"}, {"Param", "Value2"}, {"\xe1\x88\xb4", "Value1"}},
       none,
       "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
      {"get-vanilla-utf8-query",
       "GET",
       "/",
       {{"\xe1\x88\xb4", "bar"}},
       none,
       "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
      {"get-utf8", "GET", "/\xe1\x88\xb4", none, none,
       "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
      {"get-space-unnormalized", "GET", "/example space/", none, none,
       "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
      {"get-slash-pointless-dot-unnormalized", "GET", "/./example", none, none,
       "beb03f223f7deae4146464f06e29eebbee9c8afbe15c290cf07aa8b119e14cff"},
      {"get-unreserved", "GET",
       "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", none, none,
       "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
      {"get-vanilla-with-session-token",
       "GET",
       "/",
       none,
       {{"x-amz-security-token",
         "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"}},
       "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8"},
      {"get-header-value-trim",
       "GET",
       "/",
       none,
       {{"my-header1", " value1"}, {"my-header2", " \"a   b   c\""}},
       "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
      {"post-vanilla", "POST", "/", none, none,
       "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
      {"post-vanilla-query",
       "POST",
       "/",
       {{"Param1", "value1"}},
       none,
       "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
      {"post-header-key-sort",
       "POST",
       "/",
       none,
       {{"my-header1", "value1"}},
       "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
  };
  const Credentials keys{.access_key_id = "AKIDEXAMPLE",
                         .secret_access_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
  for (const Vector& vector : vectors) {
    SCOPED_TRACE(vector.name);
    RequestToSign request{.method = vector.method,
                          .path = percent_encoded(vector.path, Slash::keep),
                          .query = canonical_query(vector.query),
                          .headers = vector.headers,
                          .payload_hash = std::string(kHashOfNothing)};
    request.headers.emplace_back("host", "example.amazonaws.com");
    request.headers.emplace_back("x-amz-date", "20150830T123600Z");
    const std::string found = sigv4_authorization(request, keys, {"us-east-1", "service"});
    EXPECT_EQ(signature_of(found), vector.signature);
  }
}

TEST(Sigv4, GivesTheSignaturesOfS3sExamples) {
  constexpr std::string_view kWelcome = "Welcome to Amazon S3.";
  const std::string hash_of_body = sha256_hex(std::as_bytes(std::span(kWelcome)));
  EXPECT_EQ(hash_of_body, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
  const std::string nothing(kHashOfNothing);
  struct Example {
    Vector vector;
    std::string payload_hash;
  };
  const Example examples[] = {
      {{"get an object",
        "GET",
        "/test.txt",
        {},
        {{"range", "bytes=0-9"}},
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
       nothing},
      {{"put an object",
        "PUT",
        "/test$file.text",
        {},
        {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
       hash_of_body},
      {{"get a bucket's lifecycle",
        "GET",
        "/",
        {{"lifecycle", ""}},
        {},
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
       nothing},
      {{"list objects",
        "GET",
        "/",
        {{"max-keys", "2"}, {"prefix", "J"}},
        {},
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
       nothing},
  };
  const Credentials keys{.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                         .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  for (const auto& [vector, payload_hash] : examples) {
    SCOPED_TRACE(vector.name);
    RequestToSign request{.method = vector.method,
                          .path = percent_encoded(vector.path, Slash::keep),
                          .query = canonical_query(vector.query),
                          .headers = vector.headers,
                          .payload_hash = payload_hash};
    request.headers.emplace_back("host", "examplebucket.s3.amazonaws.com");
    request.headers.emplace_back("x-amz-content-sha256", payload_hash);
    request.headers.emplace_back("x-amz-date", sigv4_time(1'369'353'600));
    const std::string found = sigv4_authorization(request, keys, {"us-east-1", "s3"});
    EXPECT_EQ(signature_of(found), vector.signature);
    EXPECT_THAT(found, testing::StartsWith("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/"
                                           "20130524/us-east-1/s3/aws4_request, SignedHeaders="));
  }
}

TEST(Sigv4, EncodesEachByteOnce) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const std::string found = percent_encoded(text, Slash::encode);
    const bool is_plain = byte < 128 && (std::isalnum(byte) != 0 || byte == '-' || byte == '.' ||
                                         byte == '_' || byte == '~');
    char needed[4];
    std::snprintf(needed, sizeof needed, "%%%02X", static_cast<unsigned>(byte));
    EXPECT_EQ(found, is_plain ? text : std::string(needed));
  }
  EXPECT_EQ(percent_encoded("a/%2F/b", Slash::keep), "a/%252F/b");
  EXPECT_EQ(canonical_query({{"prefix", "a/b c"}, {"list-type", "2"}, {"Z", ""}}),
            "Z=&list-type=2&prefix=a%2Fb%20c");
}

}  // namespace
}  // namespace shardwise::detail
