#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/object/object_client.h"
#include "shardwise/storage/object/object_store.h"

namespace shardwise {

/// True for "s3://bucket/..", and for "s3:/bucket/..", its normal form as a path.
bool in_bucket(const std::filesystem::path& path);

/// The path of a URL, so that names can be appended: options after the prefix go to the bucket's
/// name, "s3://bucket/runs?endpoint=http://host:1" to
/// "s3://bucket?endpoint=http:%2F%2Fhost:1/runs". Any other path stays as it is, and so does the
/// path of a URL.
std::string path_of_url(const std::string& url);

/// A place in a bucket: the path `base`/`key`.
struct BucketPlace {
  std::shared_ptr<ObjectStore> store;
  std::string base;  ///< "s3://bucket", with the bucket's options
  std::string key;   ///< without slashes at its ends; empty: the bucket itself
};

/// Opens the bucket of a path; later calls for it share the connections. Throws invalid_argument
/// for a URL that names no bucket, and as open_s3 does.
BucketPlace open_bucket(const std::filesystem::path& path);

/// True for "https://.." and "http://..".
bool on_web(const std::filesystem::path& path);

/// A file at "https://HOST/PATH?QUERY", or at http on loopback, as an object to read: a store of
/// its own, whose key is the path. Servers must give ranges, and an ETag or Last-Modified.
/// Certificates are checked (AWS_CA_BUNDLE names a file of more), redirects refused. Nothing is
/// sent yet. Throws invalid_argument, and unsupported without libcurl.
BucketPlace open_web(const std::filesystem::path& url);

/// The files of a path: `given` if it is not null, those of its bucket, or the operating system's.
std::shared_ptr<FileSystem> file_system_of(const std::filesystem::path& path,
                                           std::shared_ptr<FileSystem> given = nullptr);

/// Makes `client` the one of a bucket for this process, in place of S3's: a store of the program's
/// own, or of a test. Null takes it away. `bucket`: with its options, if the paths have some.
void use_object_client(const std::string& bucket, std::shared_ptr<ObjectClient> client,
                       RetryOptions options = {});

}  // namespace shardwise
