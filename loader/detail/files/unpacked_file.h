#pragma once

#include <memory>

#include "shardwise/loader/detail/files/input_file.h"

namespace shardwise::detail {

/// True if the file begins as gzip does.
bool is_gzip(const InputFile& file);

/// The file, or all that it unpacks to, in memory, if it is gzip. Throws io, or corrupt if the gzip
/// file is damaged.
std::shared_ptr<const InputFile> unpacked(std::shared_ptr<const InputFile> file);

}  // namespace shardwise::detail
