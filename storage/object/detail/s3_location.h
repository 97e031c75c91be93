#pragma once

#include <string>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// How a request names the bucket: as the first part of the path, or of the host. `automatic` is
/// by host at AWS and by path at other endpoints, and for names with dots, which no certificate of
/// AWS covers.
enum class BucketStyle { automatic, path, virtual_host };

/// A bucket, and a prefix of keys in it. Empty fields are found by open_s3(): `region` in
/// AWS_REGION, AWS_DEFAULT_REGION and the profile; `endpoint` in AWS_ENDPOINT_URL_S3 and
/// AWS_ENDPOINT_URL.
struct S3Location {
  std::string bucket = {}, prefix = {};  ///< without a slash at the prefix's end
  std::string endpoint = {};             ///< "https://host:port"; http only if it is written so
  std::string region = {};
  BucketStyle style = BucketStyle::automatic;

  /// For messages: "s3://bucket/prefix".
  std::string to_string() const;

  bool operator==(const S3Location&) const = default;
};

/// True for texts that begin with a scheme, such as "s3://": no path does.
bool is_url(std::string_view text);

/// Reads "s3://BUCKET/PREFIX?endpoint=URL&region=NAME&style=path|virtual". The prefix is taken as
/// it is; values after "?" may have "%XX". Throws invalid_argument.
S3Location parse_s3_location(std::string_view url);

}  // namespace shardwise::detail
