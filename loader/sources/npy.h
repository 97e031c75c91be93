#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"

namespace shardwise {

/// Opens an array that numpy.save wrote (.npy, versions 1 to 3), of either byte order. Dim 0 counts
/// the records, the rest is a record's shape. Read in place.
///
/// Throws not_found, io, corrupt where the header is not as numpy writes it or the file is not
/// exactly as long as it says, and unsupported for Fortran order, a scalar, a rank over kMaxRank,
/// and types that shardwise has not (strings, objects, records, times).
///
///   const auto images = open_npy("images.npy", "image");
std::shared_ptr<const Source> open_npy(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes = kDefaultHoldBytes);

}  // namespace shardwise
