#pragma once

#include <memory>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/s3_location.h"
#include "shardwise/storage/object/object_client.h"

namespace shardwise::detail {

struct S3Options {
  int connect_ms = 10'000;
  int stall_s = 60;  ///< a request that moves less than a byte a second for so long has no answer
};

/// The bucket at an S3 store; the location's prefix is the caller's to add to keys. Nothing is sent
/// yet. Keys to sign with are found where the AWS tools look (docs/object_stores.md) and fetched
/// again before they expire. AWS_CA_BUNDLE names a file of certificates to trust. Every call blocks
/// its thread; as many requests run at once as threads call.
///
/// Throws invalid_argument if the fields do not fit together, and unsupported without libcurl or
/// OpenSSL's libcrypto.
std::shared_ptr<ObjectClient> open_s3(const S3Location& location, const S3Options& options = {});

}  // namespace shardwise::detail
