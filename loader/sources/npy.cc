#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/loader/detail/files/file_rows.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/npy_header.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace detail {

std::shared_ptr<const Source> open_npy(std::shared_ptr<const InputFile> file,
                                       std::string field_name, std::size_t hold_bytes) {
  std::size_t offset = 0;
  const NpyHeader header = read_npy_header(file->path(), [&](std::span<std::byte> out) {
    const std::size_t count = file->read_at(offset, out);
    offset += count;
    return count;
  });
  const std::size_t data_bytes = file->size_bytes() - std::min(file->size_bytes(), offset);
  if (data_bytes != header.data_bytes) {
    throw Error(ErrorCode::corrupt,
                fmt::format("open npy file {}: {} bytes of data, {} records of shape {} {} need {}",
                            file->path(), data_bytes, header.records,
                            to_string(header.record_shape), name(header.dtype), header.data_bytes));
  }
  return file_rows_source(
      std::move(file), {std::move(field_name), header.dtype, header.record_shape}, header.records,
      {header.header_bytes, header.record_bytes, header.swapped}, hold_bytes);
}

}  // namespace detail

std::shared_ptr<const Source> open_npy(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes) {
  return detail::open_npy(std::make_shared<const detail::InputFile>(path), std::move(field_name),
                          hold_bytes);
}

}  // namespace shardwise
