#pragma once

#include <memory>
#include <string>

#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/object/object_store.h"

namespace shardwise::detail {

/// A bucket as files that are read: the path `base`/x/y is the key "x/y", and a folder is a prefix
/// of keys. An open file is one object: a range of another that has taken its key since throws
/// corrupt. Small reads fetch 256 KiB, which the file keeps. Calls that would change something
/// throw unsupported: names in a bucket cannot be renamed, so a checkpoint is published there by
/// other means (BucketRoot).
std::shared_ptr<FileSystem> object_files(std::shared_ptr<ObjectStore> store,
                                         const std::string& base);

}  // namespace shardwise::detail
