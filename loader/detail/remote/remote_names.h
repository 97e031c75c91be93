#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/object_client.h"

namespace shardwise::detail {

/// The files that the URL of a source stands for. "{000..127}" stands for these numbers, with as
/// many digits. In a bucket, a URL that ends with a slash stands for all objects below it, and "*"
/// for any characters but a slash; the bucket is listed once, and names that begin with "." or "_"
/// are left out. Sorted by name. Throws not_found without any, invalid_argument, StoreError.
std::vector<std::filesystem::path> remote_files(const std::filesystem::path& url);

/// All objects below a folder of a bucket, by one listing; keys are those below the folder. Throws
/// unsupported for a web server, StoreError.
std::vector<ObjectInfo> objects_below(const std::filesystem::path& folder);

}  // namespace shardwise::detail
