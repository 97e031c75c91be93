#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// The header of a .npy file.
struct NpyHeader {
  DType dtype{};
  bool swapped = false;  ///< its byte order is not the host's
  Shape shape;
  bool fortran_order = false;  ///< the first dim varies fastest; of two dims or more
  std::size_t data_bytes = 0;
  std::size_t header_bytes = 0;  ///< including the magic and the length
};

/// The bytes that numpy writes before the elements of an array in C order: version 1.0, padded to a
/// multiple of 64 bytes. Dtypes that numpy lacks are raw bytes: "<V2" is bf16, "|V1" any 8-bit
/// float.
std::string npy_header_text(DType dtype, const Shape& shape);

/// The only check of a header from outside. `read` gives the file's next bytes, fewer only at its
/// end. Throws corrupt or unsupported, naming `path`.
NpyHeader read_npy_header(const std::string& path,
                          const std::function<std::size_t(std::span<std::byte>)>& read);

}  // namespace shardwise::detail
