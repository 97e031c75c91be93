#include "shardwise/storage/object/detail/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/dynamic_library.h"

namespace shardwise::detail {
namespace {

using Sha256 = std::array<unsigned char, 32>;

/// The functions of OpenSSL's libcrypto that signatures need.
struct Crypto {
  decltype(&EVP_sha256) sha256;
  decltype(&EVP_Digest) digest;
  decltype(&HMAC) hmac;

  Crypto() {
    const DynamicLibrary library("libcrypto.so.3",
                                 "OpenSSL's libcrypto (Debian's libssl3) to sign requests");
    library.find(sha256, "EVP_sha256");
    library.find(digest, "EVP_Digest");
    library.find(hmac, "HMAC");
  }
};

const Crypto& crypto() {
  static const Crypto loaded;
  return loaded;
}

void require_hashed(bool is_done) {
  if (!is_done) throw Error(ErrorCode::io, "hash by SHA-256: found a refusal of libcrypto");
}

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  unsigned int size = 0;
  require_hashed(crypto().digest(bytes.data(), bytes.size(), hash.data(), &size, crypto().sha256(),
                                 nullptr) == 1 &&
                 size == hash.size());
  return hash;
}

Sha256 hmac_sha256(std::string_view key, std::string_view text) {
  Sha256 hash;
  unsigned int size = 0;
  require_hashed(crypto().hmac(crypto().sha256(), key.data(), static_cast<int>(key.size()),
                               reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                               hash.data(), &size) != nullptr &&
                 size == hash.size());
  return hash;
}

std::string_view as_text(const Sha256& hash) {
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

std::string hex(const Sha256& hash) { return fmt::format("{:02x}", fmt::join(hash, "")); }

/// Without blanks at the ends; runs of blanks inside count as one.
std::string canonical_value(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c != ' ' || (!text.empty() && text.back() != ' ')) text += c;
  }
  if (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

std::string sha256_hex(std::span<const std::byte> bytes) { return hex(sha256(bytes)); }

std::string percent_encoded(std::string_view bytes, Slash slash) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~' ||
                          (c == '/' && slash == Slash::keep);
    if (is_plain) {
      text += c;
    } else {
      text += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

std::string canonical_query(const NamedTexts& query) {
  NamedTexts encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(percent_encoded(name, Slash::encode),
                         percent_encoded(value, Slash::encode));
  }
  std::ranges::sort(encoded);
  std::string text;
  for (const auto& [name, value] : encoded) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  }
  return text;
}

std::string sigv4_time(std::int64_t seconds_since_1970) {
  const std::time_t seconds = seconds_since_1970;
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string sigv4_authorization(const RequestToSign& request, const Credentials& credentials,
                                const SigningScope& scope) {
  NamedTexts headers = request.headers;
  std::ranges::sort(headers);
  std::string canonical = fmt::format("{}\n{}\n{}\n", request.method, request.path, request.query);
  std::string names, time;
  for (const auto& [name, value] : headers) {
    canonical += fmt::format("{}:{}\n", name, canonical_value(value));
    names += (names.empty() ? "" : ";") + name;
    if (name == "x-amz-date") time = value;
  }
  canonical += fmt::format("\n{}\n{}", names, request.payload_hash);

  const std::string day = time.substr(0, 8);
  const std::string place = fmt::format("{}/{}/{}/aws4_request", day, scope.region, scope.service);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, place,
                                          sha256_hex(std::as_bytes(std::span(canonical))));
  Sha256 key = hmac_sha256("AWS4" + credentials.secret_access_key, day);
  for (const std::string_view part :
       {std::string_view(scope.region), std::string_view(scope.service),
        std::string_view("aws4_request")}) {
    key = hmac_sha256(as_text(key), part);
  }
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                     credentials.access_key_id, place, names,
                     hex(hmac_sha256(as_text(key), to_sign)));
}

}  // namespace shardwise::detail
