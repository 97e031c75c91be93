#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "shardwise/storage/file.h"

namespace shardwise::bucket_detail {

inline constexpr std::size_t kPartBytes = std::size_t{8} << 20;

/// The files of a root in a bucket, for the one who writes there under names of its own. A new file
/// becomes an object, in place of one that is there, when it is synced or closed. Each of its bytes
/// is written once, in any order: a part of `part_bytes` is uploaded when it is complete, up to
/// four of a file at a time while the others are written, and the first one last. So the memory of
/// a file is that of these and of the parts that are being written. It has 9,000 parts at most,
/// which are larger if its size is set before. Folders need not be made. list() leaves out removed
/// steps, which cost one request once. Renames throw unsupported. Thread-safe.
std::shared_ptr<FileSystem> bucket_files(const std::filesystem::path& root,
                                         std::size_t part_bytes = kPartBytes);

}  // namespace shardwise::bucket_detail
