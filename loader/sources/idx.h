#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"

namespace shardwise {

/// Opens an idx file (the MNIST format: big-endian magic 0,0,type,rank, then rank 32-bit sizes,
/// then the elements), plain or gzip-compressed: its first bytes tell which. The first dim
/// counts the records; the rest is the record's shape. A plain file is read in place at record
/// offsets (up to `hold_bytes` of it stay in memory, file_options.h); a compressed one, having no
/// random access, is unpacked into memory once.
///
/// Throws not_found, io, corrupt where the magic, a size, the length of the file or its compression
/// is wrong (the message says what was found and needed), unsupported for an element type that is
/// not u8, i8, i16, i32, f32 or f64 and for a rank over kMaxRank. A header that claims more than
/// the file can hold is refused before memory is taken for it.
///
///   const auto images = open_idx("train-images-idx3-ubyte.gz", "image");
std::shared_ptr<const Source> open_idx(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes = kDefaultHoldBytes);

}  // namespace shardwise
