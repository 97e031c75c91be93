#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::detail {

/// Names and values, of headers or of a query.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

/// A key to sign with. `expires` is in seconds since 1970; 0 if it stays valid.
struct Credentials {
  std::string access_key_id = {}, secret_access_key = {}, session_token = {};
  std::int64_t expires = 0;

  bool operator==(const Credentials&) const = default;
};

/// The SHA-256 of the bytes, in hexadecimal digits. Throws unsupported without OpenSSL's libcrypto.
std::string sha256_hex(std::span<const std::byte> bytes);

/// All bytes but A-Z, a-z, 0-9 and "-._~" become "%XX"; a slash stays if `keep_slash`.
enum class Slash { keep, encode };
std::string percent_encoded(std::string_view bytes, Slash slash);

/// The query as it is signed, and as it has to be sent: encoded and sorted. "a=1&b=".
std::string canonical_query(const NamedTexts& query);

/// "20130524T000000Z", for the header x-amz-date.
std::string sigv4_time(std::int64_t seconds_since_1970);

/// The parts of a request that a signature covers. The path is encoded already, once, as S3 wants
/// it. Headers have names in lower case, and include host and x-amz-date.
struct RequestToSign {
  std::string method, path, query;
  NamedTexts headers;
  std::string payload_hash;
};

/// Where and for whom a signature is valid.
struct SigningScope {
  std::string region, service;
};

/// AWS Signature Version 4: the value of the header Authorization. Thread-safe.
std::string sigv4_authorization(const RequestToSign& request, const Credentials& credentials,
                                const SigningScope& scope);

}  // namespace shardwise::detail
