#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/storage/object/detail/credentials/credentials.h"
#include "shardwise/storage/object/detail/endpoint.h"
#include "shardwise/storage/object/detail/http.h"
#include "shardwise/storage/object/detail/sigv4.h"
#include "shardwise/storage/object/object_client.h"

namespace shardwise::detail {

/// A bucket's address: with the bucket in the host, or first in the path.
struct BucketAddress {
  Endpoint endpoint = {};
  std::string bucket = {}, region = {};
  bool is_in_host = false;
};

/// A request on the bucket (without a key) or on an object.
struct S3Request {
  std::string_view operation;  ///< for messages: "put"
  std::string method = {};
  std::string key = {};
  NamedTexts query = {}, headers = {};
  std::span<const std::byte> body = {};
  std::span<std::byte> into = {};
};

struct S3Answer {
  RequestResult result = {};
  HttpAnswer http = {};  ///< of a request that is done
};

/// Signs requests, sends them, and says how they ended. Thread-safe.
class S3Requests {
 public:
  S3Requests(BucketAddress address, const HttpOptions& options, const Environment& environment);

  /// Throws what ObjectClient throws. A request that the store refuses because its keys have
  /// expired is sent once more, with others.
  S3Answer send(const S3Request& request);

  /// How a request ended whose answer has status 200 and an <Error> in its body; done for another
  /// body. Throws as send() does.
  RequestResult result_of_body(const S3Request& request, const HttpAnswer& answer) const;

  /// "get s3://bucket/key", for messages.
  std::string describe(const S3Request& request) const;

 private:
  HttpAnswer send_signed(const S3Request& request, const Credentials& keys);
  RequestResult result_of(const S3Request& request, const HttpAnswer& answer) const;

  const BucketAddress address_;
  HttpClient http_;
  CredentialsFinder credentials_;
};

}  // namespace shardwise::detail
