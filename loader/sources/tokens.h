#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"

namespace shardwise {

struct TokenOptions {
  DType dtype = DType::u16;      ///< u8, u16, u32 or i32; little-endian in the file
  std::int64_t window = 0;       ///< tokens in a record, 1 or more. No default
  std::int64_t stride = 0;       ///< tokens from one record's begin to the next one's; 0: window
  std::size_t header_bytes = 0;  ///< before the first token
  std::string field = "tokens";
  std::size_t hold_bytes = kDefaultHoldBytes;
};

/// A file of token ids and nothing else, cut into windows: record i is the tokens
/// [i * stride, i * stride + window), of which a model takes window - 1 as its input and, one
/// further, as its targets. With a stride below the window records overlap. The last tokens, if
/// they do not fill a window, are left out; a file with fewer tokens than a window has no record.
///
/// Throws invalid_argument for impossible options, not_found, io, and corrupt where the file is
/// not header_bytes and whole tokens.
///
///   const auto tokens = open_tokens("train.bin", {.dtype = DType::u16, .window = 1025,
///                                                 .stride = 1024});
std::shared_ptr<const Source> open_tokens(const std::filesystem::path& path,
                                          const TokenOptions& options);

}  // namespace shardwise
